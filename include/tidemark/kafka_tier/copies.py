"""The copies of a topic's segments in Kafka's remote tier, the original files that they hold, and their check.

A copy is checked as an agent checks its own bytes: each batch by its CRC, its epoch and its place, each index by them.
The offset and the time index are made again from the batches, like those of any segment that Tidemark stores, but the
copy's own must agree with the batches, too: a damaged object is told rather than passed over. The transaction index is
the copy's own, since only a broker knows the transactions that had begun before the first segment.

The check also tells which copies are of a partition's history: after an unclean election the store has segments of two.
Such copies may agree in base and end, and all be complete: only their leader epochs tell them apart. The store alone
has the history, since a copy's ``leaderEpoch`` index is the whole one that its broker knew. That of the copy with the
highest epoch, and among those with the highest end, is the newest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from tidemark.errors import FormatError, NotFound, PreconditionFailed, SegmentError
from tidemark.formats import object_sizes
from tidemark.kafka_log import (
    BatchHeader,
    Lineage,
    OpenTransaction,
    SegmentScanner,
    SegmentSummary,
    open_transactions,
    parse_leader_epoch_checkpoint,
    parse_producer_snapshot,
    parse_txn_index,
)
from tidemark.kafka_log.indexes import INDEX_ENTRY_SIZE, TIME_INDEX_ENTRY_SIZE, DerivedIndexes, is_abort
from tidemark.kafka_tier.encryption import decryption
from tidemark.kafka_tier.manifest import (
    KINDS,
    MOST_BYTES,
    Chunk,
    CopyName,
    IndexSpan,
    Kind,
    SegmentMetadata,
    TierManifest,
    decompressed,
    parse_key,
)
from tidemark.store import ObjectInfo, Store

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateNumbers

PIECE_BYTES: Final = 8 << 20
"""Bytes of a ``.log`` object that are asked for at a time; a larger chunk is asked for alone."""


@dataclass(frozen=True)
class TierStore:
    """The remote tier of a cluster: its store, the plugin's ``key.prefix``, and the private keys at hand.

    ``keys`` are by the ids of the plugin's key pairs.
    """

    store: Store
    prefix: str
    keys: Mapping[str, RSAPrivateNumbers]


class ListedCopy(NamedTuple):
    """A copy with those of its objects that are there."""

    name: CopyName
    objects: Mapping[Kind, ObjectInfo]

    @property
    def missing(self) -> list[Kind]:
        """The objects that are not there."""
        return [kind for kind in KINDS if kind not in self.objects]


def list_copies(tier: TierStore, topic: str) -> tuple[list[ListedCopy], list[str]]:
    """The copies of all lives of ``topic``, by topic id, partition and base, and the keys of objects of no copy.

    Raises StoreError.
    """
    found: defaultdict[CopyName, dict[Kind, ObjectInfo]] = defaultdict(dict)
    strangers: list[str] = []
    folder = f"{tier.prefix}{topic}-"
    for info in tier.store.list(folder):
        parsed = parse_key(info.key, tier.prefix)
        if parsed is not None and parsed[0].topic == topic:
            found[parsed[0]][parsed[1]] = info
        elif parsed is None and info.key[len(folder) :].find("/") == len("w" * 22):
            strangers.append(info.key)  # in a folder of this topic; a longer name is another topic's
    return [ListedCopy(name, found[name]) for name in sorted(found)], strangers


class TierIndexes(NamedTuple):
    """The indexes of a copy, decrypted: Kafka's own files, and the text of a leader-epoch checkpoint.

    ``producers`` is the snapshot of the segment's end. The history is the broker's whole one up to there, not only that
    of the segment. ``aborted`` is empty if there was no transaction index.
    """

    offsets: bytes
    times: bytes
    producers: bytes
    history: Lineage
    aborted: bytes


@dataclass(frozen=True)
class SegmentCopy:
    """A copy with its manifest. It gives the original bytes, or FormatError with the key of the object at fault."""

    tier: TierStore
    name: CopyName
    objects: Mapping[Kind, ObjectInfo]
    manifest: TierManifest

    @classmethod
    def open(cls, tier: TierStore, listed: ListedCopy) -> SegmentCopy:
        """Read the manifest of a ``listed`` copy.

        Raises:
            NotFound: there is none: the copy does not exist, or is being deleted.
            FormatError: it does not parse, or an object has another size than it says.
            StoreError: the store failed.
        """
        key = listed.name.key(tier.prefix, "rsm-manifest")
        manifest = TierManifest.parse(tier.store.get(key, limit=MOST_BYTES).body, key, listed.name)
        return cls(tier, listed.name, listed.objects, manifest)

    def key(self, kind: Kind) -> str:
        """The key of one of the copy's objects."""
        return self.name.key(self.tier.prefix, kind)

    @cached_property
    def _decrypted(self) -> Callable[[bytes], bytes] | None:
        encryption = self.manifest.encryption
        return None if encryption is None else decryption(encryption, self.tier.keys, self.key("rsm-manifest"))

    def indexes(self) -> TierIndexes:
        """The indexes, from one request.

        Raises:
            FormatError: the object is missing, has another size than the manifest says, or does not decrypt or parse.
            StoreError: the store failed.
        """
        key, spans = self.key("indexes"), self.manifest.segment_indexes
        info = self._object("indexes", spans.size)
        with _as_listed(key):
            body = self.tier.store.get(key, if_match=info.etag, limit=len(spans.all) * object_sizes.SEGMENT_INDEX).body

        def file(span: IndexSpan | None, name: str) -> bytes:
            if span is None or not span.size:
                return b""  # an empty index has no IV and no tag, either
            return self._opened(body[span.position : span.position + span.size], key, name)

        return TierIndexes(
            offsets=file(spans.offset, "offset"),
            times=file(spans.timestamp, "timestamp"),
            producers=file(spans.producer_snapshot, "producerSnapshot"),
            history=_history(file(spans.leader_epoch, "leaderEpoch"), key),
            aborted=file(spans.transaction, "transaction"),
        )

    def log(self) -> Iterator[bytes]:
        """The original ``.log`` in pieces, from ranges of about :data:`PIECE_BYTES`.

        Raises:
            FormatError: the object is missing, or has another size than the manifest says; a chunk does not decrypt, or
                is no frame of its size.
            StoreError: the store failed.
        """
        key, chunks = self.key("log"), self.manifest.chunks(self.key("rsm-manifest"))
        info = self._object("log", chunks[-1].at + chunks[-1].stored if chunks else 0)
        for first, last in _gathered(chunks):
            start, end = chunks[first].at, chunks[last].at + chunks[last].stored
            with _as_listed(key):
                piece = self.tier.store.get_range(key, start, end, if_match=info.etag)
            if self.manifest.is_plain:
                yield piece
                continue
            for number in range(first, last + 1):
                chunk = chunks[number]
                stored = piece[chunk.at - start : chunk.at - start + chunk.stored]
                yield self._original(stored, chunk.size, key, f"chunk {number}, at byte {chunk.at},")

    def _original(self, stored: bytes, size: int, key: str, what: str) -> bytes:
        plain = self._opened(stored, key, what)
        if self.manifest.compression:
            try:
                plain = decompressed(plain, most=size)
            except ValueError as error:
                raise FormatError(key, f"{what} {error}") from error
        if len(plain) != size:
            raise FormatError(key, f"{what} has {len(plain)} bytes, and its manifest says {size}")
        return plain

    def _opened(self, piece: bytes, key: str, what: str) -> bytes:
        if self._decrypted is None:
            return piece
        try:
            return self._decrypted(piece)
        except ValueError as error:
            raise FormatError(key, f"{what} {error}") from error

    def _object(self, kind: Kind, size: int) -> ObjectInfo:
        """The listed object, if it has the size that the manifest gives it."""
        info = self.objects.get(kind)
        if info is None:
            raise FormatError(self.key(kind), "is missing, although its .rsm-manifest is there")
        if info.size != size:
            raise FormatError(self.key(kind), f"has {info.size} bytes, and its .rsm-manifest says {size}")
        return info


def _history(body: bytes, key: str) -> Lineage:
    """The lineage in a leader-epoch checkpoint that is byte for byte as Kafka writes it: nothing else protects it."""
    try:
        history = parse_leader_epoch_checkpoint(body.decode(), key)
    except UnicodeDecodeError as error:
        raise FormatError(key, "leaderEpoch: is no text") from error
    lines = "".join(f"{epoch} {start}\n" for epoch, start in history.entries)
    if f"0\n{len(history.entries)}\n{lines}".encode() != body:
        raise FormatError(key, "leaderEpoch: is no leader-epoch checkpoint as Kafka writes it")
    return history


@contextmanager
def _as_listed(key: str) -> Iterator[None]:
    """Tells that an object which was listed is gone or replaced: it is then as damaged as one that was missing."""
    try:
        yield
    except NotFound as error:
        raise FormatError(key, "was removed while the copy was read, as Kafka's retention does") from error
    except PreconditionFailed as error:
        raise FormatError(key, "was replaced while the copy was read, which Kafka never does") from error


def _gathered(chunks: list[Chunk]) -> Iterator[tuple[int, int]]:
    """The first and last number of consecutive chunks that are asked for at once."""
    first = 0
    for number, chunk in enumerate(chunks):
        if number > first and chunk.at + chunk.stored - chunks[first].at > PIECE_BYTES:
            yield first, number - 1
            first = number
    if chunks:
        yield first, len(chunks) - 1


def newness(about: SegmentMetadata) -> tuple[int, int]:
    """A copy that knows a newer history has a larger value."""
    return about.epochs[-1][0], about.end_offset


def continued(history: Lineage, later: Iterable[SegmentMetadata]) -> Lineage:
    """``history`` with the epochs of newer copies whose own index cannot be read.

    An epoch that begins cuts off all that is stored from there on, as in Kafka's ``LeaderEpochFileCache.assign``.
    """
    for about in sorted(later, key=newness):
        for epoch, start in about.epochs:
            if epoch not in history.epochs:
                kept = (entry for entry in history.entries if entry[0] < epoch and entry[1] < start)
                history = Lineage((*kept, (epoch, start)))
    return history


def belongs(about: SegmentMetadata, history: Lineage) -> bool:
    """True if the whole segment is of ``history``.

    Each of its epochs must be there, and begin where the segment has it begin: the segment's first epoch there or
    earlier. None may end there earlier than in the segment. Kafka cuts its history at the log's start: epochs before
    the first entry say nothing, and of that entry's epoch the start may lie within the segment.
    """
    if not history.entries:
        return False
    first_epoch = history.entries[0][0]
    starts = dict(history.entries)
    known = [(epoch, start) for epoch, start in about.epochs if epoch >= first_epoch]
    if not known or any(epoch not in starts for epoch, _ in known):
        return False
    ends = {epoch: start for (epoch, _), (_, start) in pairwise(history.entries)}
    for (epoch, start), end in zip(known, [*(start for _, start in known[1:]), about.next_offset], strict=True):
        begins_right = epoch == first_epoch or starts[epoch] == start
        begins_before = start == about.start_offset and starts[epoch] <= start
        if not (begins_right or begins_before) or end > ends.get(epoch, end):
            return False
    following = dict(pairwise(epoch for epoch, _ in history.entries))
    return all(following[epoch] == later for (epoch, _), (later, _) in pairwise(known))


_OFFSET: Final = Struct(">ii")
_TIME: Final = Struct(">qi")
_ABORTED: Final = Struct(">hqqqq")


class ProvedCopy(NamedTuple):
    """A sound copy. ``files`` are the indexes to store by extension, ``has_holes`` if compaction has removed batches.

    ``lineage`` is that of the log up to the segment's end, ``open_transactions`` are those open there.
    """

    summary: SegmentSummary
    lineage: Lineage
    open_transactions: tuple[OpenTransaction, ...]
    files: dict[str, bytes]
    has_holes: bool


def prove(
    copy: SegmentCopy,
    history: Lineage,
    open_before: Collection[OpenTransaction] | None,
    write: Callable[[bytes], object] = lambda _piece: None,
) -> ProvedCopy:
    """Read a copy whole, and check it; ``write`` gets its original ``.log`` in pieces.

    ``open_before`` are the transactions open at its start, None if that is not known.

    Raises:
        FormatError: names the object of the copy that is missing or damaged.
        StoreError: the store failed.
    """
    about, indexes, key = copy.manifest.about, copy.indexes(), copy.key("log")
    _check_history(copy, indexes, history)
    opened = tuple(open_before or ())
    scanner = SegmentScanner(key, about.start_offset, open_before=opened)
    derived = DerivedIndexes(about.start_offset, copy.manifest.size, opened)
    entries = _Entries(copy, indexes)
    markers: set[tuple[int, int]] = set()
    expected, has_holes = about.start_offset, False
    before, start = b"", 0
    try:
        for piece in copy.log():
            window, window_start = before + piece, start - len(before)
            for header in scanner.batches(piece):
                _check_epoch(header, about.lineage, key)
                begin = header.position - window_start  # a marker is small: it begins in the former piece or this one
                batch = window[begin : begin + header.size] if header.is_marker else b""
                derived.add(header, batch)
                entries.follow(header)
                if header.is_marker and is_abort(batch):
                    markers.add((header.producer_id, header.base_offset))
                has_holes |= header.base_offset > expected
                expected = header.next_offset
            write(piece)
            before, start = piece, start + len(piece)
        summary = scanner.finish()
    except SegmentError as error:
        raise FormatError(key, f"at byte {error.position}, offset {error.offset}: {error.detail}") from error
    if summary.next_offset != about.next_offset:
        rule = f"ends at offset {summary.next_offset}, and its .rsm-manifest says {about.next_offset}"
        raise FormatError(key, rule)
    entries.finish()
    files = {extension: data for extension, data in derived.files() if extension != "txnindex"}
    _check_aborted(copy, indexes, markers, dict(derived.files()).get("txnindex", b""), known=open_before is not None)
    if indexes.aborted:
        files["txnindex"] = indexes.aborted
    at_end = open_transactions(parse_producer_snapshot(indexes.producers, copy.key("indexes")))
    return ProvedCopy(
        summary,
        history.with_history(indexes.history).truncated(about.next_offset),
        summary.open_transactions if open_before is not None else at_end,
        files,
        has_holes,
    )


def _check_history(copy: SegmentCopy, indexes: TierIndexes, history: Lineage) -> None:
    about, own = copy.manifest.about, indexes.history
    if not belongs(about, own) or own.divergence(history, about.next_offset) is not None:
        rule = f"leaderEpoch: {own.entries} is not the history {history.entries} up to offset {about.end_offset}"
        raise FormatError(copy.key("indexes"), rule)


def _check_epoch(header: BatchHeader, lineage: Lineage, key: str) -> None:
    if header.leader_epoch >= 0 and lineage.epoch_at(header.base_offset) != header.leader_epoch:
        rule = f"holds offset {header.base_offset} of leader epoch {header.leader_epoch}"
        raise FormatError(key, f"{rule}, and its .rsm-manifest has the epochs {lineage.entries}")


def _check_aborted(
    copy: SegmentCopy, indexes: TierIndexes, markers: set[tuple[int, int]], derived: bytes, *, known: bool
) -> None:
    """Check that the transaction index lists the abort markers of the segment, as they follow from the batches.

    Where the transactions open before the segment are not ``known``, one of them may have begun earlier than seen here,
    and have held the last stable offset back.
    """
    key, base = copy.key("indexes"), copy.manifest.about.start_offset
    listed = _aborts(indexes.aborted, key)
    if strange := sorted(listed.keys() - markers):
        raise FormatError(key, f"transaction: lists {strange[0]} (producer, offset), where the .log has no abort")
    for marker, (first, stable) in _aborts(derived, key).items():
        stated = listed.get(marker)
        if stated != (first, stable) and (known or not _may_be(stated, first, stable, base)):
            rule = f"the .log aborts at {marker} (producer, offset) with (first, last stable offset) {first, stable}"
            raise FormatError(key, f"transaction: {rule}, and the index has {stated or 'nothing there'}")


def _may_be(stated: tuple[int, int] | None, first: int, stable: int, base: int) -> bool:
    """True if a transaction that began before the offset ``base`` may explain what an index states."""
    return stated is not None and (stated[0] == first or stated[0] < base) and (stated[1] == stable or stated[1] < base)


def _aborts(raw: bytes, key: str) -> dict[tuple[int, int], tuple[int, int]]:
    """(first offset, last stable offset) of the aborted transactions, by (producer id, the marker's offset)."""
    stable = (entry[4] for entry in _ABORTED.iter_unpack(raw[: len(raw) - len(raw) % _ABORTED.size]))
    entries = zip(parse_txn_index(raw, key), stable, strict=True)
    return {(one.producer_id, one.last_offset): (one.first_offset, at) for one, at in entries}


class _Entries:
    """Compares the entries of the offset and the time index with the batches, while these are read.

    What differs is told at the end: no checksum covers a batch's base offset and length, so a damaged one may
    contradict an entry before the next batch shows that the log is wrong.
    """

    def __init__(self, copy: SegmentCopy, indexes: TierIndexes) -> None:
        self._key, self._base = copy.key("indexes"), copy.manifest.about.start_offset
        for name, raw, size in (
            ("offset", indexes.offsets, INDEX_ENTRY_SIZE),
            ("timestamp", indexes.times, TIME_INDEX_ENTRY_SIZE),
        ):
            if len(raw) % size:
                raise self._error(name, f"{len(raw)} bytes are not a whole number of {size}-byte entries")
        entries = [*_OFFSET.iter_unpack(indexes.offsets)]
        self._positions = [position for _, position in entries]
        self._lasts = [self._base + relative for relative, _ in entries]
        self._times = [(self._base + relative, timestamp) for timestamp, relative in _TIME.iter_unpack(indexes.times)]
        self._position = self._last = self._time = 0  # the entries that were found
        self._wrong: FormatError | None = None

    def follow(self, header: BatchHeader) -> None:
        """Take the next batch."""
        if self._position < len(self._positions) and self._positions[self._position] <= header.position:
            self._expect(self._positions[self._position] == header.position, "offset", self._positions[self._position])
            self._position += 1
        if self._last < len(self._lasts) and self._lasts[self._last] <= header.last_offset:
            self._expect(self._lasts[self._last] == header.last_offset, "offset", self._lasts[self._last])
            self._last += 1
        while self._time < len(self._times) and self._times[self._time][0] <= header.last_offset:
            offset, timestamp = self._times[self._time]
            right = header.base_offset <= offset and timestamp == header.max_timestamp
            self._expect(right, "timestamp", (offset, timestamp))
            self._time += 1

    def finish(self) -> None:
        """Raise FormatError if an entry points elsewhere than to a batch, or is left over behind the last one."""
        self._expect(self._position == len(self._positions) and self._last == len(self._lasts), "offset", "the end")
        self._expect(self._time == len(self._times), "timestamp", "the end")
        if self._wrong is not None:
            raise self._wrong

    def _expect(self, right: bool, name: str, entry: object) -> None:
        if not right and self._wrong is None:
            self._wrong = self._error(name, f"the entry of {entry} points to no batch of the .log")

    def _error(self, name: str, rule: str) -> FormatError:
        return FormatError(self._key, f"{name}: {rule}")
