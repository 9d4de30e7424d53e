"""The record of what the last run that lands a topic could not do, which the watch reports to people."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime

from tidemark.errors import FormatError, LaterFormat, StoreError, TidemarkError
from tidemark.formats.table.statuses import MOST_MESSAGES, UnreadStatus
from tidemark.store.update import update
from tidemark.table.delta_table import TopicTable

_LONGEST = 1000

log = logging.getLogger(__name__)


def record_unread(table: TopicTable, planned_at: datetime, messages: Sequence[str]) -> None:
    """Record ``messages`` of a run that was planned at that time, and did not fail; without messages, all was read.

    Writes nothing if the record is equal, a later run's, or of a later format. An object that does not parse is
    replaced. Raises StoreError.
    """
    shortened = tuple(dict.fromkeys(message[:_LONGEST] for message in messages))

    def change(before: UnreadStatus) -> UnreadStatus:
        before = before.model_copy(update={"failed_at": None, "failure": ""})
        same = (before.messages, before.count) == (shortened[:MOST_MESSAGES], len(shortened))
        if same or before.at > planned_at:
            return before
        since = before.since if before.messages else planned_at
        update = {"at": planned_at, "since": since, "messages": shortened[:MOST_MESSAGES], "count": len(shortened)}
        return before.model_copy(update=update)

    _update(table, planned_at, change)


@contextmanager
def recording_failure(table: TopicTable) -> Iterator[None]:
    """Record an error that ends a run within, and raise it again."""
    try:
        yield
    except Exception as error:
        words = str(error) if isinstance(error, TidemarkError) else f"{type(error).__name__}: {error}"
        try:
            now = table.store.now()
            failed = {"failed_at": now, "failure": " ".join(words.split())[:_LONGEST]}
            _update(table, now, lambda before: before.model_copy(update=failed))
        except StoreError as unrecorded:  # the run's own error is the one to tell
            log.warning("%s: the failure is not recorded: %s", table.topic.topic, unrecorded)
        raise


def _update(table: TopicTable, at: datetime, change: Callable[[UnreadStatus], UnreadStatus]) -> None:
    topic = table.topic
    key = table.keys.deployment.unread(topic.topic)
    nothing = UnreadStatus(cluster=topic.cluster, topic=topic.topic, at=at, since=at)

    def read() -> tuple[UnreadStatus, str | None]:
        found, etag = UnreadStatus.load_to_replace(table.store, key)
        if isinstance(found, FormatError):
            return nothing.model_copy(update={"count": -1}), etag
        return found or nothing, etag

    try:
        update(table.store, key, read, change, then="the next run records it")
    except LaterFormat as error:  # nothing is lost: the later version's runs record theirs
        log.warning("%s: what this run could not do is not recorded: %s", topic.topic, error)
