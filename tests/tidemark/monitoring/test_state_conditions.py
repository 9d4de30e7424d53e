"""The conditions of a state table, each from the status that its runs and audits leave."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.plugins.world import CLUSTER, World
from tests.support.requests import Requests
from tests.tidemark.monitoring.test_observation import MINUTE, seen
from tidemark.formats.table.statuses import AUDIT_PARTS, AuditedPart, StateStatus, StateStop
from tidemark.monitoring import topic_conditions
from tidemark.monitoring.incident_store import watch
from tidemark.monitoring.incidents import Condition, Incident
from tidemark.timestamps import utc_now
from tidemark.topics import TopicSettings

NOW = utc_now()
HOUR = timedelta(hours=1)
TOPIC = TopicSettings.model_validate({"topic": "orders", "cluster": CLUSTER, "table": "orders", "state": {}})


def status(**fields: Any) -> StateStatus:
    given = {"n": 7, "committed_at": NOW - HOUR, "followed_at": NOW, "rows": 100, **fields}
    return StateStatus(cluster=CLUSTER, topic="orders", table="orders_current", at=NOW, **given)


def found(known: StateStatus, topic: TopicSettings = TOPIC) -> list[Condition]:
    return list(topic_conditions.state_table(topic, known, NOW))


def keys(known: StateStatus, topic: TopicSettings = TOPIC) -> list[str]:
    return [condition.key.removeprefix("state/kafka-1/orders/") for condition in found(known, topic)]


def test_a_state_that_follows_is_no_news() -> None:
    parts = {part: AuditedPart(at=NOW, n=7) for part in range(AUDIT_PARTS)}
    assert keys(status(quarantined=3, unavailable=4, audits=parts)) == []


def test_a_truncation_names_its_place_and_what_to_do() -> None:
    stop = StateStop(since=NOW - HOUR, reason="truncates the source table", incarnation=0, partition=3, offset=17)
    [stopped] = found(status(stopped=stop, followed_at=NOW - 24 * HOUR))
    assert (stopped.kind, stopped.partition, stopped.start, stopped.end) == ("state", 3, 17, 18)
    assert "stopped at offset 17 of partition 3" in stopped.title
    assert "keeps its commit 7" in stopped.text
    assert "new snapshot" in stopped.mend
    assert stopped.since == NOW - HOUR


def test_a_state_that_cannot_be_made_again_says_why() -> None:
    [stopped] = found(status(stopped=StateStop(since=NOW, reason="retention has removed rows of the table")))
    assert stopped.partition is stopped.start is None
    assert "retention has removed" in stopped.text
    assert "state.table" in stopped.mend


def test_a_state_without_a_good_run_is_late() -> None:
    assert keys(status(followed_at=NOW - 6 * HOUR)) == []
    assert keys(status(followed_at=NOW - 6 * HOUR - MINUTE)) == ["late"]


def test_an_audit_that_found_a_difference() -> None:
    parts = {part: AuditedPart(at=NOW, n=7) for part in range(4)}
    parts[2] = AuditedPart(at=NOW, n=7, different=3, since=NOW - 48 * HOUR, first="offset 9 of partition 1: missing")
    [audit] = found(status(audits=parts))
    assert audit.since == NOW - 48 * HOUR
    assert "3 rows of 1 of 16 parts" in audit.text
    assert "offset 9 of partition 1" in audit.text
    assert "--audit --part 2" in audit.mend


def test_doubts_are_told_until_people_accept_them() -> None:
    doubts = status(moved_keys=12, outranked_keys=7, uncertain=340)
    assert keys(doubts) == ["moved_keys", "uncertain"]

    ordered = TopicSettings.model_validate({**TOPIC.model_dump(), "state": {"order": "lsn"}})
    assert keys(doubts, ordered) == ["outranked_keys", "uncertain"], "the source's own order decides"
    for count, told in ((6, ["outranked_keys", "uncertain"]), (7, ["uncertain"])):
        state = {"order": "lsn", "accept": {"outranked_keys": count}}
        assert keys(doubts, TopicSettings.model_validate({**TOPIC.model_dump(), "state": state})) == told

    def accepted(**counts: int) -> list[str]:
        return keys(doubts, TopicSettings.model_validate({**TOPIC.model_dump(), "state": {"accept": counts}}))

    assert accepted(moved_keys=12) == ["uncertain"]
    assert accepted(uncertain=340) == ["moved_keys"]
    assert accepted(moved_keys=11, uncertain=339) == ["moved_keys", "uncertain"]
    assert accepted(moved_keys=12, uncertain=340) == []


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path / "world", "orders", state={})
    seen(world, "orders")
    return world


def looked(world: World, minute: int = 0) -> list[Incident]:
    incidents = watch(world.deployment, CLUSTER, NOW + minute * MINUTE).incidents
    return [incident for incident in incidents if incident.open and incident.kind != "unseen"]


def test_an_incident_opens_and_closes_with_the_status(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    table = world.table()
    key = table.keys.deployment.state_status("orders")
    assert looked(world) == []
    table.store.put(key, status(uncertain=5).to_bytes())
    [incident] = looked(world, 1)
    assert (incident.kind, incident.key) == ("state", "state/kafka-1/orders/uncertain")
    requests = Requests(monkeypatch)
    assert len(looked(world, 2)) == 1
    assert key not in requests.gets, "a status that has not changed is read once"
    assert [each.key for each in looked(world, 361)] == [
        "state/kafka-1/orders/late",
        "state/kafka-1/orders/uncertain",
    ], "time passes without another status"
    table.store.put(key, status(followed_at=NOW + 362 * MINUTE).to_bytes())
    assert looked(world, 362) == []


def test_an_incident_stays_while_the_status_cannot_be_read(world: World) -> None:
    table = world.table()
    key = table.keys.deployment.state_status("orders")
    table.store.put(key, status(uncertain=5).to_bytes())
    assert [incident.kind for incident in looked(world)] == ["state"]
    table.store.put(key, b"no status")
    assert sorted(incident.kind for incident in looked(world, 1)) == ["state"]
    assert sorted(incident.kind for incident in looked(world, 4)) == ["state", "unreadable"]


def test_a_topic_without_a_state_has_no_incidents_of_one(tmp_path: Path) -> None:
    """Its topic had one, and another still has."""
    world = World(tmp_path / "world", "orders")
    world.write_topics(
        cluster=CLUSTER,
        raw={"url": f"file://{world.root}/raw"},
        lake=f"file://{world.root}/lake",
        topics=[{"topic": "orders"}, {"topic": "clicks", "state": {}}],
    )
    for topic in ("orders", "clicks"):
        seen(world, topic)
    table = world.table()
    table.store.put(table.keys.deployment.state_status("orders"), status(uncertain=5).to_bytes())
    assert looked(world) == []
