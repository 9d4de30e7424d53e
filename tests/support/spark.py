"""Spark from the spark environment: a standalone cluster or a Connect server on this machine, and spark-submit."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Self, cast

from tests.support import class_data
from tests.support.jars import class_path
from tests.support.java import java_home
from tests.support.paths import ROOT, STATE, EnvName, env_python, site_packages
from tests.support.ports import HOST, free_ports, is_free
from tests.support.process import ManagedProcess, ProcessFailed, ProcessRecord, stop_all
from tests.support.waiting import HUNG, wait_until


def spark_home() -> Path:
    """SPARK_HOME: pip's pyspark in the spark environment."""
    return site_packages("spark") / "pyspark"


def spark_env(extra: Mapping[str, str] | None = None, *, env: EnvName = "spark") -> dict[str, str]:
    """This process's environment, with what makes Spark find its parts and stay on 127.0.0.1.

    ``env`` is the environment whose Python drives and works; the jars are the spark environment's, of which there is
    class data.
    """
    python = str(env_python(env))
    return {
        **os.environ,
        "JAVA_HOME": str(java_home()),
        "PYSPARK_DRIVER_PYTHON": python,
        "PYSPARK_PYTHON": python,
        "SPARK_DAEMON_JAVA_OPTS": _small_jvm(),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_HOSTNAME": "localhost",
        "SPARK_LOCAL_IP": HOST,
        **(extra or {}),
    }


def local_conf() -> dict[str, str]:
    """Settings of a driver on this machine: bound to 127.0.0.1, without web pages, logging warnings only."""
    return {
        "spark.driver.bindAddress": HOST,
        "spark.driver.host": HOST,
        "spark.log.level": "WARN",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(STATE / "spark-warehouse"),
        "spark.ui.enabled": "false",
    }


def jars_env(*sets: str) -> dict[str, str]:
    """The environment of a driver with jar sets behind Spark's own jars, of which there is class data."""
    return {"SPARK_DIST_CLASSPATH": os.pathsep.join(class_path(name) for name in sets)}


def jars_conf(*sets: str) -> dict[str, str]:
    """Settings that put jar sets on the class path of driver and executors."""
    path = os.pathsep.join(class_path(name) for name in sets)
    return {"spark.driver.extraClassPath": path, "spark.executor.extraClassPath": path}


def small_jvm_conf() -> dict[str, str]:
    """Settings for jobs of seconds: less compiling at start, at the price of speed later."""
    options = _small_jvm()
    return {"spark.driver.extraJavaOptions": options, "spark.executor.extraJavaOptions": options}


def small_jvm_env() -> dict[str, str]:
    """The same for programs that make their session themselves."""
    return {"JDK_JAVA_OPTIONS": _small_jvm()}


def _small_jvm() -> str:
    return shlex.join(("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *class_data.options("spark")))


def s3a_conf(endpoint: str) -> dict[str, str]:
    """Settings for ``s3a://`` on our own server; needs the jar set spark-s3a and credentials in the environment."""
    return {
        "spark.hadoop.fs.s3a.endpoint": endpoint,
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
        "spark.hadoop.fs.s3a.aws.credentials.provider": (
            "software.amazon.awssdk.auth.credentials.EnvironmentVariableCredentialsProvider"
        ),
    }


def delta_conf() -> dict[str, str]:
    """Settings for Delta tables in SQL and as a source; needs the jar set delta-spark."""
    return {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        **small_log_conf(),
    }


def small_log_conf() -> dict[str, str]:
    """What the log of a small table needs: two tasks for each look at it, rather than 50."""
    return {"spark.databricks.delta.snapshotPartitions": "2"}


def submit_command(
    arguments: Iterable[str | Path], *, master: str = "local[2]", conf: Mapping[str, str] | None = None
) -> list[str]:
    """A spark-submit command line; ``arguments`` are the job's file and its own arguments."""
    pairs = {**local_conf(), **(conf or {})}
    options = [part for key, value in pairs.items() for part in ("--conf", f"{key}={value}")]
    return [str(spark_home() / "bin" / "spark-submit"), "--master", master, *options, *map(str, arguments)]


def spark_submit(
    *arguments: str | Path,
    master: str = "local[2]",
    conf: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 2 * HUNG,
) -> str:
    """Run a job and return what it printed; :class:`ProcessFailed` with the end of its log if it fails.

    Its JVMs are those of :func:`small_jvm_conf`, unless ``conf`` says otherwise.
    """
    command = submit_command(arguments, master=master, conf=small_jvm_conf() | dict(conf or {}))
    done = subprocess.run(command, env=spark_env(env), capture_output=True, text=True, timeout=timeout, check=False)
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-40:])
        raise ProcessFailed(f"spark-submit ended with code {done.returncode}\n{tail}")
    return done.stdout


class SparkStandalone:
    """A master and its workers under ``root``; usable with ``with``. ``workers[i]`` can be killed one by one."""

    def __init__(
        self, root: Path, *, workers: int = 2, cores: int = 1, memory: str = "1g", env: Mapping[str, str] | None = None
    ) -> None:
        """Nothing is started yet. ``cores`` and ``memory`` are those of each worker; executors inherit ``env``."""
        self._root = root.resolve()
        self._env = spark_env({"SPARK_LOG_DIR": str(self._root), **(env or {})})
        port, self._web_port = free_ports(2)
        self.master_url = f"spark://{HOST}:{port}"
        self.web_url = f"http://{HOST}:{self._web_port}"
        self.master = self._daemon("master", "master.Master", "--port", str(port), "--webui-port", str(self._web_port))
        self.workers = [self._worker(number, cores, memory) for number in range(1, workers + 1)]

    def start(self) -> Self:
        """Start the master, then the workers, and wait until all have registered."""
        self._root.mkdir(parents=True, exist_ok=True)
        try:
            self.master.start()
            self.master.wait_until(lambda: self.alive_workers() is not None)
            for worker in self.workers:
                worker.start()
            registered = f"{len(self.workers)} Spark workers to register"
            wait_until(
                lambda: self.alive_workers() == len(self.workers),
                what=registered,
                check=self._check_workers,
            )
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop all of it."""
        stop_all([*self.workers, self.master])

    def alive_workers(self) -> int | None:
        """How many workers the master counts; None if it does not answer."""
        connection = HTTPConnection(HOST, self._web_port, timeout=5)
        try:
            connection.request("GET", "/json/")
            return cast("int", json.load(connection.getresponse())["aliveworkers"])
        except (OSError, HTTPException, ValueError):
            return None
        finally:
            connection.close()

    def records(self) -> list[ProcessRecord]:
        """The running processes, for another process to stop."""
        return [process.record() for process in (*self.workers, self.master) if process.running]

    def _check_workers(self) -> None:
        for worker in self.workers:
            if not worker.running:
                raise ProcessFailed(f"{worker.name} ended\n{worker.log_tail()}")

    def _worker(self, number: int, cores: int, memory: str) -> ManagedProcess:
        """A worker at an address of its own: Spark runs no two attempts of a task on one host at once."""
        name, host = f"worker-{number}", f"127.0.0.{number}"
        port, web_port = free_ports(2)
        limits: Sequence[str] = ("--cores", str(cores), "--memory", memory, "--work-dir", str(self._root / name))
        ports = ("--port", str(port), "--webui-port", str(web_port))
        return self._daemon(name, "worker.Worker", *ports, *limits, self.master_url, host=host)

    def _daemon(self, name: str, main: str, *arguments: str, host: str = HOST) -> ManagedProcess:
        command: list[str | Path] = [
            spark_home() / "bin" / "spark-class",
            f"org.apache.spark.deploy.{main}",
            "--host",
            host,
            *arguments,
        ]
        return ManagedProcess(name, command, log=self._root / f"{name}.log", env=self._env, cwd=self._root)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class ConnectServer:
    """A Spark Connect server with its log under ``root``; usable with ``with``. ``url`` is what clients are told."""

    def __init__(
        self,
        root: Path,
        *,
        master: str = "local[2]",
        env: Mapping[str, str] | None = None,
        token: str | None = None,
    ) -> None:
        """Nothing is started yet. The server's workers inherit ``env``; with a ``token``, it asks clients for it."""
        self.port, self._web_port = free_ports(2)
        self.url = f"sc://{HOST}:{self.port}"
        pairs = {
            "spark.connect.grpc.binding.address": HOST,
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.driver.memory": "512m",
            "spark.ui.enabled": "true",
            "spark.ui.port": str(self._web_port),
            **small_jvm_conf(),
        }
        command = submit_command([ROOT / "spark" / "jobs" / "connect.py"], master=master, conf=pairs)
        secret = {} if token is None else {"SPARK_CONNECT_AUTHENTICATE_TOKEN": token}
        environment = spark_env({**secret, **(env or {})})
        log = root.resolve() / "connect.log"
        self.process = ManagedProcess("Spark Connect", command, log=log, env=environment, cwd=ROOT)

    def start(self) -> Self:
        """Start it, and wait until clients can connect, and its page tells of them: that comes a little later."""
        try:
            self.process.start()
            self.process.wait_until(lambda: not is_free(self.port))
            self.process.wait_until(lambda: self._sessions_told() is not None, what="page")
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop it."""
        self.process.stop()

    def running_jobs(self) -> int:
        """How many jobs the server runs at this moment."""
        [application] = json.loads(self._asked("/api/v1/applications"))
        return len(json.loads(self._asked(f"/api/v1/applications/{application['id']}/jobs?status=running")))

    def online_sessions(self) -> int:
        """How many clients' sessions the server holds, as its page for people says."""
        found = self._sessions_told()
        if found is None:
            raise ProcessFailed(f"{self.process.name}: its page does not say how many sessions there are")
        return found

    def _sessions_told(self) -> int | None:
        try:
            page = self._asked("/connect/")
        except ConnectionRefusedError:
            return None
        found = re.search(r"(\d+)\s+session\(s\)\s+are online", page)
        return int(found[1]) if found else None

    def _asked(self, path: str) -> str:
        connection = HTTPConnection(HOST, self._web_port, timeout=HUNG)
        try:
            connection.request("GET", path)
            return connection.getresponse().read().decode()
        finally:
            connection.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
