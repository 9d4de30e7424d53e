"""Ranges, packs and heads made by hand."""

from __future__ import annotations

from datetime import UTC, datetime
from struct import Struct
from typing import Any, Final

from crc32c import crc32c

from tidemark.formats.base import canonical
from tidemark.formats.keys import ControlKeys, PackName
from tidemark.formats.raw.head import HeadEntry
from tidemark.formats.raw.pack import TRAILER_SIZE, RangeContent, RangePointer

CONTROL: Final = ControlKeys("ts", "east")
NAME: Final = PackName(5, "0f" * 16)
TOPIC_ID: Final = "9qjWLzpzSeKF3tvzv1l6bQ"
NOON: Final = datetime(2026, 11, 23, 12, 0, 0, 123000, UTC)
POINTER: Final = RangePointer(pack=str(NAME), position=4096, length=498)

TRAILER: Final = Struct(">8sQIII")
MAGIC: Final = b"TMPACK\0\1"


def content(first: int = 1200, end: int = 1260, **changes: Any) -> RangeContent:
    """A range of orders-17 that the leader of epoch 3 packs."""
    fields: dict[str, Any] = {
        "topic": "orders", "topic_id": TOPIC_ID, "partition": 17, "first": first, "next": end, "epochs": [(3, first)],
        "leader_epoch": 3, "max_timestamp": 1795413549000, "shipped_at": NOON,
    }  # fmt: skip
    return RangeContent.model_validate({**fields, **changes})


def entry(end: int = 1260, last: RangePointer = POINTER, **changes: Any) -> HeadEntry:
    """The entry of a head of broker 5 for orders-17."""
    fields: dict[str, Any] = {
        "topic": "orders", "topic_id": TOPIC_ID, "partition": 17, "epoch": 3, "lineage": [(2, 900), (3, 1000)],
        "tail_end": end, "last": last, "high_watermark": end, "observed_at": NOON, "oldest_unstored": 0.0,
    }  # fmt: skip
    return HeadEntry.model_validate({**fields, **changes})


def line(position: int, size: int, of: RangeContent | None = None, /, **changes: Any) -> bytes:
    """A line of a footer, with whatever is wrong in it."""
    place = {"position": position, "size": size, "crc32c": "00000000"}
    return canonical({**(of or content()).model_dump(mode="json"), **place, **changes}) + b"\n"


def trailer(position: int, footer: bytes, count: int, magic: bytes = MAGIC, /, **changes: int) -> bytes:
    """A trailer whose own checksum is right."""
    fields = {"position": position, "length": len(footer), "crc32c": crc32c(footer), "count": count, **changes}
    start = TRAILER.pack(magic, *fields.values())
    return start + crc32c(start).to_bytes(4)


def pack_of(data: bytes, *lines: bytes, **changes: int) -> bytes:
    """A pack with these lines, whose checksums are right."""
    footer = b"".join(lines)
    return data + footer + trailer(len(data), footer, len(lines), **changes)


def parts_of(body: bytes) -> tuple[bytes, bytes, bytes]:
    """(bytes of the ranges, footer, trailer) of a pack."""
    _, position, length, *_ = TRAILER.unpack_from(body, len(body) - TRAILER_SIZE)
    return body[:position], body[position : position + length], body[position + length :]
