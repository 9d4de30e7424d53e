"""Formats a message for notifiers: with links into Airflow for people, and as JSON for programs."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

from tidemark_airflow.links import urls
from tidemark_airflow.notifications.notifiers import Notice

if TYPE_CHECKING:
    from tidemark.monitoring.incidents import Incident
    from tidemark.monitoring.messages import Message

_MOST_LISTED: Final = 100
_SHOWN: Final = {
    *("key", "kind", "cluster", "topic", "partition", "start", "end", "offsets", "since", "closed_at"),
    *("title", "text", "likely", "mend"),
}


def news_of(message: Message) -> Notice:
    """The notice that notifiers send for ``message``: subject, text, and fields for programs."""
    from tidemark.monitoring.messages import subject, text

    link = link_of(message)
    words = text(message, [link] if link else [])
    first = message.incidents[0]
    body: dict[str, Any] = {
        "source": "tidemark",
        "id": _id(message),
        "key": message.key,
        "status": message.status,
        "kind": first.kind,
        "cluster": first.cluster,
        "open": message.open,
        "subject": subject(message),
        "text": words,
        "link": link,
        "incidents": [_dumped(incident) for incident in message.incidents[:_MOST_LISTED]],
        "more": max(0, len(message.incidents) - _MOST_LISTED),
    }
    return Notice(subject(message), words, message.key, message.status, body)


def link_of(message: Message) -> str:
    """The link of a message: the filled-in backfill form, the topic's continuity page, or the page of all topics."""
    from tidemark.monitoring.incidents import page_of

    if not urls.base_url():
        return ""
    first = message.incidents[0]
    topics = {(incident.cluster, incident.topic) for incident in message.incidents}
    if len(topics) > 1 or first.topic is None:
        return f"{urls.base_url()}{urls.PREFIX}/"
    if message.group:
        return urls.continuity_url(first.cluster, first.topic)
    page, date = page_of(first.kind), first.key.rpartition("/")[2]
    if page == "replay":
        return urls.backfill_url(first.cluster, first.topic, mode=page)
    if page == "rebuild" and date:
        return urls.backfill_url(first.cluster, first.topic, date, date, mode=page)
    return urls.continuity_url(first.cluster, first.topic, first.partition)


def _dumped(incident: Incident) -> dict[str, Any]:
    return {**incident.model_dump(mode="json", include=_SHOWN), "open": incident.open}


def _id(message: Message) -> str:
    """An id of the message's content, by which a receiver recognizes a repetition."""
    lines = [f"{incident.key} {incident.opened_at} {incident.revision}" for incident in message.incidents]
    return hashlib.sha256("\n".join([message.key, *lines]).encode()).hexdigest()[:16]
