"""The messages that are due, and their text. Pure.

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
"""The most incidents that a group's message lists."""

GROUP_PAUSE: Final = timedelta(minutes=10)
"""Time after its last message at which a group that grows is reported again."""


class Message(NamedTuple):
    """A message that a notifier must send under ``key``: ``incidents`` have news, ``open`` of the key's are open."""

    key: str
    status: Status
    incidents: tuple[Incident, ...]
    open: int

    @property
    def group(self) -> bool:
        """True if the message is about many incidents."""
        return self.key != self.incidents[0].key


def due(incidents: Iterable[Incident], notifier: str, now: datetime) -> list[Message]:
    """The messages that ``notifier`` has to send, by key."""
    incidents = list(incidents)
    keys = _keys(incidents, notifier)
    members: dict[str, list[Incident]] = {}
    for incident in incidents:
        if incident.key in keys:
            members.setdefault(keys[incident.key], []).append(incident)
    messages = (_message(key, of_key, notifier, now) for key, of_key in sorted(members.items()))
    return [message for message in messages if message is not None]


def delivered(incident: Incident, notifier: str, message: Message, now: datetime) -> Incident:
    """``incident`` with the record that ``message`` reported it; unchanged if the message did not report it."""
    reported = next((other for other in message.incidents if other.key == incident.key), None)
    if reported is None or reported.opened_at != incident.opened_at:
        return incident
    record = IncidentDelivery(revision=reported.revision, key=message.key, closed=not reported.open, at=now)
    return incident.model_copy(update={"delivered": {**incident.delivered, notifier: record}})


def subject(message: Message) -> str:
    """One line: the event and its subject."""
    first = message.incidents[0]
    if not message.group:
        return f"Tidemark: {message.status}: {first.title}"
    where = f"{first.cluster}/{first.topic}" if message.key.count("/") > 1 else first.cluster
    return f"Tidemark: {message.status}: {first.kind.replace('_', ' ')} of {where}: {message.open} open"


def text(message: Message, links: Sequence[str] = ()) -> str:
    """The message in full, as plain text."""
    shown = message.incidents[:LISTED] if message.group else message.incidents
    blocks = ["\n".join(_lines(incident)) for incident in shown]
    if len(message.incidents) > len(shown):
        blocks.append(f"... and {len(message.incidents) - len(shown)} more; all: tidemark incidents")
    return "\n\n".join([*blocks, *links])


def _keys(incidents: Sequence[Incident], notifier: str) -> dict[str, str]:
    """The key of each incident's message: that of its last message, or one chosen by the number of incidents."""
    delivered = {incident.key: incident.delivered[notifier] for incident in incidents if notifier in incident.delivered}
    keys = {key: delivery.key for key, delivery in delivered.items()}
    new = [incident for incident in incidents if incident.key not in delivered and incident.waits_for(notifier)]
    alive = [
        incident
        for incident in incidents
        if incident.open and (incident.key in delivered or incident.waits_for(notifier))
    ]
    of_topic = Counter(_topic_key(incident) for incident in alive)
    for incident in new:
        many = incident.topic is not None and of_topic[_topic_key(incident)] > OF_A_TOPIC
        keys[incident.key] = _topic_key(incident) if many else incident.key
    of_kind: dict[str, set[str]] = {}
    for incident in alive:
        of_kind.setdefault(_kind_key(incident), set()).add(keys[incident.key])
    for incident in new:
        if len(of_kind[_kind_key(incident)]) > OF_A_KIND:
            keys[incident.key] = _kind_key(incident)
    return keys


def _topic_key(incident: Incident) -> str:
    return f"{incident.kind}/{incident.cluster}/{incident.topic}"


def _kind_key(incident: Incident) -> str:
    return f"{incident.kind}/{incident.cluster}"


def _message(key: str, members: Sequence[Incident], notifier: str, now: datetime) -> Message | None:
    news = tuple(incident for incident in members if incident.waits_for(notifier))
    if not news:
        return None
    still = sum(incident.open for incident in members)
    delivered = [incident.delivered[notifier] for incident in members if notifier in incident.delivered]
    if not still:
        return Message(key, "closed", news, still)
    if all(delivery.closed for delivery in delivered):
        return Message(key, "opened", news, still)
    grouped = key != news[0].key
    if grouped and now - max(delivery.at for delivery in delivered) < GROUP_PAUSE:
        return None
    return Message(key, "updated", news, still)


def _lines(incident: Incident) -> list[str]:
    since = f"since {in_utc(incident.since)}"
    if incident.closed_at is not None:
        since += f", gone at {in_utc(incident.closed_at)}"
    lines = [incident.title, f"  what: {incident.text}", f"  when: {since}"]
    if incident.offsets is not None:
        lines.append(f"  how many: {incident.offsets}")
    if incident.open:
        lines += [f"  likely: {incident.likely}", f"  what to do: {incident.mend}"]
    return lines
