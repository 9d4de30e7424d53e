"""Requests for erasure, as tests make them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from tidemark.erasure.reports import ErasureReport, RawReport, Remaining, write_report
from tidemark.erasure.requests import approved
from tidemark.erasure.secret import Secret
from tidemark.formats.keys import ControlKeys
from tidemark.formats.raw.erasure import Approved, ErasureApproval, ErasureRequest, SearchedTopic, WantedValue
from tidemark.storage import ClusterStore
from tidemark.store import Store
from tidemark.table.delta_table import TopicTable
from tidemark.timestamps import utc_now

SECRET: Final = Secret("a secret of the tests, long enough")


def asked(values: Iterable[bytes], secret: Secret = SECRET, number: int = 1, **others: Any) -> ErasureRequest:
    """Request ``number`` to erase ``values`` from ``orders``; ``others`` are fields of the searched topic."""
    wanted = tuple(WantedValue(digest=secret.digest(value), probe=f"{secret.probe(value):08x}") for value in values)
    return ErasureRequest(
        id=f"{number:016x}",
        cluster="east",
        topics=(SearchedTopic(topic="orders", **others),),
        values=wanted,
        secret=secret.fingerprint,
        through={"orders": ()},
        reason="DSR-1182",
        by="ada",
        written_as="key ADA by ada@host",
        at=utc_now(),
    )


def approve(store: Store, request: ErasureRequest, records: int | None = None, prefix: str = "") -> str:
    """Write ``request`` and another person's approval; returns the approval's digest."""
    control = ControlKeys(prefix, request.cluster)
    body = request.to_bytes()
    store.put(control.erasure(request.id, "request"), body)
    approval = ErasureApproval(
        id=request.id,
        request_sha256=hashlib.sha256(body).hexdigest(),
        by="grace",
        written_as="key GRACE by grace@host",
        records=records,
        at=utc_now(),
    )
    store.put(control.erasure(request.id, "approval"), approval.to_bytes())
    stands = approved(ClusterStore(store, control), request.id)
    assert isinstance(stands, Approved)
    return stands.sha256


def tell(
    table: TopicTable,
    attempt: int,
    name: str,
    status: str,
    at: datetime,
    *remaining: str,
    raw: RawReport | None = None,
    lake: Sequence[Mapping[str, str]] = (),
    **outcome: Any,
) -> None:
    """A pass of the topic of ``table`` reports on a request, ``raw`` or what remains there, and the ``lake``."""
    left = tuple(Remaining(key=key, why="agents continue from it") for key in remaining)
    report = {
        "cluster": table.topic.cluster,
        "topic": table.topic.topic,
        "table": table.topic.table,
        "attempt": attempt,
        "at": at,
        "by": "airflow",
        "dry_run": status == "found",
        "ledger_n": 1,
        "requests": [{"id": name, "status": status, **outcome}] if name else [],
        "raw": raw or RawReport(remaining=left),
        "remaining": lake,
    }
    write_report(table, ErasureReport.model_validate(report))
