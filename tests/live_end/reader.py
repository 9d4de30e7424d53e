"""The reader: plans from heads, ``offset.wm`` and manifests, lands by lineage, and takes back what a cut removed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.live_end.model import (
    Abort,
    Batch,
    Changed,
    Conflict,
    Entry,
    Log,
    Manifest,
    Open,
    Range,
    Reference,
    Rules,
    Steps,
    UnknownOutcome,
    Watermark,
    is_live,
    lineage_of,
    live_until,
    scan,
)
from tests.live_end.store import Store, Stored, aborts_key, folder, head_key, log_key, watermark_key
from tidemark.kafka_log import Lineage


class Landed(NamedTuple):
    """What the table has of an offset: which record, its verdict, and the marker that decided it."""

    epoch: int
    uid: int
    verdict: str
    decided_by: int


@dataclass
class Table:
    """The table and its ledger for one incarnation: all below ``next`` has a class.

    Markers up to ``reach`` decided transactions below ``next``; ``lineage`` is that of all below ``reach``.
    """

    next: int = 0
    reach: int = 0
    lineage: Lineage = field(default_factory=Lineage)
    epoch: int = -1
    rows: dict[int, Landed] = field(default_factory=dict)


@dataclass(frozen=True)
class Source:
    """A seal or a range of a pack: what it covers, on which lineage, and the transactions open at its end."""

    base: int
    next: int
    lineage: Lineage
    open: tuple[Open, ...]
    seal: Manifest | None
    log: Log = ()
    aborts: tuple[Abort, ...] = ()
    pack: str = ""


class Piece(NamedTuple):
    """The offsets ``[start, end)``, to be read from ``source``."""

    source: Source
    start: int
    end: int


class Reader:
    """Lands one incarnation after the other. ``told`` gets what is committed and what is reported."""

    def __init__(self, store: Store, rules: Rules, topics: Sequence[str], told: Told, brokers: int) -> None:
        self.tables: dict[str, Table] = {}
        self.runs = 0
        """How many plans have ended: retention waits for those that were under way."""
        self._store = store
        self._rules = rules
        self._topics = topics
        self._told = told
        self._brokers = brokers

    def run(self) -> Steps[None]:
        while True:
            for topic in tuple(self._topics):
                try:
                    yield from self._land(topic)
                except (Conflict, UnknownOutcome, Changed):
                    continue
                finally:
                    self.runs += 1

    def _land(self, topic: str) -> Steps[None]:
        table = self.tables.setdefault(topic, Table())
        if self._rules("manifests after heads"):
            heads = yield from self._heads(topic)
            watermark: Stored | None = yield self._store.get(watermark_key(topic))
            seals = yield from self._seals(topic)
        else:
            seals = yield from self._seals(topic)
            watermark = yield self._store.get(watermark_key(topic))
            heads = yield from self._heads(topic)
        if watermark is None:
            return
        written: Watermark = watermark.value
        start = self._cut(table, written)
        _, sealed = cover(seals, written.lineage, start)
        ranges = yield from self._ranges(heads, written, sealed)
        pieces, hole = cover([*seals, *ranges], written.lineage, start)
        if hole < written.next or (hole < self._promised(heads) and not self._rules("no hole above offset.wm is LOST")):
            self._told.lost(topic, hole)
            return
        loaded = yield from self._load(topic, pieces)
        self._commit(topic, table, written, start, loaded)

    # -- what is there -------------------------------------------------------------------------------------------------

    def _heads(self, topic: str) -> Steps[list[Entry]]:
        found: list[Entry] = []
        for broker in range(self._brokers):
            head: Stored | None = yield self._store.get(head_key(broker))
            every = not self._rules("entries name their topic id")
            found += [entry for entry in (head.value if head else ()) if every or entry.topic == topic]
        return found

    def _promised(self, heads: Iterable[Entry]) -> int:
        return max((entry.tail_end for entry in heads), default=0)

    def _seals(self, topic: str) -> Steps[list[Source]]:
        listed: list[tuple[str, str]] = yield self._store.list(folder(topic))
        seals: list[Source] = []
        for key, _ in listed:
            if key.endswith(".manifest"):
                found: Stored = yield self._store.get(key)
                one: Manifest = found.value
                seals.append(Source(one.base, one.next, one.lineage, one.open, one))
        return seals

    def _ranges(self, heads: Iterable[Entry], written: Watermark, sealed: int) -> Steps[list[Source]]:
        """The ranges beyond the ``sealed`` end, of all chains that reach there. The lineage of each is its batches'."""
        found: list[Source] = []
        for entry in heads:
            if live_until(entry.lineage, written.lineage, 0, entry.tail_end) <= sealed:
                continue
            reference: Reference | None = entry.last
            while reference is not None:
                pack: Stored | None = yield self._store.get(reference.pack)
                if pack is None:
                    break
                one: Range = pack.value[reference.number]
                lineage = lineage_of(one.log) if self._rules("lineage decides") else written.lineage
                found.append(Source(one.first, one.next, lineage, one.open, None, one.log, one.aborts, reference.pack))
                reference = one.previous if one.first > sealed else None
        return found

    def _load(self, topic: str, pieces: Sequence[Piece]) -> Steps[list[Piece]]:
        """The pieces with their bytes."""
        loaded: list[Piece] = []
        for piece in pieces:
            seal = piece.source.seal
            if seal is None:
                pack: Stored | None = yield self._store.get(piece.source.pack)
                if pack is None:
                    self._told.gone(topic, piece.source.pack)
                loaded.append(piece)
                continue
            log: Stored | None = yield self._store.get(log_key(topic, seal.stem))
            assert log is not None, f"{seal.stem} of {topic} has a manifest and no .log"
            aborts: tuple[Abort, ...] = ()
            if seal.has_aborts:
                there: Stored | None = yield self._store.get(aborts_key(topic, seal.stem))
                assert there is not None, f"{seal.stem} of {topic} has a manifest and no .txnindex"
                aborts = there.value
            source = Source(seal.base, seal.next, seal.lineage, seal.open, seal, log.value, aborts)
            loaded.append(Piece(source, piece.start, piece.end))
        return loaded

    # -- cuts ----------------------------------------------------------------------------------------------------------

    def _cut(self, table: Table, written: Watermark) -> int:
        """Where the next run starts: at a cut, or before a transaction that a marker behind the cut decided."""
        at = self._left_at(table, written)
        reach = table.reach if self._rules("markers above the landed end count") else table.next
        if at is None or at >= reach:
            return table.next
        undone = [offset for offset, row in table.rows.items() if offset < at and row.decided_by >= at]
        return min([at, table.next, *undone])

    def _left_at(self, table: Table, written: Watermark) -> int | None:
        if self._rules("whole lineage"):
            return live_until(table.lineage, written.lineage, 0, table.reach)
        end = min(table.next, written.next)
        at = live_until(table.lineage, written.lineage, 0, end)
        if at < end:
            return at
        cut = end < table.next and any(one.epoch > table.epoch for one in written.truncations)
        return end if cut else None

    # -- landing -------------------------------------------------------------------------------------------------------

    def _commit(self, topic: str, table: Table, written: Watermark, start: int, pieces: Sequence[Piece]) -> None:
        """One commit: take back what lies from ``start`` on, land what is decided."""
        end = self._decided(written, start, pieces)
        for offset in [one for one in table.rows if one >= start]:
            del table.rows[offset]
        log = batches_of(pieces)
        aborts = {
            abort
            for piece in pieces
            for abort in piece.source.aborts
            if is_live(abort.last, abort.epoch, written.lineage) or not self._rules("markers by lineage")
        }
        for batch in log:
            if start <= batch.base and batch.next <= end:
                land(table, batch, log, aborts)
        if end != start or start != table.next:
            table.next = max(end, start)
            table.reach = max([table.next, *(row.decided_by + 1 for row in table.rows.values())])
            table.lineage = written.lineage.truncated(table.reach)
            table.epoch = written.epoch
        self._told.committed(topic, table, written)

    def _decided(self, written: Watermark, start: int, pieces: Sequence[Piece]) -> int:
        """How far all transactions are decided.

        A source that is live to its end lists what is open there. Of one that a cut leaves, the batches tell: whatever
        began before ``start`` was decided when it landed, so that a scan from there on finds all that is open.
        """
        if not pieces:
            return start
        last = pieces[-1]
        opened = last.source.open
        if last.end < last.source.next and self._rules("open transactions of whole sources only"):
            opened, _ = scan(batches_of(pieces), ())
        return max(start, min([last.end, *(one.first for one in opened if one.first < last.end)]))


def batches_of(pieces: Iterable[Piece]) -> list[Batch]:
    """The batches of all pieces, in order."""
    return [
        batch for piece in pieces for batch in piece.source.log if piece.start <= batch.base and batch.next <= piece.end
    ]


def land(table: Table, batch: Batch, log: Sequence[Batch], aborts: Iterable[Abort]) -> None:
    """Land the rows of ``batch`` that are decided by markers in ``log`` or by ``aborts``."""
    verdict, marker = "row", -1
    if batch.marker is not None:
        return
    if batch.producer is not None:
        markers = (one for one in log if one.marker and one.producer == batch.producer and one.base > batch.base)
        marker = next((one.base for one in markers), -1)
        hit = [one for one in aborts if one.producer == batch.producer and one.first <= batch.base < one.last]
        if hit:
            verdict, marker = "aborted", min(one.last for one in hit)
    for row in batch.rows:
        assert row not in table.rows, f"offset {row} landed twice"
        table.rows[row] = Landed(batch.epoch, batch.uid, verdict, marker)


def cover(sources: Sequence[Source], lineage: Lineage, start: int) -> tuple[list[Piece], int]:
    """Pieces from ``start`` on, each offset once, and the end of the last one.

    A seal goes before a range, unless a transaction is open at its end: a range of a compacted log may not list what it
    decides. Then the source counts that reaches furthest.
    """
    pieces: list[Piece] = []
    at = start
    while True:
        near = [(live_until(one.lineage, lineage, at, one.next), one) for one in sources if one.base <= at < one.next]
        live = [found for found in near if found[0] > at]
        if not live:
            return pieces, at
        first = [found for found in live if found[1].seal is not None and not found[1].open]
        reach, best = max(first or live, key=lambda found: (found[0], found[1].base))
        pieces.append(Piece(best, at, reach))
        at = reach


class Told:
    """What the oracle hears of the reader."""

    def lost(self, topic: str, offset: int) -> None:
        """The reader reports ``offset`` as LOST."""

    def gone(self, topic: str, pack: str) -> None:
        """A run was planned with ``pack``, and does not find it."""

    def committed(self, topic: str, table: Table, written: Watermark) -> None:
        """The reader has committed by the lineage of ``written``."""
