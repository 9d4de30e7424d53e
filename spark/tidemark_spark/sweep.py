"""The clean-up of a table: what :mod:`tidemark.planning.sweep` lets go is deleted, each object as it was listed.

Data and quarantined files go first, then the evidence of dead attempts, and their plans last: a plan is what tells
whose the rest is. So a clean-up may be killed anywhere and is done by the next one.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from tidemark.errors import ContinuityError, NotFound, PreconditionFailed
from tidemark.evidence import evidence_key, evidence_that_counts
from tidemark.ledger import Ledger
from tidemark.planning import read_plan
from tidemark.planning.raw import in_parallel
from tidemark.planning.sweep import GOES, Knowledge, Why, judge
from tidemark.store.base import ObjectInfo
from tidemark.stored import Part, StoredObject, utc_now
from tidemark.table import Lake, ledger_of, live_files, open_table
from tidemark_spark.marks import mend
from tidemark_spark.publish import check_untampered

_NAMED: Final = ("landed", "quarantined")


class Found(Part):
    """An object and why it goes; of ``unknown`` ones, why they stay."""

    key: str
    size: int
    why: Why


class Sweep(StoredObject):
    """What a clean-up did or, for a dry run, would do. ``unknown`` objects stay: nobody knows whose they are."""

    ledger_n: int
    dry_run: bool
    removed: tuple[Found, ...] = ()
    unknown: tuple[Found, ...] = ()
    bytes: int = 0
    attempts: tuple[int, ...] = ()


def sweep(lake: Lake, *, dry_run: bool = False) -> Sweep:
    """Clean up; returns what was removed, and the dead attempts of which nothing is left.

    Raises:
        ContinuityError: evidence of a landed run is missing; nothing was removed.
        TableTampered: somebody changed the table behind Tidemark's back; nothing was removed.
        StoreError: the store did not answer; what is left is the next clean-up's.
    """
    now = utc_now()
    plans = {plan.attempt: plan for plan in in_parallel(lambda key: read_plan(lake, key), _keys(lake))}
    table = open_table(lake)
    ledger = ledger_of(lake, table)
    live = live_files(table) if table is not None else []
    check_untampered(lake, ledger, live)
    named, landed = _evidence(lake, ledger)
    known = Knowledge({one.path for one in live}, named, landed, plans, now)
    removed: list[Found] = []
    unknown: list[Found] = []
    doomed: list[ObjectInfo] = []
    for folder in (lake.keys.root, lake.keys.quarantine):
        objects = {one.key.removeprefix(f"{folder}/"): one for one in _listed(lake, folder)}
        for path, why in judge(known, objects).items():
            info = objects[path]
            if why in GOES:
                doomed.append(info)
                removed.append(Found(key=info.key, size=info.size, why=why))
            elif why == "unknown":
                unknown.append(Found(key=info.key, size=info.size, why=why))
    dead = known.dead()
    if not dry_run:
        in_parallel(lambda info: _delete(lake, info), doomed)
        for key_of in (partial(evidence_key, lake), lake.keys.result, lake.keys.attempt):
            in_parallel(lake.store.delete, [key_of(one) for one in dead])
        mend(lake, ledger, ledger.dates)
    return Sweep(
        ledger_n=ledger.n,
        dry_run=dry_run,
        removed=tuple(removed),
        unknown=tuple(unknown),
        bytes=sum(one.size for one in removed),
        attempts=tuple(dead),
    )


def _keys(lake: Lake) -> list[str]:
    return [one.key for one in lake.store.list(lake.keys.attempts)]


def _listed(lake: Lake, folder: str) -> Iterator[ObjectInfo]:
    log = f"{folder}/_delta_log/"
    return (one for one in lake.store.list(f"{folder}/") if not one.key.startswith(log))


def _evidence(lake: Lake, ledger: Ledger) -> tuple[set[str], set[int]]:
    """The files that counted evidence names, and the attempts that landed."""
    named: set[str] = set()
    landed = set(ledger.landed)
    seen = 0
    for table in evidence_that_counts(lake, ledger.landed):
        seen += 1
        landed.update(int(one) for one in table["attempt"].unique().to_pylist() if one is not None)
        rows = zip(table["class"].to_pylist(), table["file"].to_pylist(), strict=True)
        named.update(str(file) for kind, file in rows if kind in _NAMED)
    if seen != len(ledger.landed):
        raise ContinuityError(
            f"{lake.url}: the evidence of {len(ledger.landed) - seen} landed runs is gone, and with it what tells "
            "which files hold; restore the objects, nothing is removed without them"
        )
    return named, landed


def _delete(lake: Lake, info: ObjectInfo) -> None:
    """Delete the very object that was listed; one that was replaced or removed meanwhile is the next clean-up's."""
    try:
        lake.store.delete(info.key, if_match=info.etag)
    except (NotFound, PreconditionFailed):
        return
