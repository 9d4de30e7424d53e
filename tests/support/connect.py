"""Kafka Connect in one process, with the connectors that a set of jars has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.jars import class_path
from tests.support.java import java
from tests.support.kafka_broker import SMALL_JVM
from tests.support.kafka_config import Properties, write_properties
from tests.support.ports import HOST, free_port
from tests.support.process import ManagedProcess


def connect(
    jars: str,
    folder: Path,
    bootstrap: str,
    worker: Mapping[str, str],
    connectors: Sequence[Properties],
    *,
    jvm: Sequence[str] = SMALL_JVM,
    env: Mapping[str, str] | None = None,
) -> ManagedProcess:
    """A worker with ``connectors``, which keeps its positions and its log in ``folder``; start it with ``with``.

    ``worker`` are further properties of it.
    """
    properties = {
        "bootstrap.servers": bootstrap,
        "listeners": f"http://{HOST}:{free_port()}",
        "offset.storage.file.filename": str(folder / "offsets"),
        "plugin.discovery": "service_load",
        **worker,
    }
    files = [folder / "worker.properties"]
    write_properties(files[0], properties)
    for connector in connectors:
        files.append(folder / f"{connector['name']}.properties")
        write_properties(files[-1], connector)
    command: list[str | Path] = [java(), *jvm, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", class_path(jars)]
    command += ["org.apache.kafka.connect.cli.ConnectStandalone", *files]
    return ManagedProcess("connect", command, log=folder / "connect.log", env=env, cwd=folder)
