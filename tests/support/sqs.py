"""SQS on this machine: moto's server, the one part of the tests that is not the real thing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Self

import boto3

from tests.support.paths import env_bin
from tests.support.ports import HOST, free_port, is_free
from tests.support.process import ManagedProcess

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

REGION = "us-east-1"


class SqsServer:
    """moto's server with its log under ``root``; usable with ``with``. It takes any credentials."""

    def __init__(self, root: Path) -> None:
        """Nothing is started yet."""
        self._port = free_port()
        self.url = f"http://{HOST}:{self._port}"
        command: list[str | Path] = [env_bin("airflow", "moto_server"), "-H", HOST, "-p", str(self._port)]
        self.process = ManagedProcess("moto", command, log=root / "moto.log")

    @property
    def client(self) -> SQSClient:
        """A client, for what the product does not do."""
        return boto3.session.Session().client(
            "sqs",
            endpoint_url=self.url,
            region_name=REGION,
            aws_access_key_id="any",
            aws_secret_access_key="any",
        )

    def __enter__(self) -> Self:
        self.process.start()
        try:
            self.process.wait_until(lambda: not is_free(self._port))
        except BaseException:
            self.process.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stop()
