"""What an operator does to a running agent: signals, questions over HTTP, the service manager. Real processes."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.waiting import HUNG
from tests.uploader_agent.in_process import run_here
from tests.uploader_agent.operated import Manager, Operated
from tests.uploader_agent.test_run import get
from tidemark.formats.keys import TopicPartition

OTHER = TopicPartition("payments", 0)


@pytest.fixture
def operated(tmp_path: Path) -> Operated:
    made = Operated(tmp_path)
    made.disk.partition().fill(0, 100, end=200)
    return made


def test_sigterm_waits_for_a_slow_upload(operated: Operated) -> None:
    operated.shut("slow")
    operated.configure(upload={"concurrency": 2})
    manager = Manager(f"@tidemark-{operated.port}")  # an abstract address
    with manager, operated.process(env={"NOTIFY_SOCKET": manager.address}) as agent:
        agent.wait_until(lambda: len(operated.begun()) == 1, what="sends")
        agent.send(signal.SIGTERM)
        manager.await_told(agent, "STOPPING", "1")
        with pytest.raises(subprocess.TimeoutExpired):
            agent.wait(1)
        assert operated.covered() == 0
        operated.open("slow")
        assert agent.wait(HUNG) == 0, operated.log()
    assert len(operated.begun()) == 1, "nothing new was begun"
    assert operated.covered() == 100
    assert any(operated.store.list(operated.control.index(1)))


def test_sigterm_waits_no_longer_than_drain(operated: Operated) -> None:
    operated.shut("slow")
    operated.configure(drain="200ms")
    with operated.process() as agent:
        agent.wait_until(lambda: bool(operated.begun()), what="sends")
        agent.send(signal.SIGTERM)
        assert agent.wait(HUNG) == 0, operated.log()
    assert operated.events("drain_timed_out")
    operated.open("slow")
    assert operated.once() == 0, operated.log()
    assert operated.covered() == 200


def test_a_second_agent_refuses_to_start(operated: Operated) -> None:
    with operated.process() as agent:
        operated.await_covered(agent, 200)
        operated.configure(state_dir=str(operated.root / "another"))
        assert operated.once() == 1
        assert "another agent uses this directory" in operated.log()
        assert agent.running


def test_sighup_applies_what_can_change(operated: Operated, tmp_path: Path) -> None:
    operated.disk.partition(OTHER).fill(0, end=50)
    operated.configure(include=["orders"])
    manager = Manager(str(tmp_path / "notify"))
    with manager, operated.process(env={"NOTIFY_SOCKET": manager.address}) as agent:
        manager.await_told(agent, "READY", "1")
        operated.await_covered(agent, 200)
        assert operated.covered(OTHER) == -1
        operated.configure(include=["payments"], upload={"concurrency": 12}, log={"format": "json", "level": "debug"})
        agent.send(signal.SIGHUP)
        operated.await_covered(agent, 50, OTHER)
        assert 'tidemark_agent_reloads_total{result="applied"} 1.0' in get(operated.port, "/metrics")[1]
        assert "tidemark_agent_led_partitions 1.0" in get(operated.port, "/metrics")[1]
        manager.await_told(agent, "READY", "1", times=2)
    order = [name for one in manager.told for name in one if name in {"READY", "RELOADING"}]
    assert order == ["READY", "RELOADING", "READY"]
    assert all(one["MONOTONIC_USEC"].isdecimal() for one in manager.told if "RELOADING" in one)
    [applied] = operated.events("reload_applied")
    changed = {"include", "upload.concurrency", "log.level"}
    assert set(applied["changed"]) == changed


def test_sighup_refuses_as_a_whole_what_cannot_change(operated: Operated) -> None:
    operated.disk.partition(OTHER).fill(0, end=50)
    operated.configure(include=["orders"])
    with operated.process() as agent:
        operated.await_covered(agent, 200)
        operated.configure(include=[".*"], store={"region": "eu-west-1"}, http={"port": 1}, state_dir="/elsewhere")
        agent.send(signal.SIGHUP)
        agent.wait_until(lambda: len(operated.events("reload_refused")) == 1)
        operated.config.write_text("tail_after: 5\n")
        agent.send(signal.SIGHUP)
        agent.wait_until(lambda: len(operated.events("reload_refused")) == 2)
        assert 'tidemark_agent_reloads_total{result="refused"} 2.0' in get(operated.port, "/metrics")[1]
    fixed, invalid = (one["error"] for one in operated.events("reload_refused"))
    assert [line.split(": ")[1] for line in fixed.splitlines()] == ["state_dir", "store.region", "http.port"]
    assert "restart it" in fixed
    assert "tail_after" in invalid
    assert operated.covered(OTHER) == -1, "nothing of a refused file is applied"


def test_the_watchdog_hears_of_each_turn_and_of_nothing_else(operated: Operated) -> None:
    address = str(operated.root / "notify")
    env = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "300000"}
    # Nothing but the watchdog wakes the loop once all is uploaded.
    operated.configure(scan_interval="1h", metadata_interval="1h")
    with Manager(address) as manager, operated.process(env=env) as agent:
        manager.await_told(agent, "READY", "1")
        manager.await_told(agent, "WATCHDOG", "1", times=4)
        operated.shut("deaf")
        agent.wait_until((operated.gates / "deaf-reached").exists, what="stands still")
        manager.drain()
        assert not manager.receive(1.0), "the loop does not turn"
        operated.open("deaf")
        assert manager.receive(10)
    assert "1 partitions led" in manager.told[-1]["STATUS"]


def test_no_manager_no_messages_and_a_manager_that_went_away_harms_nobody(operated: Operated) -> None:
    with operated.process(env={"NOTIFY_SOCKET": str(operated.root / "nobody"), "WATCHDOG_USEC": "30000"}) as agent:
        operated.await_covered(agent, 200)
        agent.send(signal.SIGTERM)
        assert agent.wait(HUNG) == 0
    [line] = operated.events("service_manager_not_told")
    assert line["level"] == "warning"


def test_an_outage_of_the_store_is_not_healthy_and_over_when_it_is_over(operated: Operated) -> None:
    operated.configure(stuck_after="300ms")
    operated.shut("refuse")
    with operated.process() as agent:
        agent.wait_until(lambda: "the last failure" in told(operated, "/-/healthy", 503), what="not healthy, and why")
        body = told(operated, "/-/healthy", 503)
        assert "nothing was finished for" in body
        assert "jobs are waiting; the last failure: orders-0: AccessDenied" in body
        assert "healthy" not in body
        operated.open("refuse")
        operated.await_covered(agent, 200)
        agent.wait_until(lambda: answers(operated, "/-/healthy", 200), what="healthy")
        agent.wait_until(lambda: bool(operated.events("healthy_again")), what="says so")
    assert {said["level"] for said in operated.events("unhealthy")} == {"error"}


def answers(operated: Operated, path: str, status: int) -> bool:
    try:
        return get(operated.port, path)[0] == status
    except OSError:
        return False  # it does not listen yet


def told(operated: Operated, path: str, status: int) -> str:
    """The answer's body; empty if it is another status or there is no answer."""
    try:
        found, body = get(operated.port, path)
    except OSError:
        return ""
    return body if found == status else ""


SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "key-of-the-store",
    "AWS_SESSION_TOKEN": "token-of-the-store",
    "AZURE_STORAGE_ACCOUNT_KEY": "key-of-the-account",
    "TIDEMARK_AGENT__BROKER__CLIENT__SSL_PASSWORD": "hunter2-of-ssl",
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("form", ["json", "console"])
def test_no_secret_is_logged(operated: Operated, form: str) -> None:
    """Neither by errors and tracebacks that quote it, nor by commands, nor by a file that is wrong."""
    client = {"sasl_plain_username": "agent", "sasl_plain_password": "hunter2-of-sasl"}
    operated.configure(broker={**operated.settings["broker"], "client": client}, log={"format": form, "level": "debug"})
    operated.shut("quote")
    with operated.process(env=SECRETS) as agent:
        agent.wait_until(lambda: "RuntimeError" in operated.log(), what="fails")
        operated.configure(broker={**operated.settings["broker"], "client": client | {"ssl_ca": "x"}})
        agent.send(signal.SIGHUP)
        agent.wait_until(lambda: "reload_refused" in operated.log(), what="refuses")
        operated.config.write_text("broker: {client: {sasl_plain_password: hunter2-of-sasl: [")
        assert run_here(["config", "check", "-c", operated.config], operated.root / "agent.log", SECRETS) == 2
        operated.shut("crash")
        assert agent.wait(HUNG) == 1
    log = operated.log()
    assert "crashed" in log
    assert "signed with *** or ***, logged in with ***" in log
    assert "knows no ssl_ca" in log
    assert "is not valid YAML: line 1" in log
    for secret in [*SECRETS.values(), "hunter2-of-sasl"]:
        assert secret not in log


def test_the_start_says_where_holding_is_weaker_than_asked_for(operated: Operated) -> None:
    """As `config check` does: here no directory can be made for the links."""
    (operated.root / "file").touch()
    operated.configure(hold={"links": [str(operated.root / "file" / "links")]})
    properties = operated.root / "server.properties"
    usual = properties.read_text()
    properties.write_text(f"{usual}log.segment.delete.delay.ms=1000\n")
    assert operated.once() == 0, operated.log()
    [weaker] = operated.events("holding_is_weaker")
    assert (weaker["log_dir"], weaker["means"]) == (str(operated.disk.log_dirs[0]), "descriptors")
    assert "no hard link of" in weaker["because"]
    [delay] = operated.events("delete_delay_too_short")
    assert (delay["value"], delay["at_least"]) == (1000, 60_000)
    (operated.root / "agent.log").write_text("")
    operated.configure(hold={})
    properties.write_text(usual)
    assert operated.once() == 0, operated.log()
    assert operated.events("holding_is_weaker") == operated.events("delete_delay_too_short") == []
