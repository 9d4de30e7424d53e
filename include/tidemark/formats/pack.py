"""A pack: the newest batches of many partitions of one broker, in one object, until seals hold them.

::

     0                    bytes of the first range       whole batches, untouched
     …                    bytes of the other ranges
     footer position      one line of JSON per range     UTF-8, each line ends with a newline
     end - 32             trailer                        what and where the footer is, with checksums

A pack is created once, under a random name, and never replaced. So it is read without conditions. A line of the footer
says all that a reader needs to know of a range, and is read alone by a :class:`RangePointer`: from a head, or from the
partition's next range. :mod:`tidemark.raw.packs` follows such chains. The footer as a whole is for those who ask what a
pack holds.

Source of the format and of its limits: docs/agent-design.md, "The pack".
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from io import BytesIO
from itertools import pairwise
from struct import Struct
from typing import Annotated, Final, NamedTuple, Self

from crc32c import crc32c
from pydantic import AfterValidator, AwareDatetime, Field, ValidationError, model_validator

from tidemark.errors import FormatError
from tidemark.formats.base import Model, canonical, describe
from tidemark.formats.keys import ControlKeys, PackName, TopicPartition, check_topic
from tidemark.formats.manifest import LineagePairs, OpenTransaction, PackedPart
from tidemark.formats.plan import Aborted
from tidemark.store import Store, check_size

MOST_BYTES: Final = 64 << 20
"""Bytes of all ranges of a pack. The agent has them in memory, and a reader those of a range. What is more goes into
another pack; a single batch that is larger is sealed."""

MOST_RANGES: Final = 8192
"""Ranges of a pack: twice the partitions that Kafka advises for a broker. What is more goes into another pack."""

MOST_LINE: Final = 64 << 10
"""Bytes of a line of the footer: about 500 B, and 80 B for each open and each aborted transaction. A reader gets one
line a request. A range with more transactions is cut at an earlier batch, or its partition is sealed."""

MOST_FOOTER: Final = 16 << 20
"""Bytes of a footer: 2 KiB for each of 8,192 ranges. What is more goes into another pack."""

MOST_UNSEALED_BYTES: Final = 64 << 20
"""Bytes of a partition that are packed and not sealed: as much as a pack, since whoever seals a tail from packs has it
in memory. Beyond it, the partition is sealed."""

MOST_UNSEALED_RANGES: Final = 256
"""Ranges of a partition that are packed and not sealed: a reader makes a request for each, one after the other. Beyond
it, the partition is sealed."""

MOST_UNSEALED_AGE: Final = timedelta(hours=24)
"""How old the oldest batch may be that is packed and not sealed: a pack stays until all its ranges are sealed, so that
one quiet partition would keep those of all others. Beyond it, the partition is sealed."""

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
    """Where the footer line of a range lies: ``length`` bytes of a pack at ``position``, with the newline.

    ``pack`` is the pack's key below ``_tails/<cluster>/``: see :class:`~tidemark.formats.keys.PackName`.
    """

    pack: Annotated[str, AfterValidator(_check_pack)]
    position: int = Field(ge=1, le=MOST_BYTES + MOST_FOOTER)
    length: int = Field(ge=1, le=MOST_LINE)

    @property
    def name(self) -> PackName:
        """The pack."""
        return PackName.parse(self.pack)


class RangeContent(Model):
    """What a run of whole batches of a partition is: all that is known before it lies in a pack.

    It accounts for the offsets ``[first, next)``. ``first`` is where the partition's previous range ended, or the last
    seal, also if compaction has left no batch there; ``next`` is where the last batch ends. ``epochs`` are those of the
    batches: (epoch, base offset) at the first batch and wherever the epoch changes, where -1 stands for batches of
    message formats 0 and 1. ``leader_epoch`` is that of the leadership that packs. ``open`` are the transactions that
    are open at the end, ``aborts`` those whose markers, at ``last_offset``, are in the range. ``max_timestamp`` is that
    of the batches, markers included (milliseconds since 1970, None without such a batch). ``compacted`` says that
    compaction may have removed offsets. ``previous`` is the partition's last range of this leadership.
    """

    topic: Topic
    topic_id: TopicId
    partition: int = Field(ge=0)
    first: int = Field(ge=0)
    next: int = Field(ge=0)
    epochs: LineagePairs = Field(min_length=1)
    leader_epoch: int = Field(ge=0)
    open: tuple[OpenTransaction, ...] = ()
    aborts: tuple[Aborted, ...] = ()
    max_timestamp: int | None
    compacted: bool = False
    shipped_at: AwareDatetime
    previous: RangePointer | None = None

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
        if any(not 0 <= one.first_offset < self.next for one in self.open):
            raise ValueError("open: a transaction must begin below next")
        if len({one.producer_id for one in self.open}) < len(self.open):
            raise ValueError("open: a producer has one transaction at a time")
        if any(not 0 <= one.first_offset < one.last_offset < self.next for one in self.aborts):
            raise ValueError("aborts: a transaction must begin below its marker, which must be below next")
        markers = [self.first - 1, *(one.last_offset for one in self.aborts)]
        if any(marker >= other for marker, other in pairwise(markers)):
            raise ValueError("aborts: markers must be from first on, and increase")
        return self

    def __str__(self) -> str:
        return f"{TopicPartition(self.topic, self.partition)} from {self.first} to {self.next}"


class Range(RangeContent):
    """A line of the footer: the range, and its ``size`` bytes, which lie in the pack at ``position``."""

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
        """The byte of the pack after the range's."""
        return self.position + self.size

    @property
    def part(self) -> PackedPart:
        """The range as manifests list it."""
        return PackedPart(first=self.first, next=self.next, crc32c=self.crc32c, shipped_at=self.shipped_at)


class WrittenRange(NamedTuple):
    """What a writer goes on with of a range that is to be stored, and where its line will lie."""

    first: int
    next: int
    size: int
    crc32c: str
    shipped_at: datetime
    begins_chain: bool
    pointer: RangePointer


class Pack(NamedTuple):
    """A pack that is to be stored under ``name``: its bytes, and its ranges as they were added."""

    name: PackName
    body: bytes
    ranges: tuple[WrittenRange, ...]


class PackedRange(NamedTuple):
    """A range of the stored pack ``key``, as its footer has it."""

    key: str
    range: Range


def pack_name() -> str:
    """A new pack's name, without its broker: 32 random hexadecimal digits, so that no two packs share a key."""
    return secrets.token_hex(16)


def line_bytes(content: RangeContent) -> int:
    """How many bytes the line of a range takes at most, wherever in a pack; at most :data:`MOST_LINE` are allowed."""
    return len(_line(content.model_dump(mode="json"), MOST_BYTES, MOST_BYTES, 0))


def build(broker: int, ranges: Iterable[tuple[RangeContent, bytes]]) -> Iterator[Pack]:
    """New packs of ``broker`` with ``ranges`` in their order, as few as the limits allow; raises as PackWriter.add."""
    writer = PackWriter(PackName(broker, pack_name()))
    empty = True
    for content, data in ranges:
        if not writer.add(content, data):
            yield writer.finish()
            writer = PackWriter(PackName(broker, pack_name()))
            writer.add(content, data)
        empty = False
    if not empty:
        yield writer.finish()


class PackWriter:
    """Makes the pack ``name``, range by range."""

    def __init__(self, name: PackName) -> None:
        self._name = name
        self._body = BytesIO()
        self._size = 0
        self._ranges: list[tuple[int, int, int, str, datetime, bool]] = []
        self._lines: list[bytes] = []
        self._footer_size = 0

    def add(self, content: RangeContent, data: bytes) -> bool:
        """Add a range, whose batches are ``data``; False, and nothing is added, if it has no room in this pack.

        Raises:
            FormatError: it has room in no pack. Its partition is sealed, or the range cut at an earlier batch.
        """
        fields = content.model_dump(mode="json")
        longest = len(_line(fields, MOST_BYTES, MOST_BYTES, 0))
        if not 1 <= len(data) <= MOST_BYTES:
            rule = f"size: has {len(data)} bytes of batches, and a pack has 1 to {MOST_BYTES}"
            raise FormatError(str(self._name), f"{content}: {rule}: cut the range, or seal the partition")
        if longest > MOST_LINE:
            rule = f"open, aborts, epochs: the line takes {longest} bytes, and may have {MOST_LINE}"
            raise FormatError(str(self._name), f"{content}: {rule}: cut the range, or seal the partition")
        if (
            self._size + len(data) > MOST_BYTES
            or self._footer_size + longest > MOST_FOOTER
            or len(self._ranges) == MOST_RANGES
        ):
            return False
        checksum = crc32c(data)
        line = _line(fields, self._size, len(data), checksum)
        begins = content.previous is None
        self._ranges.append((content.first, content.next, len(data), f"{checksum:08x}", content.shipped_at, begins))
        self._lines.append(line)
        self._body.write(data)
        self._size += len(data)
        self._footer_size += len(line)
        return True

    def finish(self) -> Pack:
        """The pack with all that was added, which must be something."""
        assert self._ranges, "a pack has a range"
        footer = b"".join(self._lines)
        start = _TRAILER.pack(_MAGIC, _VERSION, self._size, len(footer), crc32c(footer), len(self._ranges))
        self._body.writelines([footer, start, crc32c(start).to_bytes(4)])
        written: list[WrittenRange] = []
        name, at = str(self._name), self._size
        for one, line in zip(self._ranges, self._lines, strict=True):
            written.append(WrittenRange(*one, RangePointer(pack=name, position=at, length=len(line))))
            at += len(line)
        return Pack(self._name, self._body.getvalue(), tuple(written))


def read_footer(store: Store, key: str, size: int | None = None) -> list[PackedRange]:
    """All ranges of the pack ``key``; requests and errors as of :func:`read_lines`."""
    return [*read_lines(store, key, size).values()]


def read_lines(store: Store, key: str, size: int | None = None) -> dict[int, PackedRange]:
    """All ranges of the pack ``key``, in their order, by the byte at which the line of each begins.

    One or two GETs; one HEAD more without its ``size``, which listings have.

    Raises:
        NotFound: there is no such pack.
        FormatError: it is no pack, is damaged or cut short, or breaks a limit.
        StoreError: the store failed.
    """
    if size is None:
        size = store.head(key).size
    check_size(key, size, MOST_BYTES + MOST_FOOTER + TRAILER_SIZE)
    start = max(0, size - _END)
    end = store.get_range(key, start, size) if size else b""
    trailer = _trailer(end[-TRAILER_SIZE:], key, size)
    if trailer.position >= start:
        footer = end[trailer.position - start : -TRAILER_SIZE]
    else:
        footer = store.get_range(key, trailer.position, trailer.position + trailer.length)
    if crc32c(footer) != trailer.crc32c:
        raise _damaged(key, f"footer: its CRC32C is not {trailer.crc32c:08x} as the trailer says")
    if footer.count(b"\n") != trailer.ranges or not footer.endswith(b"\n"):
        raise _damaged(key, f"footer: has not one line for each of {trailer.ranges} ranges")
    ranges: dict[int, PackedRange] = {}
    at, begins = 0, trailer.position
    for number, line in enumerate(footer.split(b"\n")[:-1]):
        one = _parse(line, key, f"range {number}")
        if one.position != at:
            raise _damaged(key, f"range {number}: position: is {one.position}, and the range before it ends at {at}")
        ranges[begins] = PackedRange(key, one)
        at, begins = one.end, begins + len(line) + 1
    if at != trailer.position:
        raise _damaged(key, f"footer: begins at {trailer.position}, and the last range ends at {at}")
    return ranges


def read_range_line(store: Store, control: ControlKeys, pointer: RangePointer) -> PackedRange:
    """The range whose line lies where ``pointer`` says, in one GET. No checksum covers a line alone.

    Raises:
        NotFound: there is no such pack.
        FormatError: what lies there is no line of a footer.
        StoreError: the store failed, or the pack has no such bytes.
    """
    key, end = control.pack(pointer.name), pointer.position + pointer.length
    return range_of_line(store.get_range(key, pointer.position, end), key, pointer)


def range_of_line(line: bytes, key: str, pointer: RangePointer) -> PackedRange:
    """The range whose ``line`` lies in the pack ``key`` where ``pointer`` says. Raises FormatError if it is none."""
    where = f"line at byte {pointer.position}"
    if line.find(b"\n") != len(line) - 1:
        raise _damaged(key, f"{where}: does not end with its only newline")
    one = _parse(line[:-1], key, where)
    if one.end > pointer.position:
        raise _damaged(key, f"{where}: position, size: the range ends at {one.end}, behind its own line")
    return PackedRange(key, one)


def read_range_bytes(store: Store, packed: PackedRange) -> bytes:
    """The batches of a range, in one GET.

    Raises:
        NotFound: there is no such pack.
        FormatError: they are not the bytes that the agent wrote.
        StoreError: the store failed, or the pack has no such bytes.
    """
    key, one = packed
    data = store.get_range(key, one.position, one.end)
    if f"{crc32c(data):08x}" != one.crc32c:
        rule = f"crc32c: bytes {one.position} to {one.end} have {crc32c(data):08x}, and should have {one.crc32c}"
        raise _damaged(key, f"{one}: {rule}")
    return data


class _Trailer(NamedTuple):
    position: int
    length: int
    crc32c: int
    ranges: int


def _trailer(raw: bytes, key: str, size: int) -> _Trailer:
    """The trailer of a pack of ``size`` bytes: magic and version first, as a later version may have another one."""
    if len(raw) < TRAILER_SIZE or not raw.startswith(_MAGIC):
        raise _damaged(key, "trailer: is not that of a pack: cut short, or something else wrote it")
    _, version, *fields = _TRAILER.unpack_from(raw)
    if version != _VERSION:
        rule = f"trailer: version {version} is not {_VERSION}: written by a newer agent than this reader knows"
        raise FormatError(key, f"{rule}: upgrade the reader; or it is damaged")
    if crc32c(raw[: _TRAILER.size]) != int.from_bytes(raw[_TRAILER.size :]):
        raise _damaged(key, "trailer: its CRC32C is not the one at its end")
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
    """The footer's line of a range with ``fields``, those of :class:`RangeContent`."""
    return canonical({**fields, "position": position, "size": size, "crc32c": f"{checksum:08x}"}) + b"\n"


def _parse(line: bytes, key: str, where: str) -> Range:
    if len(line) >= MOST_LINE:
        raise _damaged(key, f"{where}: has {len(line) + 1} bytes, and may have {MOST_LINE}")
    try:
        return Range.model_validate_json(line)
    except ValidationError as error:
        raise _damaged(key, f"{where}: {describe(error)}") from error


def _damaged(key: str, rule: str) -> FormatError:
    return FormatError(key, f"{rule}; {_REMEDY}")
