"""A pack: the newest batches of many partitions of one broker, in one object, until seals hold them.

::

     0                    bytes of the first range       whole batches, untouched
     …                    bytes of the other ranges
     footer position      one line of JSON per range     UTF-8, each line ends with a newline
     end - 32             trailer                        what and where the footer is, with checksums

A pack is created once, under a random name, and never replaced. So it is read without conditions. A line of the footer
describes a range completely, and a :class:`RangePointer` in a head, or in the partition's next range, leads to this
line alone. :mod:`tidemark.raw.packs` follows such chains. The footer as a whole lists the content of a pack.

Source of the format and of its limits: docs/agent-design.md, "The pack".
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from io import BytesIO
from itertools import pairwise
from struct import Struct
from typing import Annotated, Final, NamedTuple, Self

from crc32c import crc32c
from pydantic import AfterValidator, AwareDatetime, Field, model_validator

from tidemark.errors import FormatError, LaterFormat
from tidemark.formats.base import Model, Versioned, canonical, check_format
from tidemark.formats.keys import PackName, TopicPartition, check_topic
from tidemark.formats.raw.manifest import (
    AbortedTransactions,
    LastBatch,
    LineagePairs,
    OpenTransactions,
    PackedPart,
    Restores,
)
from tidemark.store import check_size

MOST_BYTES: Final = 64 << 20
"""Most bytes of all ranges of a pack. The agent has them in memory, and a reader the bytes of a range. Further ranges
go into another pack; a single batch that is larger is sealed."""

MOST_RANGES: Final = 8192
"""Most ranges of a pack: twice the partitions that Kafka advises for a broker. Further ranges go into another pack."""

MOST_LINE: Final = 64 << 10
"""Most bytes of a line of the footer: about 600 B, and 80 B for each open and each aborted transaction. A reader gets
one line a request. A range with more transactions is cut at an earlier batch, or its partition is sealed."""

MOST_FOOTER: Final = 16 << 20
"""Most bytes of a footer: 2 KiB for each of 8,192 ranges. Further ranges go into another pack."""

MOST_UNSEALED_BYTES: Final = 64 << 20
"""Most bytes of a partition that are packed and not sealed: as much as a pack, since an agent that seals a tail from
packs has it in memory. Beyond it, the partition is sealed."""

MOST_UNSEALED_RANGES: Final = 256
"""Most ranges of a partition that are packed and not sealed: a reader makes a request for each, one after the other.
Beyond it, the partition is sealed."""

MOST_UNSEALED_AGE: Final = timedelta(hours=24)
"""Highest age of the oldest batch that is packed and not sealed: a pack stays until all its ranges are sealed, so a
quiet partition would keep the ranges of all others. Beyond it, the partition is sealed."""

TRAILER_SIZE: Final = 32

_MAGIC: Final = b"TMPACK\0"
_VERSION: Final = 1
_TRAILER = Struct(">7sBQIII")
"""Magic, version, footer's position, length and CRC32C, number of ranges. The CRC32C of these 28 bytes follows."""
_END: Final = 64 << 10
"""Bytes of the end of a pack that are read at once: trailer and footer, if there are no more than some 100 ranges."""
_REMEDY: Final = "restore it from a version of the bucket, or wait until its agent has sealed what is in it"


def _check_pack(text: str) -> str:
    PackName.parse(text)
    return text


Topic = Annotated[str, AfterValidator(check_topic)]
TopicId = Annotated[str, Field(pattern="^[A-Za-z0-9_-]{22}$")]


class RangePointer(Model):
    """A pointer to the footer line of a range: ``length`` bytes of a pack at ``position``, with the newline.

    ``pack`` is the pack's key below ``_tails/<cluster>/``: see :class:`~tidemark.formats.keys.PackName`.
    """

    pack: Annotated[str, AfterValidator(_check_pack)]
    position: int = Field(ge=1, le=MOST_BYTES + MOST_FOOTER)
    length: int = Field(ge=1, le=MOST_LINE)

    @property
    def name(self) -> PackName:
        """The pack's name."""
        return PackName.parse(self.pack)


class RangeContent(Model):
    """The description of a run of whole batches of a partition, without its place in a pack.

    It accounts for the offsets ``[first, next)``. ``first`` is the end of the partition's previous range or of the last
    seal, even if compaction has left no batch there; ``next`` is the end of the last batch. ``epochs`` are those of the
    batches: (epoch, base offset) at the first batch and wherever the epoch changes, where -1 stands for batches of
    message formats 0 and 1. ``leader_epoch`` is that of the leadership that packs. ``open`` are the transactions that
    are open at the end, ``aborts`` the transactions with a marker, at ``last_offset``, in the range. ``max_timestamp``
    is that of the batches, markers included (milliseconds since 1970, None without such a batch). ``compacted`` is true
    if compaction may have removed offsets. ``previous`` is the partition's last range of this leadership; the first one
    has ``open_before`` in its place, the transactions that are open at ``first`` (None in ranges with ``previous``).
    ``restores`` are those in ``offset.wm`` by then.
    ``last_batch`` is the range's last batch (None: an earlier version wrote the range).
    """

    topic: Topic
    topic_id: TopicId
    partition: int = Field(ge=0)
    first: int = Field(ge=0)
    next: int = Field(ge=0)
    epochs: LineagePairs = Field(min_length=1)
    leader_epoch: int = Field(ge=0)
    restores: Restores = ()
    open: OpenTransactions = ()
    open_before: OpenTransactions | None = None
    aborts: AbortedTransactions = ()
    max_timestamp: int | None
    compacted: bool = False
    shipped_at: AwareDatetime
    previous: RangePointer | None = None
    last_batch: LastBatch | None = None

    @model_validator(mode="after")
    def _check_content(self) -> Self:
        if self.first >= self.next:
            raise ValueError("first must be below next")
        if not -1 <= self.epochs[0][0] <= self.epochs[-1][0] <= self.leader_epoch:
            raise ValueError("epochs must be from -1 to leader_epoch")
        if not self.first <= self.epochs[0][1] <= self.epochs[-1][1] < self.next:
            raise ValueError("epochs must start from first on and below next")
        if any(next_epoch <= epoch or at <= start for (epoch, start), (next_epoch, at) in pairwise(self.epochs)):
            raise ValueError("epochs and their starts must increase")
        if any(not 0 <= transaction.first_offset < self.next for transaction in self.open):
            raise ValueError("open: a transaction must begin below next")
        if len({transaction.producer_id for transaction in self.open}) < len(self.open):
            raise ValueError("open: a producer has one transaction at a time")
        if any(not 0 <= transaction.first_offset < transaction.last_offset < self.next for transaction in self.aborts):
            raise ValueError("aborts: a transaction must begin below its marker, which must be below next")
        markers = [self.first - 1, *(transaction.last_offset for transaction in self.aborts)]
        if any(marker >= other for marker, other in pairwise(markers)):
            raise ValueError("aborts: markers must be from first on, and increase")
        return self

    def __str__(self) -> str:
        return f"{TopicPartition(self.topic, self.partition)} from {self.first} to {self.next}"


class Range(Versioned, RangeContent):
    """A line of the footer: the range, and its ``size`` bytes, which lie in the pack at ``position``.

    A line is also read alone. So it would state a later ``format`` than the first, which is left out.
    """

    position: int = Field(ge=0, le=MOST_BYTES)
    size: int = Field(ge=1, le=MOST_BYTES)
    crc32c: str = Field(pattern="^[0-9a-f]{8}$")

    @model_validator(mode="after")
    def _check_place(self) -> Self:
        if self.end > MOST_BYTES:
            raise ValueError(f"position and size must end at or below {MOST_BYTES}")
        return self

    @property
    def end(self) -> int:
        """The byte of the pack after the range."""
        return self.position + self.size

    @property
    def part(self) -> PackedPart:
        """The range in the form of a manifest's ``parts``."""
        return PackedPart(first=self.first, next=self.next, crc32c=self.crc32c, shipped_at=self.shipped_at)


class WrittenRange(NamedTuple):
    """The writer's record of a range that is to be stored, with the place of its line."""

    part: PackedPart
    size: int
    begins_chain: bool
    pointer: RangePointer


class PackedRange(NamedTuple):
    """A range of the stored pack ``key``, from its footer."""

    key: str
    range: Range


def pack_name() -> str:
    """A new pack's name, without its broker: 32 random hexadecimal digits, so that no two packs share a key."""
    return secrets.token_hex(16)


def line_bytes(content: RangeContent) -> int:
    """Most bytes that the line of a range takes anywhere in a pack; :data:`MOST_LINE` is the limit."""
    return len(_line(content.model_dump(mode="json"), MOST_BYTES, MOST_BYTES, 0))


def build(broker: int, ranges: Iterable[tuple[RangeContent, bytes]], most: int = MOST_BYTES) -> Iterator[Pack]:
    """New packs of ``broker`` with ``ranges`` in order, as few as the limits allow; raises errors of :meth:`Pack.add`.

    Each is given out before the next one is begun. It has at most ``most`` bytes of ranges, or a single larger range.
    """
    pack: Pack | None = None
    for content, data in ranges:
        if pack is not None and (pack.size + len(data) > most or not pack.add(content, data)):
            yield pack
            pack = None
        if pack is None:
            pack = Pack(PackName(broker, pack_name()))
            pack.add(content, data)
    if pack is not None:
        yield pack


class Pack:
    """A pack that is to be stored under ``name``, built range by range; ``size`` is that of its ranges."""

    def __init__(self, name: PackName) -> None:
        self.name = name
        self.size = 0
        self._stream = BytesIO()
        self._ranges: list[tuple[PackedPart, int, bool]] = []
        self._lines: list[bytes] = []
        self._footer_size = 0

    def add(self, content: RangeContent, data: bytes) -> bool:
        """Add a range with the batches ``data``. Returns False, and adds nothing, if this pack has no room for it.

        Raises:
            FormatError: no pack has room for it. Its partition must be sealed, or the range cut at an earlier batch.
        """
        fields = content.model_dump(mode="json")
        longest = len(_line(fields, MOST_BYTES, MOST_BYTES, 0))
        if not 1 <= len(data) <= MOST_BYTES:
            rule = f"size: has {len(data)} bytes of batches, and a pack has 1 to {MOST_BYTES}"
            raise FormatError(str(self.name), f"{content}: {rule}: cut the range, or seal the partition")
        if longest > MOST_LINE:
            rule = f"open, aborts, epochs: the line takes {longest} bytes, and may have {MOST_LINE}"
            raise FormatError(str(self.name), f"{content}: {rule}: cut the range, or seal the partition")
        if (
            self.size + len(data) > MOST_BYTES
            or self._footer_size + longest > MOST_FOOTER
            or len(self._ranges) == MOST_RANGES
        ):
            return False
        checksum = crc32c(data)
        line = _line(fields, self.size, len(data), checksum)
        part = PackedPart(
            first=content.first, next=content.next, crc32c=f"{checksum:08x}", shipped_at=content.shipped_at
        )
        self._ranges.append((part, len(data), content.previous is None))
        self._lines.append(line)
        self._stream.seek(self.size)
        self._stream.write(data)
        self.size += len(data)
        self._footer_size += len(line)
        return True

    @property
    def body(self) -> bytes:
        """The bytes of the pack, with all ranges that were added, at least one."""
        assert self._ranges, "a pack has a range"
        footer = b"".join(self._lines)
        start = _TRAILER.pack(_MAGIC, _VERSION, self.size, len(footer), crc32c(footer), len(self._ranges))
        self._stream.seek(self.size)
        self._stream.writelines([footer, start, crc32c(start).to_bytes(4)])
        return self._stream.getvalue()

    @property
    def ranges(self) -> list[WrittenRange]:
        """The ranges that were added, in order. Another one would move the places of their lines."""
        written: list[WrittenRange] = []
        name, position = str(self.name), self.size
        for range_, line in zip(self._ranges, self._lines, strict=True):
            written.append(WrittenRange(*range_, RangePointer(pack=name, position=position, length=len(line))))
            position += len(line)
        return written


def lines_of(read: Callable[[int, int], bytes], key: str, size: int) -> dict[int, PackedRange]:
    """All ranges of the pack ``key`` of ``size`` bytes, in order, by the position of their lines.

    ``read`` is called once or twice, and returns the bytes from one position to another.

    Raises:
        FormatError: the object is no pack, is damaged or cut short, or breaks a limit.
    """
    check_size(key, size, MOST_BYTES + MOST_FOOTER + TRAILER_SIZE)
    start = max(0, size - _END)
    end = read(start, size) if size else b""
    trailer = _trailer(end[-TRAILER_SIZE:], key, size)
    if trailer.position >= start:
        footer = end[trailer.position - start : -TRAILER_SIZE]
    else:
        footer = read(trailer.position, trailer.position + trailer.length)
    if crc32c(footer) != trailer.crc32c:
        raise _damaged(key, f"footer: its CRC32C is not {trailer.crc32c:08x} as the trailer says")
    if footer.count(b"\n") != trailer.ranges or not footer.endswith(b"\n"):
        raise _damaged(key, f"footer: has not one line for each of {trailer.ranges} ranges")
    ranges: dict[int, PackedRange] = {}
    at, begins = 0, trailer.position
    for number, line in enumerate(footer.split(b"\n")[:-1]):
        range_ = _parse(line, key, f"range {number}")
        if range_.position != at:
            raise _damaged(key, f"range {number}: position: is {range_.position}, and the range before it ends at {at}")
        ranges[begins] = PackedRange(key, range_)
        at, begins = range_.end, begins + len(line) + 1
    if at != trailer.position:
        raise _damaged(key, f"footer: begins at {trailer.position}, and the last range ends at {at}")
    return ranges


def range_of_line(line: bytes, key: str, pointer: RangePointer) -> PackedRange:
    """The range of ``line``, which lies at ``pointer`` in the pack ``key``. Raises FormatError for an invalid line."""
    place = f"line at byte {pointer.position}"
    if line.find(b"\n") != len(line) - 1:
        raise _damaged(key, f"{place}: does not end with its only newline")
    range_ = _parse(line[:-1], key, place)
    if range_.end > pointer.position:
        raise _damaged(key, f"{place}: position, size: the range ends at {range_.end}, behind its own line")
    return PackedRange(key, range_)


def check_range_bytes(data: bytes, packed: PackedRange) -> bytes:
    """``data``, the batches of a range. Raises FormatError unless these are the bytes that the agent wrote."""
    key, range_ = packed
    if f"{crc32c(data):08x}" != range_.crc32c:
        place = f"bytes {range_.position} to {range_.end}"
        rule = f"crc32c: {place} have {crc32c(data):08x}, and should have {range_.crc32c}"
        raise _damaged(key, f"{range_}: {rule}")
    return data


class _Trailer(NamedTuple):
    position: int
    length: int
    crc32c: int
    ranges: int


def _trailer(raw: bytes, key: str, size: int) -> _Trailer:
    """The trailer of a pack of ``size`` bytes. In each version magic and version come first, and a CRC32C last."""
    if len(raw) < TRAILER_SIZE or not raw.startswith(_MAGIC):
        raise _damaged(key, "trailer: is not that of a pack: cut short, or something else wrote it")
    _, version, *fields = _TRAILER.unpack_from(raw)
    if crc32c(raw[: _TRAILER.size]) != int.from_bytes(raw[_TRAILER.size :]):
        raise _damaged(key, "trailer: its CRC32C is not the one at its end")
    check_format(key, "packs", version, _VERSION)
    trailer = _Trailer(*fields)
    if not trailer.position <= MOST_BYTES or not trailer.length <= MOST_FOOTER:
        rule = f"{trailer.length} bytes at {trailer.position}, and may have {MOST_FOOTER} at most at {MOST_BYTES}"
        raise _damaged(key, f"footer: has {rule}")
    if trailer.position + trailer.length + TRAILER_SIZE != size:
        rule = f"{trailer.length} bytes at {trailer.position} do not end before the trailer of a pack of {size} bytes"
        raise _damaged(key, f"footer: {rule}")
    if not 1 <= trailer.ranges <= MOST_RANGES:
        raise _damaged(key, f"trailer: {trailer.ranges} ranges, and a pack has 1 to {MOST_RANGES}")
    return trailer


def _line(fields: dict[str, object], position: int, size: int, checksum: int) -> bytes:
    """The footer's line of a range; ``fields`` are those of :class:`RangeContent`."""
    return canonical({**fields, "position": position, "size": size, "crc32c": f"{checksum:08x}"}) + b"\n"


def _parse(line: bytes, key: str, place: str) -> Range:
    if len(line) >= MOST_LINE:
        raise _damaged(key, f"{place}: has {len(line) + 1} bytes, and may have {MOST_LINE}")
    try:
        return Range.from_bytes(line, key)
    except LaterFormat:
        raise
    except FormatError as error:
        raise _damaged(key, f"{place}: {error.rule}") from error


def _damaged(key: str, rule: str) -> FormatError:
    return FormatError(key, f"{rule}; {_REMEDY}")
