"""An agent as a process of its own, over a disk and a store made by hand, for what signals and sockets do to it."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self
from unittest.mock import patch

from tests.support.paths import ROOT
from tests.support.ports import free_ports
from tests.support.process import ManagedProcess
from tests.support.tuned_agent import argument, split
from tests.support.waiting import wait_until
from tests.uploader_agent.fakes import CLUSTER, Disk, T
from tests.uploader_agent.in_process import run_here
from tests.uploader_agent.operated_agent import replaced
from tidemark.formats.keys import ControlKeys, Endpoint, PartitionKeys, TopicPartition
from tidemark.formats.raw.watermark import parse
from tidemark.store import LocalStore
from uploader_agent.cli import common


class Operated:
    """The files of one agent, and its processes."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self.root = root
        self.disk = Disk(root / "disk")
        self.store = LocalStore(root / "store")
        self.control = ControlKeys("", CLUSTER)
        self.config = root / "agent.yaml"
        self.gates = root / "gates"
        self.gates.mkdir()
        [self.port] = free_ports(1)
        properties = root / "server.properties"
        dirs = ",".join(map(str, self.disk.log_dirs))
        properties.write_text(f"process.roles=broker\nnode.id=1\nlog.dirs={dirs}\nlisteners=PLAINTEXT://127.0.0.1:1\n")
        self.settings: dict[str, Any] = {}
        self.tuning: dict[str, Any] = {}
        own = {
            "broker": {"properties": str(properties)},
            "raw": {"url": self.store.url},
            "state_dir": str(root / "state"),
            "http": {"port": self.port},
            "retry_initial": "10ms",
            "retry_cap": "20ms",
            "log": {"format": "json"},
        }
        self.configure(**{**own, **settings})

    def configure(self, **settings: Any) -> None:
        """Change settings, and what is tuned at the next start."""
        given, tuning = split(settings)
        self.settings |= given
        self.tuning |= tuning
        self.config.write_text(json.dumps(self.settings))

    def process(self, *command: str, env: Mapping[str, str] | None = None) -> ManagedProcess:
        """``tidemark-agent <command>``, or ``run``; not started yet."""
        module = [sys.executable, "-m", "tests.uploader_agent.operated_agent", str(self.gates)]
        log, chosen = self.root / "agent.log", command or ("run",)
        arguments = [*module, argument(self.tuning), "--", *chosen, "-c", str(self.config)]
        return ManagedProcess("agent", arguments, log=log, env={**os.environ, **(env or {})}, cwd=ROOT)

    def once(self, env: Mapping[str, str] | None = None) -> int:
        """The exit code of ``upload-once`` in this process."""
        with ExitStack() as stack:
            for name, value in replaced(self.gates).items():
                stack.enter_context(patch.object(common, name, value))
            return run_here(["upload-once", "-c", self.config], self.root / "agent.log", env, tuning=self.tuning)

    def shut(self, gate: str) -> None:
        (self.gates / gate).touch()

    def open(self, gate: str) -> None:
        (self.gates / gate).unlink()

    def begun(self) -> list[str]:
        """Keys of the PUTs of ``.log`` that have begun."""
        path = self.gates / "begun"
        return path.read_text().splitlines() if path.exists() else []

    def log(self) -> str:
        return (self.root / "agent.log").read_text()

    def events(self, name: str) -> list[dict[str, Any]]:
        """Lines of the log with this event."""
        lines = [json.loads(line) for line in self.log().splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == name]

    def keys(self, at: TopicPartition = T) -> PartitionKeys:
        return PartitionKeys(Endpoint(self.store.url), CLUSTER, at.topic, at.partition)

    def covered(self, at: TopicPartition = T) -> int:
        """Where ``offset.wm`` stands; -1 if there is none."""
        key = self.keys(at).watermark
        if not any(self.store.list(key)):
            return -1
        _, watermark = parse(self.store.get(key).body, key)
        return watermark.next_offset if watermark else -1

    def await_covered(self, agent: ManagedProcess, end: int, at: TopicPartition = T) -> None:
        agent.wait_until(lambda: self.covered(at) == end, what=f"covers {at} up to {end}")


class Manager:
    """The service manager's end of the notification socket."""

    def __init__(self, address: str) -> None:
        """``address`` as in NOTIFY_SOCKET: a path, or ``@`` and a name."""
        self.address = address
        self.told: list[dict[str, str]] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"\0{address[1:]}" if address.startswith("@") else address)

    def receive(self, timeout: float) -> bool:
        """Take in the next message; False if none came."""
        self._socket.settimeout(timeout)
        try:
            message = self._socket.recv(4096).decode()
        except TimeoutError:
            return False
        self.told.append(dict(line.split("=", 1) for line in message.splitlines()))
        return True

    def await_told(self, agent: ManagedProcess, name: str, value: str, *, times: int = 1) -> None:
        """Wait until this was said so often."""

        def said() -> bool:
            self.receive(0.05)
            return sum(one.get(name) == value for one in self.told) >= times

        agent.wait_until(said, what=f"said {name}={value}")

    def drain(self) -> None:
        """Take in all that has been sent."""
        wait_until(lambda: not self.receive(0.01), what="an empty socket", interval=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
