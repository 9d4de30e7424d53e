"""The files of a table that may hold erased rows although no version that counts has them: when they may go.

The name of a file tells its partition and offsets, so no file is read.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from tidemark.concurrency import in_parallel
from tidemark.errors import NotFound
from tidemark.formats.table.ledger import Ledger
from tidemark.formats.table.plan import RunPlan, RunResult
from tidemark.formats.table.statuses import MirrorKey, MirrorState, MirrorStatus
from tidemark.planning.common import masked_offsets
from tidemark.raw_topic import RawTopic
from tidemark.table.delta_table import TopicTable

_NAME: Final = re.compile(r"[0-9]+_([0-9]+)_([0-9]+)_([0-9]+)_[0-9a-f]+\.parquet", re.ASCII)


class Replaced(NamedTuple):
    """The commit of a run that replaced files: its time, or a later one, and its ledger's number if that is known."""

    at: datetime
    ledger_n: int | None


def span_of(path: str) -> tuple[int, int, int] | None:
    """(Partition of any incarnation, first offset, last one) of a file's rows; None if its name does not tell."""
    if (name := _NAME.fullmatch(path.rpartition("/")[2])) is None:
        return None
    partition, first, last = map(int, name.groups())
    return partition, first, last


@dataclass(frozen=True, slots=True)
class ErasedRows:
    """The masked ``offsets`` of each partition, ascending, and when files with rows of them may go.

    ``offsets`` are of all incarnations and leader epochs, which a name does not tell apart. ``numbers`` has the number
    of the last mask of each place. A replaced file goes ``grace`` after its replacement, but not before each of the
    ``catalogs``, by name, has forgotten the snapshots that list it; a state of None is not known.
    """

    offsets: Mapping[int, Sequence[int]]
    numbers: Mapping[str, int]
    grace: timedelta
    catalogs: Mapping[str, MirrorState | None]

    def unknown_to(self, plan: RunPlan) -> bool:
        """True if ``plan`` does not know all masks."""
        return any(number > plan.masks.get(place, 0) for place, number in self.numbers.items())

    def may_be_in(self, path: str) -> bool:
        """True if the file ``path`` may hold rows of masked offsets, by its name."""
        if (span := span_of(path)) is None:
            return False
        partition, first, last = span
        masked = self.offsets.get(partition, ())
        return bisect_left(masked, first) < bisect_left(masked, last + 1)

    def listed_by(self, ledger_n: int | None) -> str:
        """The snapshots that may list a file replaced by the ledger ``ledger_n``, and what to do; empty without any."""
        for name, state in self.catalogs.items():
            if state is None or state.oldest_ledger is None or ledger_n is None:
                return f"snapshots of catalog {name} may list it: mirror.py must have listed the table there"
            held = [ref for ref, listed in sorted(state.refs.items()) if listed < ledger_n]
            if held:
                return f"{held[0]} of {state.identifier} in catalog {name} lists it: delete that there"
            if state.oldest_ledger < ledger_n:
                return f"snapshots of {state.identifier} in catalog {name} list it until mirror.py has expired them"
        return ""


def erased_rows(table: TopicTable, ledger: Ledger) -> ErasedRows | None:
    """The erased rows of ``table``; None if no mask counts. Raises FormatError and StoreError."""
    raw = RawTopic(table)
    numbers = raw.mask_numbers()
    if not numbers:
        return None
    offsets: dict[int, list[int]] = {}
    for (_, partition), masks in raw.masks_of(ledger, pending=False).items():
        offsets.setdefault(partition, []).extend(masked_offsets(table, masks))
    names = [catalog.name for catalog in table.deployment.catalogs_of(table.topic)]
    status = MirrorStatus.load_or_none(table.store, table.keys.deployment.mirrors) if names else None
    states = status.by_key if status is not None else {}
    return ErasedRows(
        {partition: sorted(masked) for partition, masked in offsets.items()},
        numbers,
        table.topic.retention.erased,
        {name: states.get(MirrorKey(table.topic.topic, name)) for name in names},
    )


def commits_of(table: TopicTable, plans: Iterable[RunPlan]) -> dict[int, Replaced]:
    """The commits of ``plans`` that have landed, by attempt, as far as their results tell. Raises StoreError."""
    known = in_parallel(lambda plan: _commit(table, plan), list(plans))
    return {attempt: replaced for attempt, replaced in known if replaced is not None}


def _commit(table: TopicTable, plan: RunPlan) -> tuple[int, Replaced | None]:
    key = table.keys.result(plan.attempt)
    try:
        result, written = RunResult.load(table.store, key), table.store.head(key).modified
    except NotFound:
        return plan.attempt, None
    if result.status != "landed":
        return plan.attempt, None
    # A result that was made again without its ledger has the number of the plan's.
    return plan.attempt, Replaced(written, result.ledger_n if result.ledger_n > plan.ledger_n else None)
