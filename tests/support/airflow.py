"""Airflow on this machine: api-server, scheduler, dag-processor and triggerer, each a process of its own.

SQLite unless another database is named, and the LocalExecutor, one user with a generated password, everything under one
home. The log servers stay off because they listen on all interfaces; the API server reads the tasks' logs from disk
instead. Secrets reach the processes in files and environment variables only.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from typing import Self

from tests.support.airflow_client import AirflowApiError, AirflowClient
from tests.support.paths import ROOT, cache_dir, env_bin
from tests.support.ports import HOST, free_port
from tests.support.process import ManagedProcess, ProcessFailed, ProcessRecord, stop_all
from tests.support.waiting import wait_until

USER = "admin"
_START_SECONDS = 180.0
_TURN_SECONDS = 60
_TURN_SECONDS_OF_API = 10
"""The time that a process waits for its turn to write to SQLite; the default of 5 s is too short on a busy machine.

The API server writes its log of actions on the event loop. If a request in another of its threads holds the turn then,
and needs the loop to end, both wait until this time is over (seen in Airflow 3.3). Whoever called repeats the call.
"""
_DATABASE = "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"
_COMPONENTS = {
    "api-server": (),
    "scheduler": ("--skip-serve-logs",),
    "dag-processor": (),
    "triggerer": ("--skip-serve-logs",),
}
"""By name their options, in the order in which they start."""


def import_early(home: Path) -> None:
    """Have ``home`` use the local settings that a deployment should have: see :mod:`tidemark_airflow.early`."""
    (home / "config").mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "deploy" / "airflow_local_settings.py", home / "config")


def with_times(dag_file: str, *, late: int, gone: int) -> str:
    """The text of a DAG file, for which a topic that promises no freshness is late, and an agent gone, so soon.

    Both are in seconds.
    """
    first = "from __future__ import annotations\n"
    assert first in dag_file
    lines = (
        "import datetime",
        "from tidemark import topics",
        "from tidemark.monitoring import deployment_conditions",
        f"topics._LATE_AFTER = datetime.timedelta(0, {late})",
        f"deployment_conditions.AGENT_GONE = datetime.timedelta(0, {gone})",
    )
    return dag_file.replace(first, "\n".join([first, *lines, ""]), 1)


class AirflowStack:
    """Airflow with its home at ``home``; usable with ``with``. ``client`` calls its REST API as an administrator."""

    def __init__(
        self,
        home: Path,
        *,
        dags: Path,
        plugins: Path | None = None,
        parallelism: int = 4,
        env: Mapping[str, str] | None = None,
        unpaused: Sequence[str] = (),
        components: Collection[str] = tuple(_COMPONENTS),
        program: Path | None = None,
    ) -> None:
        """Nothing is started yet. ``env`` has connections, variables and further settings (``AIRFLOW__...``).

        ``unpaused`` are the DAGs to let run where DAGs start paused. ``components`` are those to start: where no run
        is to end, the api-server and the dag-processor will do. ``program`` is the command ``airflow`` of another
        environment than this checkout's.
        """
        self._program = program or env_bin("airflow", "airflow")
        self._unpaused = tuple(unpaused)
        self.home = home.resolve()
        port = free_port()
        self.url = f"http://{HOST}:{port}"
        self.password = secrets.token_urlsafe(18)
        self._port = port
        self.client = AirflowClient(HOST, port, USER, self.password)
        self.env = {
            **os.environ,
            **self._settings(port, dags, plugins or self.home / "plugins", parallelism),
            **(env or {}),
        }
        self.processes = [
            self._process(name, name, *options) for name, options in _COMPONENTS.items() if name in components
        ]

    def _settings(self, port: int, dags: Path, plugins: Path, parallelism: int) -> dict[str, str]:
        return {
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_urlsafe(64),
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__API__HOST": HOST,
            "AIRFLOW__API__PORT": str(port),
            "AIRFLOW__API__SECRET_KEY": secrets.token_urlsafe(32),
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__CORE__DAGS_FOLDER": str(dags.resolve()),
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__FERNET_KEY": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__PARALLELISM": str(parallelism),
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(plugins.resolve()),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(self._passwords),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USER}:admin",
            # What is new or has changed is read at the next refresh; to read the rest takes a quarter of a core.
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "60",
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
            _DATABASE: f"sqlite:///{self.home / 'airflow.db'}?timeout={_TURN_SECONDS}",
            "AIRFLOW__LOGGING__COLORED_CONSOLE_LOG": "False",
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
            "NO_COLOR": "1",
        }

    def start(self) -> Self:
        """Create or migrate the database, start the processes, wait until each is healthy, unpause what is to run."""
        self.home.mkdir(parents=True, exist_ok=True)
        self._passwords.touch(mode=0o600)
        self._passwords.write_text(json.dumps({USER: self.password}))
        try:
            self.make_database()
            for process in self.processes:
                process.start()
            wait_until(self.healthy, what="Airflow to be healthy", interval=0.5, check=self._check)
            for dag in self._unpaused:
                self.client.wait_for_dag(dag)
            for dag in self._unpaused:  # before tasks run, which call the API server as well
                self.client.unpause(dag)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop the api-server last: tasks that are ended report to it, and would try for a minute if it were gone.

        The triggerer would give waiting triggers ten seconds, which have nothing to lose: it is killed.
        """
        for process in self.processes:
            if process.name == "triggerer":
                process.kill()
        stop_all([process for process in self.processes if process.name != "api-server"], timeout=60)
        stop_all([process for process in self.processes if process.name == "api-server"], timeout=60)

    def kill(self) -> None:
        """End all processes with all that they have started, at once: for a home that nobody needs any more."""
        with ThreadPoolExecutor(len(self.processes)) as pool:
            list(pool.map(ManagedProcess.kill, self.processes))

    def revive(self) -> None:
        """Start what has ended by itself again, as a supervisor does: on SQLite the scheduler ends at a lost race."""
        for process in self.processes:
            if not process.running:
                process.start()

    def component(self, name: str) -> ManagedProcess:
        """One of ``api-server``, ``scheduler``, ``dag-processor`` and ``triggerer``, to kill and to start again."""
        return next(process for process in self.processes if process.name == name)

    def client_of(self, user: str) -> AirflowClient:
        """A client of another user of the settings, whose password Airflow has made."""
        return AirflowClient(HOST, self._port, user, json.loads(self._passwords.read_text())[user])

    def healthy(self) -> bool:
        """Whether every component reports that it is."""
        try:
            states = self.client.health()
        except (OSError, HTTPException, AirflowApiError):
            return False  # the api-server is still starting
        told = {process.name.replace("-", "_") for process in self.processes} - {"api_server"} | {"metadatabase"}
        return all(states.get(component) == "healthy" for component in told)

    def cli(self, *arguments: str, timeout: float = _START_SECONDS) -> str:
        """Run ``airflow ...`` against this home and return its output; :class:`ProcessFailed` if it fails."""
        log = self.home / f"cli-{secrets.token_hex(4)}.log"
        process = self._process("cli", *arguments, log=log).start()
        try:
            code = process.wait(timeout)
        finally:
            process.stop()
        if code != 0:
            raise ProcessFailed(f"airflow {' '.join(arguments)} ended with code {code}\n{process.log_tail()}")
        return log.read_text()

    def records(self) -> list[ProcessRecord]:
        """The running processes, for another process to stop."""
        return [process.record() for process in self.processes if process.running]

    def make_database(self) -> None:
        """A new database; migrations take longer than all else at the start, so the first home's is kept for others.

        A database on a server, which ``env`` names, is migrated only.
        """
        if not self.env[_DATABASE].startswith("sqlite:"):
            self.cli("db", "migrate")
            return
        database, pins = self.home / "airflow.db", (ROOT / "requirements" / "airflow.txt").read_bytes()
        template = cache_dir() / "airflow-db" / f"{hashlib.sha256(pins).hexdigest()[:12]}.db"
        template.parent.mkdir(parents=True, exist_ok=True)
        self.home.mkdir(parents=True, exist_ok=True)
        with (template.parent / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if database.exists() or not template.exists():
                fresh = not database.exists()
                self.cli("db", "migrate")
                if fresh:
                    shutil.copyfile(database, partial := template.with_suffix(".part"))
                    partial.replace(template)
                return
        shutil.copyfile(template, database)

    @property
    def _passwords(self) -> Path:
        return self.home / "passwords.json"

    def _process(self, name: str, *arguments: str, log: Path | None = None) -> ManagedProcess:
        command: list[str | Path] = [self._program, *arguments]
        env = dict(self.env)
        if name == "api-server":
            env[_DATABASE] = env[_DATABASE].replace(f"={_TURN_SECONDS}", f"={_TURN_SECONDS_OF_API}")
        return ManagedProcess(name, command, log=log or self.home / f"{name}.log", env=env, cwd=self.home)

    def _check(self) -> None:
        for process in self.processes:
            if not process.running:
                raise ProcessFailed(f"Airflow's {process.name} ended\n{process.log_tail()}")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        AirflowStack(Path(folder), dags=Path(folder)).make_database()
