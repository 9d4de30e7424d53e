"""Azurite, Microsoft's emulator of Azure Storage. It is a package of npm, which nothing else here needs.

``TIDEMARK_AZURITE`` says where its program ``azurite-blob`` is; without it, what needs it is skipped.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import socket
import subprocess
import urllib.request
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Self

from tests.support.ports import HOST, free_port
from tests.support.waiting import HUNG, wait_until

ACCOUNT = "devstoreaccount1"
# Azurite's own, which is public: https://learn.microsoft.com/azure/storage/common/storage-use-azurite
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def program() -> Path | None:
    """Where the emulator is, if it is."""
    named = os.environ.get("TIDEMARK_AZURITE")
    return Path(named) if named else None


class Azurite:
    """The server; ``endpoint`` is its address without the account."""

    def __init__(self, program: Path, log: Path) -> None:
        self._port = free_port()
        self.endpoint = f"http://{HOST}:{self._port}"
        told = ["--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry"]
        where = ["--blobHost", HOST, "--blobPort", str(self._port)]
        with log.open("wb") as output:
            self._process = subprocess.Popen([program, *told, *where], stdout=output, stderr=output)

    def __enter__(self) -> Self:
        wait_until(self._listens, what="Azurite")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(HUNG)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((HOST, self._port)) == 0

    def env(self) -> dict[str, str]:
        """What obstore and delta-rs need in their environment.

        They are told that it is the emulator, which does not know where a listing is to start (``startFrom``): they
        leave out of it what they did not ask for.
        """
        told = {"AZURE_STORAGE_USE_EMULATOR": "true", "AZURITE_BLOB_STORAGE_URL": self.endpoint}
        return {"AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": KEY, **told}

    def create_container(self, name: str) -> None:
        """Make a container."""
        date = format_datetime(datetime.now(UTC), usegmt=True)
        told = f"x-ms-date:{date}\nx-ms-version:2023-11-03\n/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
        lines = "PUT" + "\n" * 12 + told
        signature = base64.b64encode(hmac.digest(base64.b64decode(KEY), lines.encode(), hashlib.sha256)).decode()
        headers = {
            "x-ms-date": date,
            "x-ms-version": "2023-11-03",
            "Authorization": f"SharedKey {ACCOUNT}:{signature}",
            "Content-Type": "",
        }
        url = f"{self.endpoint}/{ACCOUNT}/{name}?restype=container"
        request = urllib.request.Request(url, method="PUT", data=b"", headers=headers)  # noqa: S310  # to our own server
        with urllib.request.urlopen(request):  # noqa: S310  # likewise
            return
