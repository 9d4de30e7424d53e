"""Who is told what, how often, and under which key."""

from __future__ import annotations

from datetime import datetime

from tests.tidemark.monitoring.test_incidents import MINUTE, NOW, condition
from tidemark.monitoring.incidents import Condition, Incident, merge
from tidemark.monitoring.messages import (
    GROUP_PAUSE,
    LISTED,
    OF_A_KIND,
    OF_A_TOPIC,
    Message,
    delivered,
    due,
    subject,
    text,
)


class Inbox:
    """One notifier that tells whatever is due, look after look."""

    def __init__(self, name: str = "mail") -> None:
        self.name = name
        self.incidents: tuple[Incident, ...] = ()

    def look(self, now: datetime, *conditions: Condition) -> list[tuple[str, str, int]]:
        """The messages as (key, status, open)."""
        self.incidents = merge(self.incidents, conditions, (), now)
        found = self.due(now)
        for message in found:
            self.incidents = tuple(delivered(one, self.name, message, now) for one in self.incidents)
        return [(one.key, one.status, one.open) for one in found]

    def due(self, now: datetime) -> list[Message]:
        return due(self.incidents, self.name, now)


def gaps(count: int, topic: str = "orders", first: int = 0) -> list[Condition]:
    return [condition(f"gap/east/{topic}/0-0/{number}", topic=topic) for number in range(first, first + count)]


def test_one_message_when_it_opens_changes_and_closes() -> None:
    inbox, key = Inbox(), "gap/east/orders/0-0/100"
    assert inbox.look(NOW, condition()) == [(key, "opened", 1)]
    assert inbox.look(NOW + MINUTE, condition(text="more")) == []
    assert inbox.look(NOW + 2 * MINUTE, condition(fact="more")) == [(key, "updated", 1)]
    assert inbox.look(NOW + 3 * MINUTE) == [(key, "closed", 0)]
    assert inbox.look(NOW + 4 * MINUTE) == []
    assert inbox.look(NOW + 5 * MINUTE, condition()) == [(key, "opened", 1)]


def test_what_is_not_recorded_as_told_is_due_again() -> None:
    inbox = Inbox()
    inbox.incidents = merge((), [condition()], (), NOW)
    assert [one.key for one in inbox.due(NOW)] == [one.key for one in inbox.due(NOW + MINUTE)] != []


def test_each_notifier_has_its_own_record() -> None:
    mail, hook = Inbox(), Inbox("hook")
    mail.look(NOW, condition())
    hook.incidents = mail.incidents
    assert [one.status for one in hook.due(NOW)] == ["opened"]
    assert mail.due(NOW) == []


def test_a_change_while_a_message_is_on_its_way_is_told_next() -> None:
    opened = merge((), [condition(fact="1")], (), NOW)
    [message] = due(opened, "mail", NOW)
    [changed] = merge(opened, [condition(fact="2")], (), NOW + MINUTE)
    assert delivered(changed, "mail", message, NOW).waits_for("mail")


def test_a_storm_of_one_topic_is_one_message_from_beginning_to_end() -> None:
    inbox, key = Inbox(), "gap/east/orders"
    assert inbox.look(NOW, *gaps(1000), condition("gap/east/clicks/0-0/5", topic="clicks")) == [
        ("gap/east/clicks/0-0/5", "opened", 1),
        (key, "opened", 1000),
    ]
    other = condition("gap/east/clicks/0-0/5", topic="clicks")
    assert inbox.look(NOW + MINUTE, *gaps(1001), other) == []
    assert inbox.look(NOW + GROUP_PAUSE, *gaps(900), other) == [(key, "updated", 900)]
    assert inbox.look(NOW + GROUP_PAUSE + MINUTE, other) == [(key, "closed", 0)]


def test_a_trickle_becomes_a_group_too() -> None:
    inbox = Inbox()
    assert len(inbox.look(NOW, *gaps(OF_A_TOPIC))) == OF_A_TOPIC
    assert inbox.look(NOW + MINUTE, *gaps(OF_A_TOPIC + 1)) == [("gap/east/orders", "opened", 1)]
    closed = inbox.look(NOW + 2 * MINUTE)
    assert len(closed) == OF_A_TOPIC + 1
    assert {status for _, status, _ in closed} == {"closed"}


def test_a_thousand_late_topics_are_one_message() -> None:
    late = [condition(f"late/east/topic-{n}", kind="late", topic=f"topic-{n}") for n in range(1000)]
    inbox = Inbox()
    assert inbox.look(NOW, *late) == [("late/east", "opened", 1000)]
    assert inbox.look(NOW + MINUTE) == [("late/east", "closed", 0)]
    assert len(Inbox().look(NOW, *late[:OF_A_KIND])) == OF_A_KIND


def test_the_words_of_one() -> None:
    [message] = due(merge((), [condition(offsets=50)], (), NOW), "mail", NOW)
    assert subject(message) == "Tidemark: opened: offsets are missing"
    words = text(message, ["http://airflow/tidemark/"])
    for part in ("100 offsets", "2026-11-20 12:00:00 UTC", "50", "retention", "acknowledge-gap", "http://airflow"):
        assert part in words


def test_the_words_of_many_list_some() -> None:
    [message] = due(merge((), gaps(100), (), NOW), "mail", NOW)
    assert subject(message) == "Tidemark: opened: gap of east/orders: 100 open"
    assert text(message).count("what:") == LISTED
    assert f"and {100 - LISTED} more" in text(message)
