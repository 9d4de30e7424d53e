"""The objects that may be removed below a table and its quarantine, and the reasons that others stay. Pure.

For each object the first rule that fits counts:

1. A name or folder that starts with ``_`` is not a data file of a run: it stays.
2. A live file of the table stays.
3. A file of landed or quarantined rows that effective evidence names stays until a landed run has replaced it, and then
   while a reader may still read an older version of the table.
4. A file of an attempt (its name ends in the digest of one of the attempt's tasks) that evidence does not name stays
   while the attempt may still commit. The attempt died, or its commit left the file out.
5. A file that no plan and no evidence names stays, and is reported.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

from tidemark.formats.table.ledger import file_digest
from tidemark.formats.table.plan import RUN_LIMIT, ConversionTask, RunPlan

MARGIN: Final = timedelta(hours=1)
"""Allowance for clocks that differ, and for a commit that was under way."""

RUN_OVER: Final = RUN_LIMIT + MARGIN
"""Age of a plan above which its run cannot commit any more, even if clocks differ."""

TOMBSTONES: Final = timedelta(days=7)
"""Time for which a replaced file stays for readers of older versions: Delta's ``deletedFileRetentionDuration``."""

Why = Literal["internal", "live", "held", "replaced", "young", "dead", "left out", "unknown"]
"""Rules 1 to 5; ``replaced``, ``dead`` and ``left out`` mean that the object is removed."""

GOES: Final = frozenset[Why]({"replaced", "dead", "left out"})


@dataclass(frozen=True, slots=True)
class Knowledge:
    """The state of a table: its live files, the files that effective evidence names, and their replacements.

    ``landed`` are all attempts that ever landed and still have evidence. ``plans`` are the stored plans by attempt.
    A path in the quarantine never equals a path in the table: names contain the first row, which is in one of them.
    """

    live: Collection[str]
    named: Collection[str]
    landed: Collection[int]
    plans: Mapping[int, RunPlan]
    now: datetime

    def is_over(self, plan: RunPlan) -> bool:
        """True if the attempt can no longer commit."""
        return self.now - plan.created_at > RUN_OVER

    def folded(self, listed: Collection[int]) -> list[int]:
        """The attempts, not ``listed`` by the ledger, with evidence that a finished fold has taken over.

        No run reads their own evidence any more.
        """
        young = {fold for plan in self.plans.values() if not self.is_over(plan) for fold in plan.folds}
        known = {attempt for attempt, plan in self.plans.items() if attempt in self.landed and self.is_over(plan)}
        return sorted(known - young - set(listed))

    def dead(self) -> list[int]:
        """The attempts that did not land and never will."""
        return sorted(number for number, plan in self.plans.items() if number not in self.landed and self.is_over(plan))


def all_landed(ledger: Iterable[int], named: Iterable[int], plans: Mapping[int, RunPlan]) -> set[int]:
    """The attempts in the ledger's list and in evidence rows, and all attempts folded into these."""
    attempts: set[int] = set()
    new = {*ledger, *named}
    while new:
        attempts |= new
        new = {fold for attempt in new if attempt in plans for fold in plans[attempt].folds} - attempts
    return attempts


def judge(known: Knowledge, paths: Iterable[str]) -> dict[str, Why]:
    """The verdict on each object, by its path below the table or its quarantine."""
    gone_since: dict[str, datetime] = {}
    for plan in known.plans.values():
        if plan.attempt in known.landed:
            at = plan.created_at + RUN_OVER  # it was committed before that
            gone_since |= {path: max(at, gone_since.get(path, at)) for path in plan.replaced}
    authors = {digest: plan for plan in known.plans.values() for digest in digests_of(plan)}
    return {path: _judged(known, path, gone_since.get(path), authors.get(digest_in(path))) for path in paths}


def digests_of(plan: RunPlan) -> set[str]:
    """The digests at the end of the names of the attempt's files."""
    return {digest_of(plan, task) for task in plan.tasks}


def digest_of(plan: RunPlan, task: ConversionTask) -> str:
    """The digest at the end of the names of the files of ``task``."""
    labels = [range_.label for range_ in task.ranges]
    return file_digest(task.topic_id, labels, plan.configuration, plan.code, plan.attempt)


def _judged(known: Knowledge, path: str, gone_since: datetime | None, author: RunPlan | None) -> Why:
    if any(part.startswith("_") for part in path.split("/")):
        return "internal"
    if path in known.live:
        return "live"
    if path in known.named:
        if gone_since is None:
            return "held"
        return "replaced" if known.now - gone_since > TOMBSTONES else "young"
    if author is None:
        return "unknown"
    if not known.is_over(author):
        return "young"
    return "left out" if author.attempt in known.landed else "dead"


def digest_in(path: str) -> str:
    """The digest at the end of the name of the file ``path``."""
    return path.rpartition("_")[2].removesuffix(".parquet")
