"""The records of jobs that nobody can need any more. Pure.

* A job's hand-over to its task is read when the job ends. One that is older than any run was left by a dead task.
* The progress of a run is shown while it is under way.
* The report of an audit is kept for :data:`KEPT`, and longer while it is the newest on dates with rows in the table, or
  an incident names it. So the proof of a date exists as long as the date.
* The report of a backfill is kept for :data:`KEPT` after its last part was written. The newest report stays, and so
  does the newest report of a run that has an outcome.

A report that may be deleted may also be deleted later, unless rows of its date land again, because only its age and
newer reports count. A vacuum may be killed between two deletions: of a backfill's report, the request is deleted first,
without which nothing shows the rest.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from itertools import groupby
from typing import Final

from tidemark.formats.keys import ALL_DATES
from tidemark.planning.maintenance.vacuum import RUN_OVER
from tidemark.store.base import ObjectInfo

KEPT: Final = timedelta(days=90)
"""Three times as long as ``deploy/airflow-clean.sh`` leaves the run of a DAG, whose links lead to the report."""

_DAY: Final = r"\d{4}-\d{2}-\d{2}"
_AUDIT: Final = re.compile(
    rf"({ALL_DATES}|({_DAY})|({_DAY})_({_DAY})_[0-9a-f]{{16}})/\d{{8}}T\d{{9}}Z-\d+\.json", re.ASCII
)
_REQUEST: Final = "/request.json"
_OUTCOME: Final = "/outcome-"


def left_by_runs(listed: Iterable[ObjectInfo], now: datetime) -> list[ObjectInfo]:
    """The ``listed`` objects that only a run that is over could need, at the time ``now`` of the store."""
    return [info for info in listed if now - info.modified > RUN_OVER]


def old_audits(
    listed: Iterable[ObjectInfo], dates: Collection[str], named: Collection[str], now: datetime
) -> list[ObjectInfo]:
    """The ``listed`` reports of audits that may be deleted at the time ``now`` of the store.

    ``dates`` are the dates with rows in the table, ``named`` the keys of the reports that incidents name.
    """
    scopes = {info: match for info in listed if (match := _AUDIT.fullmatch("/".join(info.key.split("/")[-2:])))}
    in_order = sorted(scopes, key=lambda info: info.key.rpartition("/")[2])
    newest = {scopes[info][1]: info for info in in_order}
    needed = {info for scope, info in newest.items() if scope == ALL_DATES or _has(scopes[info], dates)}
    needed |= set(in_order[-1:])
    return [info for info in in_order if now - info.modified > KEPT and info not in needed and info.key not in named]


def old_backfill_reports(listed: Iterable[ObjectInfo], now: datetime) -> tuple[list[ObjectInfo], list[ObjectInfo]]:
    """The ``listed`` parts of backfills' reports that may be deleted at the time ``now`` of the store.

    They are deleted in two steps: first the requests, then all other parts.
    """
    reports = [list(parts) for _, parts in groupby(sorted(listed, key=_folder), _folder)]
    reports.sort(key=_written)
    with_outcome = [parts for parts in reports if any(_OUTCOME in info.key for info in parts)]
    needed = [*reports[-1:], *with_outcome[-1:]]
    gone = [info for parts in reports if now - _written(parts) > KEPT and parts not in needed for info in parts]
    first = [info for info in gone if info.key.endswith(_REQUEST)]
    return first, [info for info in gone if info not in first]


def _has(scope: re.Match[str], dates: Collection[str]) -> bool:
    """True if the table has rows of a date in ``scope``."""
    first, last = scope[2] or scope[3], scope[2] or scope[4]
    return any(first <= dt <= last for dt in dates)


def _folder(info: ObjectInfo) -> str:
    return info.key.rpartition("/")[0]


def _written(parts: Iterable[ObjectInfo]) -> datetime:
    return max(info.modified for info in parts)
