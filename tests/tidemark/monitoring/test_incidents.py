from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tidemark.monitoring.incidents import (
    KEPT_CLOSED,
    MOST_CLOSED,
    REOPENS_WITHIN,
    Condition,
    Incident,
    IncidentDelivery,
    Incidents,
    Unknown,
    merge,
)

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def condition(key: str = "gap/east/orders/0-0/100", **changes: Any) -> Condition:
    fields: dict[str, Any] = {
        "kind": "gap",
        "key": key,
        "cluster": "east",
        "topic": "orders",
        "since": NOW,
        "title": "offsets are missing",
        "text": "100 offsets",
        "likely": "retention",
        "mend": "tidemark acknowledge-gap",
    }
    return Condition(**{**fields, **changes})


def told(incident: Incident, by: str = "mail") -> Incident:
    record = IncidentDelivery(revision=incident.revision, key=incident.key, closed=not incident.open, at=NOW)
    return incident.model_copy(update={"delivered": {**incident.delivered, by: record}})


def test_an_incident_opens_once_stays_the_same_and_closes_by_itself() -> None:
    [opened] = merge((), [condition()], (), NOW)
    assert (opened.open, opened.opened_at, opened.revision, opened.waits_for("mail")) == (True, NOW, 1, True)
    opened = told(opened)
    [again] = merge([opened], [condition(text="101 offsets")], (), NOW + MINUTE)
    assert (again.revision, again.waits_for("mail"), again.text) == (1, False, "101 offsets")
    [closed] = merge([again], [], (), NOW + 2 * MINUTE)
    assert (closed.closed_at, closed.revision, closed.waits_for("mail")) == (NOW + 2 * MINUTE, 2, True)
    assert merge([told(closed)], [], (), NOW + 3 * MINUTE) == (told(closed),)


def test_a_changed_fact_is_told_again_and_since_stays() -> None:
    [opened] = merge((), [condition(fact="200")], (), NOW)
    [changed] = merge([told(opened)], [condition(fact="300", since=NOW + MINUTE)], (), NOW + MINUTE)
    assert (changed.revision, changed.waits_for("mail"), changed.since) == (2, True, NOW)


def test_what_closes_before_anybody_was_told_is_not_told_of() -> None:
    [closed] = merge(merge((), [condition()], (), NOW), [], (), NOW + MINUTE)
    assert not closed.waits_for("mail")


@pytest.mark.parametrize(("later", "same"), [(REOPENS_WITHIN, True), (REOPENS_WITHIN + MINUTE, False)])
def test_what_comes_back_soon_is_the_same_incident(later: timedelta, same: bool) -> None:
    [closed] = merge([told(one) for one in merge((), [condition()], (), NOW)], [], (), NOW)
    [again] = merge([told(closed)], [condition(since=NOW + later)], (), NOW + later)
    assert again.open
    assert (again.opened_at == NOW, again.revision, again.waits_for("mail")) == (same, 3 if same else 1, True)


@pytest.mark.parametrize(
    ("unknown", "stays"),
    [
        pytest.param(Unknown(frozenset({"gap"})), True, id="of all topics"),
        pytest.param(Unknown(frozenset({"gap", "late"}), "orders"), True, id="of the topic"),
        pytest.param(Unknown(frozenset({"gap"}), "clicks"), False, id="of another topic"),
        pytest.param(Unknown(frozenset({"late"})), False, id="of another kind"),
    ],
)
def test_what_could_not_be_looked_at_does_not_close(unknown: Unknown, stays: bool) -> None:
    [one] = merge(merge((), [condition()], (), NOW), [], [unknown], NOW + MINUTE)
    assert one.open is stays


def test_closed_ones_are_kept_for_a_while_and_not_too_many() -> None:
    opened = merge((), [condition(f"gap/{number}") for number in range(MOST_CLOSED + 10)], (), NOW)
    closed = merge(opened, [], (), NOW)
    assert len(closed) == MOST_CLOSED
    assert merge(closed, [], (), NOW + KEPT_CLOSED) == ()


def test_the_object_survives_the_store() -> None:
    found = Incidents(
        cluster="east", at=NOW, incidents=tuple(told(one) for one in merge((), [condition(start=1, end=2)], (), NOW))
    )
    assert Incidents.from_bytes(found.to_bytes(), "key") == found
