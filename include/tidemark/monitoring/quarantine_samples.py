"""Numbers of records that a topic's runs parsed and refused, from the evidence that each writes before its commit."""

from __future__ import annotations

from typing import Final, NamedTuple

from tidemark.errors import NotFound
from tidemark.formats.table.ledger import Ledger
from tidemark.monitoring.observer_state import ParseSample
from tidemark.table.delta_table import TopicTable
from tidemark.table.evidence import PARSED, read_evidence

_MOST_RUNS: Final = 50
"""The most ledgers that an observation looks back; there is one observation every minute."""


class NewSamples(NamedTuple):
    """The samples of new runs, the newest first. ``reset``: they begin with a replay or a rebuild.

    Such a run tries refused records again, so records refused before no longer count.
    """

    samples: tuple[ParseSample, ...]
    reset: bool


def samples_of(table: TopicTable, ledger: Ledger, seen: int | None) -> NewSamples:
    """The samples of the runs after ledger ``seen``; only the last run's if ``seen`` is None."""
    samples: list[ParseSample] = []
    known: Ledger | None = ledger
    oldest = ledger.n - 1 if seen is None else max(seen, ledger.n - _MOST_RUNS)
    while known is not None and known.n > max(0, oldest):
        if known.kind in {"ingest", "replay", "rebuild", "repair"} and (sample := _sample(table, known)):
            samples.append(sample)
        if known.kind in {"replay", "rebuild", "repair"}:
            return NewSamples(tuple(samples), reset=True)
        known = _parent(table, known)
    return NewSamples(tuple(samples), reset=False)


def _parent(table: TopicTable, ledger: Ledger) -> Ledger | None:
    """The previous ledger; None if there is none, or if a vacuum has removed it since the watch last looked."""
    if ledger.parent is None:
        return None
    key = table.keys.ledger(ledger.parent.n, ledger.parent.attempt)
    try:
        return Ledger.load(table.store, key)
    except NotFound:
        return None


def _sample(table: TopicTable, ledger: Ledger) -> ParseSample | None:
    """The sample of one run; None if a vacuum has folded the run's evidence."""
    try:
        rows = read_evidence(table, ledger.attempt).select(["class", "rows"]).to_pylist()
    except NotFound:
        return None
    parsed = sum(row["rows"] for row in rows if row["class"] in PARSED)
    refused = sum(row["rows"] for row in rows if row["class"] == "quarantined")
    return ParseSample(at=ledger.committed_at, parsed=parsed, refused=refused)
