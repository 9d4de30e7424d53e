"""Every error in the agent's file, the broker's files and the command line is one message, from each command."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.uploader_agent.in_process import run_here

JSON = ("--output", "json")
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("upload-once", *JSON),
    ("status", *JSON),
    ("plan", *JSON),
    ("leaders", *JSON),
    ("verify", *JSON),
    ("adopt", "orders", *JSON),
    ("reupload", "orders", "0", *JSON),
    ("config", "check", *JSON),
    ("run",),
)
ONCE = tuple(command for command in COMMANDS if command != ("run",))
"""`run` waits for a log directory that it can read."""

BROKER = "node.id=1\nprocess.roles=broker\nlisteners=PLAINTEXT://127.0.0.1:1\nlog.dirs=LOGS\n"
META = "version=1\nnode.id=1\ncluster.id=abcdefghijklmnopqrstuv\n"


@dataclass(frozen=True)
class Fault:
    """What a person did to the agent's file or the broker's, what the message says, and the exit code."""

    says: str
    settings: Mapping[str, object] = field(default_factory=dict)
    text: str | None = None
    broker: str = BROKER
    meta: str = META
    code: int = 2
    of: tuple[tuple[str, ...], ...] = COMMANDS


FAULTS = {
    "no YAML": Fault("agent.yaml: is not valid YAML: line 1", text="a: ["),
    "an unknown key": Fault("tail_aftr: is not a known key; did you mean tail_after?", {"tail_aftr": "1h"}),
    "a length of time without a unit": Fault("tail_after: must be a number with a unit", {"tail_after": "soon"}),
    "no regular expression": Fault("include.0: is not a valid regular expression", {"include": ["["]}),
    "an endpoint that is no URL": Fault("must be a URL such as", {"store": {"endpoint_url": "http://h:99999"}}),
    "no backend": Fault(
        "nowhere:Store: names nothing that can be imported",
        {"raw": {"url": "other://raw"}, "store": {"backend": "nowhere:Store"}},
        of=COMMANDS[:5],
    ),
    "no file of the broker": Fault("/none: cannot be read", {"broker": {"properties": "/none"}}),
    "a bootstrap that is none": Fault("broker.bootstrap: ", {"broker": {"properties": "BROKER", "bootstrap": "a:b"}}),
    "a client's option of another type": Fault(
        "broker.client: request_timeout_ms must be a whole number",
        {"broker": {"properties": "BROKER", "client": {"request_timeout_ms": "soon"}}},
    ),
    "a client's protocol that is none": Fault(
        "broker.client: security_protocol must be one of",
        {"broker": {"properties": "BROKER", "client": {"security_protocol": "TLS"}}},
    ),
    "a listener of no protocol": Fault(
        "listener.security.protocol.map: does not name the protocol of CLIENTS",
        broker=BROKER.replace("PLAINTEXT:", "CLIENTS:"),
    ),
    "a map of listeners that is none": Fault(
        "listener.security.protocol.map: 'PLAINTEXT' is not <listener>:<protocol>",
        broker=f"{BROKER}listener.security.protocol.map=PLAINTEXT\n",
    ),
    "no log directory": Fault("no directory of /none has a readable", broker=BROKER.replace("LOGS", "/none"), of=ONCE),
    "another broker's directory": Fault("node.id: meta.properties and", meta=META.replace("id=1", "id=2")),
    "a directory of no known version": Fault("version 9 is neither 0 nor 1", meta="version=9\n", of=ONCE),
    "a state directory that cannot be": Fault(
        "state_dir cannot be created: Not a directory: '/dev/null/state'",
        {"state_dir": "/dev/null/state"},
        code=1,
        of=(("upload-once",), ("run",)),
    ),
    "an address that is not here": Fault(
        "http: cannot listen on 192.0.2.1:80", {"http": {"host": "192.0.2.1", "port": 80}}, code=1, of=(("run",),)
    ),
    "no such topic": Fault(
        "nothing: has no partition in",
        code=1,
        of=tuple(
            (one, *more)
            for one, more in (
                ("plan", ("--topic", "nothing")),
                ("leaders", ("--topic", "nothing")),
                ("verify", ("--topic", "nothing")),
                ("adopt", ("nothing",)),
            )
        ),
    ),
    "no such partition": Fault("orders-7: has no directory in", code=1, of=(("reupload", "orders", "7"),)),
    "no such partition to adopt": Fault(
        "has no such partition: run this on", code=1, of=(("adopt", "orders", "--partition", "7"),)
    ),
    "a topic that the file leaves out": Fault(
        "the agent's file excludes __orders", of=(("plan", "--topic", "__orders"), ("verify", "--topic", "__orders"))
    ),
    "a number that is none": Fault("should be a valid integer", of=(("reupload", "orders", "x"),)),
    "an output of no kind": Fault("--output", of=(("status", "-o", "xml"), ("config", "check", "-o", "xml"))),
    "no such command": Fault("No such command", of=(("upload",),)),
}


def place(folder: Path, fault: Fault) -> Path:
    """The agent's file with the fault, beside a broker's files."""
    logs = folder / "logs"
    (logs / "orders-0").mkdir(parents=True)
    (logs / "meta.properties").write_text(fault.meta)
    (folder / "raw").mkdir()
    broker = folder / "server.properties"
    broker.write_text(fault.broker.replace("LOGS", str(logs)))
    settings: dict[str, Any] = {"broker": {"properties": "BROKER"}, "raw": {"url": f"file://{folder}/raw"}}
    settings |= {"state_dir": str(folder / "state"), **fault.settings}
    path = folder / "agent.yaml"
    path.write_text(json.dumps(settings).replace("BROKER", str(broker)) if fault.text is None else fault.text)
    return path


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one_message(fault: str, tmp_path: Path) -> None:
    one = FAULTS[fault]
    path = place(tmp_path, one)
    for command in one.of:
        log = tmp_path / "-".join(command).replace("/", "_")
        code = run_here([*command, "--config", path], log)
        said = log.read_text()
        flat = " ".join(said.replace("│", " ").split())
        assert (command, code, one.says in flat) == (command, one.code, True), said
        assert "Traceback" not in said


@pytest.mark.parametrize("kind", ["missing", "a directory", "no text"])
def test_a_file_that_cannot_be_read_is_one_message(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    if kind == "a directory":
        path.mkdir()
    elif kind == "no text":
        path.write_bytes(b"\xff\xfe")
    for command in COMMANDS:
        log = tmp_path / command[0]
        assert (command, run_here([*command, "--config", path], log)) == (command, 2)
        assert log.read_text().startswith(f"{path}: cannot be read: ")
        assert len(log.read_text().splitlines()) == 1


@pytest.mark.usefixtures("quick_retries")
def test_a_broker_that_is_down_is_not_taken_for_one_without_partitions(tmp_path: Path) -> None:
    settings = {"broker": {"properties": "BROKER", "client": {"bootstrap_timeout_ms": 100}}}
    path = place(tmp_path, Fault("", settings))
    for command in COMMANDS[:5]:
        log = tmp_path / command[0]
        assert (command, run_here([*command, "--config", path], log)) == (command, 1), log.read_text()
        for line in log.read_text().splitlines():
            if line.startswith("{"):
                json.loads(line)
        assert "the broker cannot be asked" in log.read_text()
        assert "Traceback" not in log.read_text()
