"""What ``make down`` stops, and what keeps a demo from removing the folder of the one before."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from demo import __main__, processes, stack
from demo.processes import StillRunning, down, living_in, recorded
from demo.steps import Steps
from tests.support.process import ManagedProcess
from tests.support.waiting import wait_until

DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a demo, which the tests' own directories are not a part of."""
    home = tmp_path / "demo"
    home.mkdir()
    for module in (processes, stack):
        monkeypatch.setattr(module, "HOME", home)
    return home


def sleeper(name: str, home: Path, *, code: str = "import time; time.sleep(600)", **more: Any) -> ManagedProcess:
    return ManagedProcess(name, [sys.executable, "-c", code], log=home / f"{name}.log", **more)


@pytest.fixture
def made(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[stack.Stack]:
    """A demo whose parts do nothing, started."""
    made = stack.Stack(Steps())
    parts = [sleeper(name, home) for name in ("broker-2", "controller", "agent-1", "spark", "store")]
    broker, made.kafka.coordinator, agent, made.spark.process, made.s3.process = parts

    def restart() -> None:
        broker.stop()
        broker.start()

    made.kafka.brokers = [SimpleNamespace(process=broker, node_id=2, restart=restart)]  # type: ignore[list-item]
    made.agents = [SimpleNamespace(process=agent)]  # type: ignore[list-item]
    for part in parts:
        part.start()
    yield made
    for part in parts:
        part.kill()


def test_a_broker_that_the_demo_restarted_ends_with_the_rest(made: stack.Stack) -> None:
    made.record()
    before = made.kafka.brokers[0].process.pid
    made.restart_broker()
    wait_until(lambda: before not in {one.pid for one in recorded()}, what="the restart to be recorded")
    after = made.kafka.brokers[0].process.pid

    assert [one.name for one in recorded()] == ["spark", "agent-1", "broker-2", "controller", "store"]
    down(Steps())

    assert not psutil.pid_exists(after) or psutil.Process(after).status() == psutil.STATUS_ZOMBIE
    assert recorded() == []


def test_what_does_not_end_by_itself_is_killed(home: Path) -> None:
    with sleeper("deaf", home, code=DEAF) as deaf:
        deaf.wait_until(lambda: "deaf" in deaf.log.read_text())
        processes.record([deaf.record()])

        down(Steps(), timeout=0.1)

        assert not deaf.running


@pytest.mark.parametrize("where", ["directory", "argument", "option"])
def test_the_folder_of_a_process_that_nobody_recorded_stays(
    home: Path, tmp_path: Path, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "kafka").mkdir()
    named = {"argument": f"{home}/kafka/server.properties", "option": f"-Dlog.dir={home}/kafka"}.get(where, "")
    command = [sys.executable, "-c", "import time; time.sleep(600)", named]
    with subprocess.Popen(command, cwd=home / "kafka" if where == "directory" else tmp_path) as process:
        try:
            # Between fork and exec, the child has this process's directory and command line.
            wait_until(lambda: [one.pid for one in living_in(home)] == [process.pid], what="the process to be seen")
            with pytest.raises(StillRunning, match=f"end these processes:\n  {process.pid}: "):
                stack.Stack(Steps())
            assert __main__.main(["down"]) == 2
            assert str(process.pid) in capsys.readouterr().err
        finally:
            process.kill()

    assert (home / "kafka").exists()
    stack.Stack(Steps())
    assert not (home / "kafka" / "server.properties").exists()


def test_a_folder_of_a_similar_name_is_another(home: Path) -> None:
    other = home.with_name("demo-2")
    other.mkdir()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", str(other)], cwd=other) as process:
        try:
            wait_until(lambda: [one.pid for one in living_in(other)] == [process.pid], what="the process to be seen")
            assert living_in(home) == []
        finally:
            process.kill()


def test_hosts_of_jobs_end_with_their_demo_and_no_others(home: Path) -> None:
    code = "import sys; print('here', flush=True); sys.stdin.read()"
    hosts = [
        subprocess.Popen(
            [sys.executable, "-c", code, "tidemark_spark.cluster.job_host"],
            env={**os.environ, "SPARK_CONF_DIR": str(of / "spark-conf")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for of in (home, home.with_name("demo-2"))
    ]
    for host in hosts:
        assert host.stdout is not None
        assert host.stdout.readline() == b"here\n"
    down(Steps())
    assert [psutil.pid_exists(host.pid) for host in hosts] == [False, True]
    for host in hosts:
        host.communicate(timeout=60)
