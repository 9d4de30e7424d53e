"""The watch's tasks, where a run on Airflow's own processes would take too long to show it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowSkipException

from tests.plugins.world import CLUSTER, World, entry, gap
from tests.support.receivers import HookServer, SmtpServer, alert_env
from tests.support.waiting import wait_until
from tidemark.errors import ConfigError, PreconditionFailed, StoreError
from tidemark.monitoring import incident_store
from tidemark.timestamps import utc_now
from tidemark_airflow.dag_factories import monitor
from tidemark_airflow.dag_factories.monitor import DueMessage, deliver, find_place, observe, on_blind

KEY = "gap/kafka-1/orders/0-0/100"


class Variables:
    """Airflow's variables, of one test."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def get(self, key: str, default: Any = None, **_: Any) -> Any:
        return self.values.get(key, default)

    def set(self, key: str, value: Any, **_: Any) -> None:
        self.values[key] = value

    def delete(self, key: str) -> None:
        del self.values[key]


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Variables:
    made = Variables()
    monkeypatch.setattr(monitor, "Variable", made)
    dag = DAG("watched", schedule=None)
    dag.fileloc = str(tmp_path / "dag.py")
    monkeypatch.setattr(monitor, "get_current_context", lambda: {"dag": dag})
    return made


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[HookServer]:
    with HookServer() as server, SmtpServer() as smtp:
        for name, value in alert_env(smtp, server).items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture
def notes(world: World, variables: Variables, hook: HookServer) -> list[DueMessage]:
    """What is due after a look that finds a gap."""
    world.put_index(entry("orders", 0, 100, gaps=[gap(100, 150)]))
    return observe()


def test_a_note_is_small_and_there_is_one_for_each_notifier(notes: list[DueMessage]) -> None:
    assert [(one["notifier"], one["key"]) for one in notes] == [("hook", KEY), ("mail", KEY)]
    assert observe() == notes, "what was not sent is due again"


def test_killed_between_sending_and_recording_it_is_sent_again_with_the_same_id(
    notes: list[DueMessage], hook: HookServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(incident_store, "change_incidents", killed)
        with pytest.raises(KeyboardInterrupt):
            deliver(notes[0])
    deliver(notes[0])

    assert hook.told == [(KEY, "opened")] * 2
    assert hook.bodies[0]["id"] == hook.bodies[1]["id"]
    with pytest.raises(AirflowSkipException):
        deliver(notes[0])
    assert [one["notifier"] for one in observe()] == ["mail"]


def test_what_changes_while_a_message_is_on_its_way_is_not_lost(
    notes: list[DueMessage], world: World, hook: HookServer
) -> None:
    def grow() -> None:
        hook.before_answer = lambda: None
        world.put_index(entry("orders", 0, 100, gaps=[gap(100, 200)]))
        observe()

    hook.before_answer = grow
    deliver(notes[0])
    again = [one for one in observe() if one["notifier"] == "hook"]
    deliver(again[0])

    assert hook.told == [(KEY, "opened"), (KEY, "updated")]


def test_a_lake_that_does_not_answer_is_told_of_once(
    hook: HookServer, variables: Variables, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise StoreError("lake", "does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(incident_store, "read_sightings", fail)
        with pytest.raises(StoreError):
            observe()
    for _ in range(3):
        on_blind({"exception": StoreError("lake", "does not answer")})
    assert (len(hook.bodies), "lake: does not answer" in hook.bodies[0]["text"]) == (1, True)
    world.put_index()
    observe()
    observe()

    assert [one["status"] for one in hook.bodies] == ["opened", "closed"]


def test_the_place_is_remembered_for_when_the_topics_file_is_wrong(world: World, variables: Variables) -> None:
    right = world.topics_file.read_text()
    world.topics_file.write_text("topics: none")
    with pytest.raises(ConfigError):
        find_place()
    world.topics_file.write_text(right)
    place = find_place()
    assert (place.clusters, place.problem) == ((CLUSTER,), "")
    world.topics_file.write_text("topics: none")
    blind = find_place()
    assert (blind.deployment.lake, blind.clusters) == (place.deployment.lake, place.clusters)
    assert "topics: " in blind.problem
    assert list(variables.values) == ["tidemark_watch_place"]


@pytest.mark.usefixtures("variables", "hook")
def test_a_topics_file_that_is_wrong_keeps_its_first_time_and_closes_nothing_else(world: World) -> None:
    world.put_index(entry("orders", 0, 100, gaps=[gap(100, 150)]))
    observe()
    right, deployment = world.topics_file.read_text(), world.deployment

    def incidents() -> dict[str, tuple[bool, datetime]]:
        found = incident_store.read_incidents(deployment, CLUSTER).incidents
        return {one.key: (one.open, one.since) for one in found}

    def looked(key: str, *, is_open: bool) -> bool:
        observe()  # counts for nothing within the same millisecond
        return incidents().get(key, (False, None))[0] is is_open

    wrong = f"topics_file/{CLUSTER}"
    world.topics_file.write_text(f"{right}\nfreshnes: 1m\n")
    wait_until(lambda: looked(wrong, is_open=True), what="the file to be told of", interval=0.01)
    first = incidents()
    observe()
    assert incidents() == first
    assert first[KEY][0]

    world.topics_file.write_text(right)
    wait_until(lambda: looked(wrong, is_open=False), what="the file to be right again", interval=0.01)
    assert incidents()[KEY][0]


def test_a_record_that_others_change_all_the_time_is_an_error(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def overtaken(*_: object, **__: object) -> str:
        raise PreconditionFailed("key", "was changed")

    world.put_index(entry("orders", 0, 100, gaps=[gap(100, 150)]))
    monkeypatch.setattr("tidemark.store.local.LocalStore.put", overtaken)
    with pytest.raises(PreconditionFailed, match="the next look tries again"):
        incident_store.watch(world.deployment, CLUSTER, utc_now())
