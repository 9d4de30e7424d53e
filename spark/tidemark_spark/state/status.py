"""Keeps the status of a state table, which the watch, the page and the command read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tidemark.errors import StateStopped
from tidemark.formats.table.state_ledger import StateLedger
from tidemark.formats.table.statuses import AuditedPart, StateAudit, StateStatus, StateStop
from tidemark.store.update import update
from tidemark.table.state_table import StateTable

COUNTS: Final = ("n", "rows", "moved_keys", "outranked_keys", "quarantined", "unavailable", "uncertain")
"""The counts of a state's ledger that its status and the results of its runs have, too."""


def tell_committed(table: StateTable, ledger: StateLedger | None) -> None:
    """Record the state's last commit ``ledger``, and that nothing stops it. Raises StoreError if the store failed."""
    counts: dict[str, object] = {name: getattr(ledger, name) for name in COUNTS if ledger}
    counts |= {"of": ledger.of.n, "committed_at": ledger.committed_at} if ledger else {}
    _change(table, lambda status: status.model_copy(update={**counts, "followed_at": status.at, "stopped": None}))


def tell_stopped(table: StateTable, stop: StateStopped) -> None:
    """Record that the state is stopped. Raises StoreError if the store failed."""
    incarnation, partition, offset = stop.place or (None, None, None)

    def stopped(status: StateStatus) -> StateStatus:
        since = status.stopped.since if status.stopped else status.at
        told = StateStop(since=since, reason=str(stop), incarnation=incarnation, partition=partition, offset=offset)
        return status.model_copy(update={"stopped": told})

    _change(table, stopped)


def tell_audited(table: StateTable, audit: StateAudit) -> None:
    """Record the audit of a part of the keys. Raises StoreError if the store failed."""

    def audited(status: StateStatus) -> StateStatus:
        before = status.audits.get(audit.part)
        since = (before.since if before and before.since else audit.at) if audit.different else None
        first = audit.findings[0].text() if audit.findings else ""
        told = AuditedPart(at=audit.at, n=audit.n, different=audit.different, since=since, first=first)
        return status.model_copy(update={"audits": {**status.audits, audit.part: told}})

    _change(table, audited)


def _change(table: StateTable, change: Callable[[StateStatus], StateStatus]) -> None:
    topic, key = table.of.topic, table.of.keys.deployment.state_status(table.of.topic.topic)
    now = table.store.now()

    def read() -> tuple[StateStatus, str | None]:
        new = StateStatus(cluster=topic.cluster, topic=topic.topic, table=topic.state_table, at=now)
        status, etag = StateStatus.load_version_or_none(table.store, key) or (new, None)
        former = dict.fromkeys((*status.former, status.table))
        former.pop(topic.state_table, None)
        return status.model_copy(update={"table": topic.state_table, "former": tuple(former), "at": now}), etag

    update(table.store, key, read, change, then="the next run tries again")
