"""Names of a segment's files: the base offset in 20 digits and the kind of file.

Source: Kafka's ``LogFileUtils.filenamePrefixFromOffset``.
"""

from __future__ import annotations

import re
from typing import Final, Literal, cast

SegmentFileKind = Literal["log", "index", "timeindex", "txnindex", "snapshot"]

MAX_OFFSET: Final = (1 << 63) - 1

_MAX_BASE_OFFSET: Final = MAX_OFFSET - (1 << 32)
"""A higher base is damage; below it no arithmetic on offsets of a segment leaves 64 bits."""

_NAME: Final = re.compile(r"([0-9]{20})\.(log|index|timeindex|txnindex|snapshot)", re.ASCII)


def segment_name(base_offset: int) -> str:
    """The stem of a segment's file names: ``00000000000000000042``. Raises ValueError for an impossible offset."""
    if not 0 <= base_offset <= _MAX_BASE_OFFSET:
        raise ValueError(f"{base_offset} is not an offset")
    return f"{base_offset:020d}"


def parse_segment_file(name: str) -> tuple[int, SegmentFileKind] | None:
    """(base offset, kind) of a file of a partition's directory; None for any other name, among them ``….log.deleted``.

    The offset in the name of a ``snapshot`` is that of the segment's END, where the producer state was taken.
    """
    match = _NAME.fullmatch(name)
    if match is None or int(match[1]) > _MAX_BASE_OFFSET:
        return None
    return int(match[1]), cast("SegmentFileKind", match[2])
