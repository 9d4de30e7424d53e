"""Hadoop's YARN on this machine: a ResourceManager that keeps its state, and a NodeManager, each a JVM of its own."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, Final, Self, cast
from xml.sax.saxutils import escape

from tests.support.jars import class_path
from tests.support.java import java
from tests.support.ports import HOST, free_ports
from tests.support.process import ManagedProcess, stop_all
from tests.support.spark import spark_home

_JVM: Final = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dlog4j2.level=WARN")
_SERVER: Final = "org.apache.hadoop.yarn.server"
_MEMORY_MB: Final = 4096


class Yarn:
    """A cluster of one node under ``root``, with this machine's files; usable with ``with``. It has no security."""

    def __init__(self, root: Path) -> None:
        """Nothing is started yet."""
        self._root = root.resolve()
        self.conf = self._root / "conf"
        """What ``HADOOP_CONF_DIR`` of clients is to name."""
        ports = free_ports(9)
        self._web_port = ports[0]
        self.url = f"http://{HOST}:{self._web_port}"
        self._write_conf(ports)
        self.resource_manager = self._daemon("resource-manager", f"{_SERVER}.resourcemanager.ResourceManager")
        self.node_manager = self._daemon("node-manager", f"{_SERVER}.nodemanager.NodeManager")

    def __enter__(self) -> Self:
        try:
            self.start_resource_manager()
            self.node_manager.start()
            self.node_manager.wait_until(lambda: self._nodes() == 1, what="a node that YARN can use")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        stop_all([self.node_manager, self.resource_manager])

    def start_resource_manager(self) -> None:
        """Start it, also after it was killed, and wait until it answers."""
        self.resource_manager.start()
        self.resource_manager.wait_until(lambda: self._nodes() is not None)

    def applications(self) -> list[dict[str, Any]]:
        """All of them, as the REST API has them, the first submitted first."""
        found = (self._asked("apps") or {}).get("apps") or {}
        return sorted(found.get("app", []), key=lambda one: str(one["id"]))

    def client_env(self) -> dict[str, str]:
        """What lets spark-submit find it."""
        return {"HADOOP_CONF_DIR": str(self.conf), "YARN_CONF_DIR": str(self.conf)}

    def spark_conf(self, python: Path) -> dict[str, str]:
        """Settings of a small application that uses ``python`` and Spark's jars where they lie."""
        given = {"PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": HOST, "SPARK_LOCAL_HOSTNAME": "localhost"}
        return {
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.executor.instances": "1",
            "spark.yarn.jars": f"local:{spark_home()}/jars/*",
            "spark.yarn.stagingDir": f"file://{self._root}/staging",
            **{f"spark.yarn.appMasterEnv.{name}": value for name, value in given.items()},
            **{f"spark.executorEnv.{name}": value for name, value in given.items()},
        }

    def _nodes(self) -> int | None:
        """How many nodes it can use; None if it does not answer."""
        found = self._asked("nodes?states=RUNNING")
        return None if found is None else len((found["nodes"] or {}).get("node", []))

    def _asked(self, path: str) -> dict[str, Any] | None:
        connection = HTTPConnection(HOST, self._web_port, timeout=10)
        try:
            connection.request("GET", f"/ws/v1/cluster/{path}", headers={"Accept": "application/json"})
            answer = connection.getresponse()
            return cast("dict[str, Any]", json.load(answer)) if answer.status == HTTPStatus.OK else None
        except (OSError, HTTPException, ValueError):
            return None
        finally:
            connection.close()

    def _daemon(self, name: str, main: str) -> ManagedProcess:
        jars = f"{spark_home()}/jars/*"
        path = os.pathsep.join((str(self.conf), str(self._root / "web"), class_path("yarn"), jars))
        command: list[str | Path] = [java(), *_JVM, "-cp", path, main]
        return ManagedProcess(name, command, log=self._root / f"{name}.log", cwd=self._root)

    def _write_conf(self, ports: list[int]) -> None:
        web, *others = (f"{HOST}:{port}" for port in ports)
        names = ("", ".scheduler", ".resource-tracker", ".admin")
        settings = {f"yarn.resourcemanager{one}.address": others.pop() for one in names}
        settings |= {f"yarn.nodemanager{one}.address": others.pop() for one in ("", ".localizer", ".webapp")}
        settings |= {
            "yarn.resourcemanager.hostname": HOST,
            "yarn.resourcemanager.webapp.address": web,
            "yarn.resourcemanager.recovery.enabled": "true",
            "yarn.resourcemanager.store.class": f"{_SERVER}.resourcemanager.recovery.FileSystemRMStateStore",
            "yarn.resourcemanager.fs.state-store.uri": f"file://{self._root}/state",
            "yarn.resourcemanager.scheduler.class": f"{_SERVER}.resourcemanager.scheduler.fifo.FifoScheduler",
            "yarn.resourcemanager.nodemanagers.heartbeat-interval-ms": "200",
            "yarn.scheduler.minimum-allocation-mb": "128",
            "yarn.nodemanager.hostname": HOST,
            "yarn.nodemanager.local-dirs": str(self._root / "local"),
            "yarn.nodemanager.log-dirs": str(self._root / "logs"),
            "yarn.nodemanager.resource.memory-mb": str(_MEMORY_MB),
            "yarn.nodemanager.resource.cpu-vcores": "4",
            "yarn.nodemanager.pmem-check-enabled": "false",
            "yarn.nodemanager.vmem-check-enabled": "false",
            # A full disk of the machine is not what is tested.
            "yarn.nodemanager.disk-health-checker.enable": "false",
        }
        self.conf.mkdir(parents=True)
        core = {"fs.defaultFS": "file:///", "hadoop.tmp.dir": str(self._root / "tmp")}
        (self.conf / "core-site.xml").write_text(_xml(core))
        (self.conf / "yarn-site.xml").write_text(_xml(settings))
        # The pages of the two, which the jar does not have; the REST API needs that their folders are there.
        for name in ("cluster", "node", "static"):
            (self._root / "web" / "webapps" / name).mkdir(parents=True)


def _xml(settings: Mapping[str, str]) -> str:
    pairs = (f"<name>{name}</name><value>{escape(text)}</value>" for name, text in settings.items())
    return f"<configuration>{''.join(f'<property>{pair}</property>' for pair in pairs)}</configuration>"
