"""The results of a topic's last audits, in one object for programs that watch many topics."""

from __future__ import annotations

from collections.abc import Callable

from tidemark.formats.table.audit_report import AuditVerdict
from tidemark.store.update import update
from tidemark.table.delta_table import TopicTable
from tidemark.timestamps import utc_now


def change_verdict(table: TopicTable, change: Callable[[AuditVerdict], AuditVerdict]) -> AuditVerdict:
    """Apply ``change`` to the topic's verdict; ``change`` is called again if another audit was faster.

    Raises:
        PreconditionFailed: other audits were faster every time.
    """
    key = table.keys.deployment.verdict(table.topic.topic)

    def read() -> tuple[AuditVerdict, str | None]:
        new = AuditVerdict(cluster=table.topic.cluster, topic=table.topic.topic, audited_at=utc_now())
        return AuditVerdict.load_version_or_none(table.store, key) or (new, None)

    return update(table.store, key, read, change, then="audit again")
