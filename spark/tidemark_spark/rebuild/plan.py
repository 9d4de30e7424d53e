"""Dates made again from raw, from the command line: which ones, what it would do, what would change; then the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tidemark.errors import ConfigError
from tidemark.formats.plan import RunPlan
from tidemark.planning import plan_rebuild
from tidemark.table.delta_table import TopicTable
from tidemark_spark.audit.worker import Examine
from tidemark_spark.rebuild.affected_dates import AffectedDates, moves, settings_differ


class Rebuild(NamedTuple):
    """A plan, which is not written yet; and where rows move, if that was found out."""

    plan: RunPlan
    moves: AffectedDates | None


def planned(table: TopicTable, dates: Sequence[str] | None, examine: Examine, *, extend: bool) -> Rebuild:
    """How to make ``dates`` again, or all if None; with ``extend`` also those that exchange rows with them.

    Where rows move is found out, by reading raw once more, if records of the dates landed with other settings than
    the topics file has now, or with ``extend``. Else no date can change, but by other code, which the run refuses.

    Raises:
        ConfigError: rows would come to other dates, and ``extend`` is not given.
        ContinuityError: raw does not hold all the offsets any more.
    """
    if dates is None or not (extend or settings_differ(table, dates)):
        return Rebuild(plan_rebuild(table, dates), None)
    found = moves(table, dates, examine, extend=extend)
    others = [one or "none" for one in found.dates if one not in dates]
    if others and not extend:
        rule = (
            f"by the settings of now, these dates and {', '.join(others)} exchange rows; all dates that do are made "
            f"again by rebuild.py --from {dates[0]} --to {dates[-1]} --extend, and shown with --dry-run"
        )
        raise ConfigError("rebuild.py", [("--from, --to", rule)])
    return Rebuild(plan_rebuild(table, found.dates), found)
