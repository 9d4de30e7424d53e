"""The record of the parts of raw that a plan or a run could not read, which the watch reports to people."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from tidemark.errors import FormatError, NotFound
from tidemark.formats.table.unread_status import MOST_MESSAGES, UnreadStatus
from tidemark.store.update import update
from tidemark.table.delta_table import TopicTable

_LONGEST = 1000


def record_unread(table: TopicTable, planned_at: datetime, messages: Sequence[str]) -> None:
    """Record ``messages`` of a run that was planned at that time; without messages, all could be read.

    Writes nothing if the record is equal, or a later run's. An object that does not parse is replaced.
    Raises StoreError.
    """
    topic = table.topic
    key = table.keys.deployment.unread(topic.topic)
    shortened = tuple(dict.fromkeys(message[:_LONGEST] for message in messages))
    nothing = UnreadStatus(cluster=topic.cluster, topic=topic.topic, at=planned_at, since=planned_at)

    def read() -> tuple[UnreadStatus, str | None]:
        try:
            return UnreadStatus.load_version(table.store, key)
        except NotFound:
            return nothing, None
        except FormatError:
            return nothing.model_copy(update={"count": -1}), table.store.head(key).etag

    def change(before: UnreadStatus) -> UnreadStatus:
        same = (before.messages, before.count) == (shortened[:MOST_MESSAGES], len(shortened))
        if same or before.at > planned_at:
            return before
        since = before.since if before.messages else planned_at
        update = {"at": planned_at, "since": since, "messages": shortened[:MOST_MESSAGES], "count": len(shortened)}
        return before.model_copy(update=update)

    update(table.store, key, read, change, then="the next run records it")
