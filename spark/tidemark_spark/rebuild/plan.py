"""Plans a rebuild of dates from raw, with the dates that exchange rows with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tidemark.errors import ConfigError
from tidemark.formats.table.plan import RunPlan
from tidemark.planning import plan_rebuild
from tidemark.table.delta_table import TopicTable
from tidemark_spark.model import Executor
from tidemark_spark.rebuild.affected_dates import AffectedDates, moves, settings_differ


class Rebuild(NamedTuple):
    """A plan that is not written yet, and the dates between which rows move, if known."""

    plan: RunPlan
    moves: AffectedDates | None


def planned(table: TopicTable, dates: Sequence[str] | None, executor: Executor, *, extend: bool) -> Rebuild:
    """Plan the rebuild of ``dates``, or of all dates; with ``extend`` also of the dates that exchange rows with them.

    If records of the dates landed with other settings than the topics file has now, or with ``extend``, raw is read
    once more to find the dates between which rows move. Otherwise only other code could move rows, and the run refuses
    that.

    Raises:
        ConfigError: rows would move to other dates, and ``extend`` is not given.
        ContinuityError: raw no longer holds all the offsets.
    """
    affected = None if dates is None else affected_by(table, dates, executor, extend=extend)
    return Rebuild(plan_rebuild(table, affected.dates if affected else dates), affected)


def affected_by(table: TopicTable, dates: Sequence[str], executor: Executor, *, extend: bool) -> AffectedDates | None:
    """The dates that exchange rows with ``dates``, None if only other code could move rows; see :func:`planned`."""
    if not (extend or settings_differ(table, dates)):
        return None
    affected = moves(table, dates, executor, extend=extend)
    others = [dt or "none" for dt in affected.dates if dt not in dates]
    if others and not extend:
        rule = (
            f"with the current settings, these dates and {', '.join(others)} exchange rows; to rebuild them all, "
            f"run rebuild.py --from {dates[0]} --to {dates[-1]} --extend (--dry-run shows them)"
        )
        raise ConfigError("rebuild.py", [("--from, --to", rule)])
    return affected
