"""The decision about a run of a state table: what has landed since its last commit, and whether that can be merged.

Rows that were added can be merged. If rows may have been removed or changed, by a rebuild, a repair, an erasure or a
cut at an unclean election, the state is made again from the whole table. The chain of ledgers tells which.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

from tidemark.errors import ContinuityError, NotFound
from tidemark.formats.table.ledger import Ledger
from tidemark.formats.table.state_ledger import StateLedger
from tidemark.table.delta_table import TopicTable

_ADDING: Final = {"ingest", "replay"}
_KEEPING: Final = {"compact", "fold", "retain"}
"""Kinds of runs that change no row, or that the state outlives."""


class StateChange(NamedTuple):
    """The change of a topic's table since the last commit of its state, or ``rebuild`` with the reason ``why``.

    ``bounds`` are by (incarnation, partition) the offsets ``[from, to)`` that landed since; the rows of ``replays``,
    which are attempts, lie below.
    """

    kind: Literal["nothing", "merge", "rebuild"]
    bounds: dict[tuple[int, int], tuple[int, int]]
    replays: tuple[int, ...] = ()
    why: str = ""


def state_change(table: TopicTable, ledger: Ledger, state: StateLedger | None, settings: str) -> StateChange:
    """The change from ``state`` to the table's committed ``ledger``; ``settings`` is the present digest.

    Raises:
        ContinuityError: the state must be made again, but retention has removed rows of the table.
    """
    whole = {known.key: (0, known.next_offset) for known in ledger.partitions}
    if state is None:
        change = StateChange("rebuild", whole, why="there is none yet") if ledger.rows else StateChange("nothing", {})
    elif why := _obstacle(table, ledger, state, settings):
        change = StateChange("rebuild", whole, why=why)
    else:
        change = _added(table, ledger, state)
    if change.kind == "rebuild":
        check_whole(table, ledger, change.why)
    return change


def check_whole(table: TopicTable, ledger: Ledger, why: str) -> None:
    """Raise ContinuityError if the table lacks rows that retention removed: keys would be missing in the state."""
    expired = sorted(dt for dt, known in ledger.dates.items() if known.state == "expired")
    if expired:
        raise ContinuityError(
            f"{table.url}: the state must be made again ({why}), but retention has removed the rows of "
            f"{len(expired)} dates, {expired[0]} the first, and with them keys; nothing was changed"
        )


def _obstacle(table: TopicTable, ledger: Ledger, state: StateLedger, settings: str) -> str:
    """The reason that the changes since ``state`` cannot be merged; empty if they can."""
    if state.settings != settings:
        return "the topic's settings have changed"
    branches = {through.key: through.branch for through in state.through}
    if any(known.branch != branches.get(known.key, known.branch) for known in ledger.partitions):
        return "an unclean election has cut off records"
    for since in _since(table, ledger, state):
        if since is None:
            return "the ledgers since then are gone"
        if since.kind not in _ADDING | _KEEPING:
            return f"a run of the kind {since.kind} has changed the table"
    return ""


def _since(table: TopicTable, ledger: Ledger, state: StateLedger) -> Iterator[Ledger | None]:
    """The ledgers from the newest back to the one that ``state`` equals, exclusive; None where the chain breaks."""
    while ledger.n > state.of.n:
        yield ledger
        if ledger.parent is None:
            break
        try:
            ledger = Ledger.load(table.store, table.keys.ledger(ledger.parent.n, ledger.parent.attempt))
        except NotFound:
            break
    if (ledger.n, ledger.attempt) != (state.of.n, state.of.attempt):
        yield None


def _added(table: TopicTable, ledger: Ledger, state: StateLedger) -> StateChange:
    before = {through.key: through.next_offset for through in state.through}
    ends = {known.key: (before.get(known.key, 0), known.next_offset) for known in ledger.partitions}
    replays = tuple(since.attempt for since in _since(table, ledger, state) if since and since.kind == "replay")
    bounds = {key: (start, end) for key, (start, end) in ends.items() if end > start or replays}
    return StateChange("merge" if bounds else "nothing", bounds, replays)


def still_holds(table: TopicTable, ledger: Ledger, state: StateLedger) -> bool:
    """True if the rows that ``state`` was made of are still those of the table, whose newest ledger is ``ledger``."""
    return ledger.n >= state.of.n and not _obstacle(table, ledger, state, state.settings)
