"""The copies of a topic's segments in Kafka's remote tier, and the original files that they hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from tidemark.errors import FormatError, NotFound, PreconditionFailed
from tidemark.formats import object_sizes
from tidemark.kafka_log import Lineage, parse_leader_epoch_checkpoint
from tidemark.kafka_tier.encryption import Cipher, KeyPairs
from tidemark.kafka_tier.keys import KINDS, CopyName, Kind, parse_key
from tidemark.kafka_tier.manifest import MOST_BYTES, Chunk, IndexSpan, TierManifest, decompressed
from tidemark.store import ObjectInfo, Store

PIECE_BYTES: Final = 8 << 20
"""Bytes of a ``.log`` object that are asked for at a time; a larger chunk is asked for alone."""


@dataclass(frozen=True)
class TierStore:
    """The remote tier of a cluster: its store, the plugin's ``key.prefix``, and the key pairs at hand."""

    store: Store
    prefix: str
    keys: KeyPairs


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
    def _cipher(self) -> Cipher | None:
        encryption = self.manifest.encryption
        return None if encryption is None else self.tier.keys.cipher(encryption, self.key("rsm-manifest"))

    def indexes(self) -> TierIndexes:
        """The indexes, from one request.

        Raises:
            FormatError: the object is missing, has another size than the manifest says, or does not decrypt or parse.
            StoreError: the store failed.
        """
        key, spans = self.key("indexes"), self.manifest.segment_indexes
        info = self._object("indexes", spans.size)
        with _at(key):
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
            with _at(key):
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
        if self._cipher is None:
            return piece
        try:
            return self._cipher.open(piece)
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


class _at:  # noqa: N801 - used as a statement
    """Tells that an object which was listed is gone or replaced: it is then as damaged as one that was missing."""

    def __init__(self, key: str) -> None:
        self._key = key

    def __enter__(self) -> None:
        return

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, NotFound):
            raise FormatError(self._key, "was removed while the copy was read, as Kafka's retention does") from error
        if isinstance(error, PreconditionFailed):
            raise FormatError(self._key, "was replaced while the copy was read, which Kafka never does") from error


def _gathered(chunks: list[Chunk]) -> Iterator[tuple[int, int]]:
    """The first and last number of consecutive chunks that are asked for at once."""
    first = 0
    for number, chunk in enumerate(chunks):
        if number > first and chunk.at + chunk.stored - chunks[first].at > PIECE_BYTES:
            yield first, number - 1
            first = number
    if chunks:
        yield first, len(chunks) - 1
