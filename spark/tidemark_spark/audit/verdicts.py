"""What the last audits of a topic said, kept in one place for those who watch many topics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tidemark.errors import NotFound, PreconditionFailed, UnknownOutcome
from tidemark.formats.audit_report import AuditVerdict
from tidemark.table.delta_table import Lake
from tidemark.timestamps import utc_now

_TRIES: Final = 8


def change_verdict(lake: Lake, change: Callable[[AuditVerdict], AuditVerdict]) -> AuditVerdict:
    """Apply ``change`` to the topic's verdict, again if another audit was faster; it must bear repetition.

    Raises:
        PreconditionFailed: others were faster every time.
    """
    key = lake.keys.deployment.verdict(lake.topic.topic)
    for _ in range(_TRIES):
        try:
            known, etag = AuditVerdict.load_version(lake.store, key)
        except NotFound:
            known, etag = AuditVerdict(cluster=lake.topic.cluster, topic=lake.topic.topic, audited_at=utc_now()), ""
        after = change(known)
        try:
            lake.store.put(key, after.to_bytes(), if_match=etag or None, if_none_match=not etag)
        except (PreconditionFailed, UnknownOutcome):
            continue
        return after
    raise PreconditionFailed(key, f"was changed by others {_TRIES} times in a row; audit again")
