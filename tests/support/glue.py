"""AWS's Glue Data Catalog as moto imitates it. Unlike AWS's, it does not look at the version that an update names."""

from __future__ import annotations

from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Self

from tests.support.paths import env_bin
from tests.support.ports import HOST, free_port
from tests.support.process import ManagedProcess

REGION = "us-east-1"
ENV = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "tests", "AWS_DEFAULT_REGION": REGION}
"""What clients need; any credentials do."""


class GlueServer:
    """One catalog, at :attr:`endpoint`; usable with ``with``."""

    def __init__(self, folder: Path) -> None:
        """Nothing is started yet. The log lies in ``folder``."""
        self._port = free_port()
        self.endpoint = f"http://{HOST}:{self._port}"
        command: list[str | Path] = [env_bin("dev", "moto_server"), "-H", HOST, "-p", str(self._port)]
        self._process = ManagedProcess("moto", command, log=folder.resolve() / "moto.log")

    def forget(self) -> None:
        """Remove all databases and tables."""
        if not self._answers("POST", "/moto-api/reset"):
            raise OSError(f"moto did not answer\n{self._process.log_tail()}")

    def _answers(self, method: str, path: str) -> bool:
        connection = HTTPConnection(HOST, self._port, timeout=10)
        try:
            connection.request(method, path)
            return connection.getresponse().status == 200
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()

    def __enter__(self) -> Self:
        self._process.start()
        try:
            self._process.wait_until(lambda: self._answers("GET", "/moto-api/"))
        except BaseException:
            self._process.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stop()
