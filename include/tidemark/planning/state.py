"""The decision about a run of a state table: what has landed since its last commit, and whether that can be merged.

Rows that were added can be merged. If rows may have been removed or changed, by a rebuild, a repair, an erasure or a
cut at an unclean election, the state is made again from the whole table. The chain of ledgers tells which.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal, NamedTuple

from tidemark.errors import NotFound, StateStopped
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


def state_change(
    table: TopicTable, ledger: Ledger, state: StateLedger | None, settings: str, *, rebuild: bool = False
) -> StateChange:
    """The change from ``state`` to the table's committed ``ledger``; ``settings`` is the present digest.

    With ``rebuild``, and without a state, it is all rows of the table.

    Raises:
        StateStopped: the state must be made again, but retention has removed rows of the table.
    """
    if state is None or rebuild:
        why = "it was asked for" if rebuild else "there is none yet"
        return from_all_rows(table, ledger, why) if ledger.rows else StateChange("nothing", {})
    since = list(_since(table, ledger, state))
    if why := _obstacle(ledger, state, settings, since):
        return from_all_rows(table, ledger, why)
    return _added(ledger, state, since)


def from_all_rows(table: TopicTable, ledger: Ledger, why: str) -> StateChange:
    """The change that makes the state again, for the reason ``why``.

    Raises:
        StateStopped: the table lacks rows that retention removed: keys would be missing in the state.
    """
    expired = sorted(dt for dt, known in ledger.dates.items() if known.state == "expired")
    if expired:
        raise StateStopped(
            f"{table.url}: the state must be made again ({why}), but retention has removed the rows of "
            f"{len(expired)} dates, {expired[0]} the first, and with them keys; nothing was changed"
        )
    return StateChange("rebuild", {known.key: (0, known.next_offset) for known in ledger.partitions}, why=why)


def _obstacle(ledger: Ledger, state: StateLedger, settings: str, chain: Sequence[Ledger | None]) -> str:
    """The reason that the changes since ``state`` cannot be merged; empty if they can."""
    if state.settings != settings:
        return "the topic's settings have changed"
    branches = {through.key: through.branch for through in state.through}
    if any(known.branch != branches.get(known.key, known.branch) for known in ledger.partitions):
        return "an unclean election has cut off records"
    for since in chain:
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


def _added(ledger: Ledger, state: StateLedger, chain: Sequence[Ledger | None]) -> StateChange:
    before = {through.key: through.next_offset for through in state.through}
    ends = {known.key: (before.get(known.key, 0), known.next_offset) for known in ledger.partitions}
    replays = tuple(since.attempt for since in chain if since and since.kind == "replay")
    bounds = {key: (start, end) for key, (start, end) in ends.items() if end > start or replays}
    return StateChange("merge" if bounds else "nothing", bounds, replays)


def still_holds(table: TopicTable, ledger: Ledger, state: StateLedger) -> bool:
    """True if the rows that ``state`` was made of are still those of the table, whose newest ledger is ``ledger``."""
    return ledger.n >= state.of.n and not _obstacle(ledger, state, state.settings, list(_since(table, ledger, state)))
