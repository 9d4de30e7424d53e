"""Which messages are due, and their text. Pure.

An incident has its own message under its key. Many incidents of one kind share one message: those of a topic under
``<kind>/<cluster>/<topic>``, those of a cluster under ``<kind>/<cluster>``. An incident keeps the key of its first
message until it closes, so that the receiver can group the messages. A group closes with its last incident.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final, Literal, NamedTuple

from tidemark.monitoring.incidents import Incident, IncidentDelivery, in_utc

Status = Literal["opened", "updated", "closed"]

OF_A_TOPIC: Final = 5
"""If one kind and topic have more incidents than this, they share one message ..."""

OF_A_KIND: Final = 10
"""... and if one kind has more messages than this, they become one, too."""

LISTED: Final = 20
"""How many of its incidents a group's message lists."""

GROUP_PAUSE: Final = timedelta(minutes=10)
"""How long after its last message a group that grows is reported again."""


class Message(NamedTuple):
    """What a notifier must report under ``key``: ``incidents`` have news, ``open`` of the key's incidents are open."""

    key: str
    status: Status
    incidents: tuple[Incident, ...]
    open: int

    @property
    def group(self) -> bool:
        """Whether the message is about many incidents."""
        return self.key != self.incidents[0].key


def due(incidents: Iterable[Incident], notifier: str, now: datetime) -> list[Message]:
    """The messages that ``notifier`` has to send, by key."""
    incidents = list(incidents)
    keys = _keys(incidents, notifier)
    members: dict[str, list[Incident]] = {}
    for one in incidents:
        if one.key in keys:
            members.setdefault(keys[one.key], []).append(one)
    found = (_message(key, of_key, notifier, now) for key, of_key in sorted(members.items()))
    return [one for one in found if one is not None]


def delivered(incident: Incident, notifier: str, message: Message, now: datetime) -> Incident:
    """``incident`` with the record that ``message`` reported it; unchanged if the message did not."""
    told = next((one for one in message.incidents if one.key == incident.key), None)
    if told is None or told.opened_at != incident.opened_at:
        return incident
    record = IncidentDelivery(revision=told.revision, key=message.key, closed=not told.open, at=now)
    return incident.model_copy(update={"delivered": {**incident.delivered, notifier: record}})


def subject(message: Message) -> str:
    """One line: what has happened, to what."""
    first = message.incidents[0]
    if not message.group:
        return f"Tidemark: {message.status}: {first.title}"
    where = f"{first.cluster}/{first.topic}" if message.key.count("/") > 1 else first.cluster
    return f"Tidemark: {message.status}: {first.kind.replace('_', ' ')} of {where}: {message.open} open"


def text(message: Message, links: Sequence[str] = ()) -> str:
    """The message in full, as plain text."""
    shown = message.incidents[:LISTED] if message.group else message.incidents
    blocks = ["\n".join(_lines(one)) for one in shown]
    if len(message.incidents) > len(shown):
        blocks.append(f"... and {len(message.incidents) - len(shown)} more; all: tidemark incidents")
    return "\n\n".join([*blocks, *links])


def _keys(incidents: Sequence[Incident], notifier: str) -> dict[str, str]:
    """By incident, the key of its message: that of its last message, else by the number of incidents."""
    told = {one.key: one.delivered[notifier] for one in incidents if notifier in one.delivered}
    keys = {key: one.key for key, one in told.items()}
    new = [one for one in incidents if one.key not in told and one.waits_for(notifier)]
    alive = [one for one in incidents if one.open and (one.key in told or one.waits_for(notifier))]
    of_topic = Counter(_topic_key(one) for one in alive)
    for one in new:
        many = one.topic is not None and of_topic[_topic_key(one)] > OF_A_TOPIC
        keys[one.key] = _topic_key(one) if many else one.key
    of_kind: dict[str, set[str]] = {}
    for one in alive:
        of_kind.setdefault(_kind_key(one), set()).add(keys[one.key])
    for one in new:
        if len(of_kind[_kind_key(one)]) > OF_A_KIND:
            keys[one.key] = _kind_key(one)
    return keys


def _topic_key(one: Incident) -> str:
    return f"{one.kind}/{one.cluster}/{one.topic}"


def _kind_key(one: Incident) -> str:
    return f"{one.kind}/{one.cluster}"


def _message(key: str, members: Sequence[Incident], notifier: str, now: datetime) -> Message | None:
    news = tuple(one for one in members if one.waits_for(notifier))
    if not news:
        return None
    still = sum(one.open for one in members)
    told = [one.delivered[notifier] for one in members if notifier in one.delivered]
    if not still:
        return Message(key, "closed", news, still)
    if all(one.closed for one in told):
        return Message(key, "opened", news, still)
    grouped = key != news[0].key
    if grouped and now - max(one.at for one in told) < GROUP_PAUSE:
        return None
    return Message(key, "updated", news, still)


def _lines(one: Incident) -> list[str]:
    since = f"since {in_utc(one.since)}"
    if one.closed_at is not None:
        since += f", gone at {in_utc(one.closed_at)}"
    lines = [one.title, f"  what: {one.text}", f"  when: {since}"]
    if one.offsets is not None:
        lines.append(f"  how many: {one.offsets}")
    if one.open:
        lines += [f"  likely: {one.likely}", f"  what to do: {one.mend}"]
    return lines
