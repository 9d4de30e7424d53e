"""Decodes the bytes of a stored segment to blocks of records, which are checked and cut to the reader's offsets.

Promises: every record of the stretch's offsets, in order, once; no record of a control batch, and none of an aborted
transaction that the stretch names or that its mask has. A batch that breaks a rule is an error that names key, byte and
offset, and no record of it is delivered. Memory is bounded by :data:`LIMITS` and the largest batch, for a segment of
any size.

Relies on :mod:`tidemark.decode`, which copies all that it decodes: the bytes may be overwritten after a block.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidemark.decode import SCHEMA, DecodeLimits, Headers, aborted_mask, decode_batches, scan_headers
from tidemark.decode.offset_mask import OffsetMask
from tidemark.decode.schema import octets
from tidemark.errors import SegmentError
from tidemark.kafka_log import AbortedTransaction
from tidemark.raw.segments import Segment

LIMITS: Final = DecodeLimits(arena_bytes=1 << 20, rows=1 << 14)
"""The size of a piece that is decoded at once: small, so that the first records come soon and few wait to be taken."""

NOTHING: Final = pa.RecordBatch.from_pylist([], schema=SCHEMA)
"""The rows of a block without records, which only advances its reader."""

MAGIC: Final = b"kafka_magic"
"""Metadata of the rows of a block: the message format, ``b"0"``, ``b"1"`` or ``b"2"``; v0 has no timestamps."""

SCHEMAS: Final = {magic: SCHEMA.with_metadata({MAGIC: str(magic)}) for magic in (0, 1, 2)}
"""The schemas of the rows of blocks, by message format."""


class Block(NamedTuple):
    """Records of one partition that lie next to one another in the log.

    ``rows`` has the columns of :data:`tidemark.decode.SCHEMA`, and may have no row. ``start`` is the offset at which
    the block begins; a reader that has taken it is at ``next_offset``, past control batches, aborted transactions,
    compacted and erased offsets. ``leader_epoch`` is that of the last batch, -1 if unknown.
    """

    rows: pa.RecordBatch
    start: int
    next_offset: int
    leader_epoch: int

    def cut(self, count: int) -> tuple[Block, Block]:
        """The block's first ``count`` rows, and the rest; ``count`` is less than the number of rows."""
        first = self.rows.slice(0, count)
        offset = int(first.column("kafka_offset")[count - 1].as_py()) + 1
        epoch = int(first.column("kafka_leader_epoch")[count - 1].as_py())
        return Block(first, self.start, offset, epoch), self._replace(rows=self.rows.slice(count), start=offset)

    def since(self, offset: int) -> Block:
        """The rest of the block for a reader at ``offset``, which lies in the block."""
        return self._replace(rows=self.rows.slice(self._row_at(offset)), start=offset)

    def before(self, offset: int) -> Block:
        """The part of the block below ``offset``."""
        if offset >= self.next_offset:
            return self
        return self._replace(rows=self.rows.slice(0, self._row_at(offset)), next_offset=offset)

    def _row_at(self, offset: int) -> int:
        """The first row at or after ``offset``."""
        column = self.rows.column("kafka_offset")
        offsets = octets(column.buffers()[1]).view(np.int64)[column.offset : column.offset + len(column)]
        return int(np.searchsorted(offsets, offset))


class Decoder:
    """Decodes the pieces of one segment for the offsets ``[start, end)``, in the order of the file."""

    def __init__(
        self,
        segment: Segment,
        start: int,
        end: int,
        aborted: tuple[AbortedTransaction, ...],
        mask: OffsetMask,
        *,
        partition: int,
        incarnation: int,
        check_crcs: bool = True,
    ) -> None:
        self._segment = segment
        self._end = end
        self._aborted = aborted
        self._mask = mask
        self._partition = partition
        self._incarnation = incarnation
        self._check_crcs = check_crcs
        self._batches_end: int | None = None  # offset after the last batch that was seen
        self._lineage = np.array(segment.lineage.entries, np.int64).reshape(-1, 2)
        self.next_offset = start
        self.used = 0

    @property
    def done(self) -> bool:
        """True once all offsets have been delivered."""
        return self.next_offset >= self._end

    def blocks(self, data: NDArray[np.uint8], position: int, *, last: bool) -> Iterator[Block]:
        """The blocks of ``data``, bytes of the segment from ``position``, where a batch starts.

        Sets :attr:`used` to the bytes up to the end of the last whole batch: the next piece begins there. With ``last``
        no byte follows. Raises :class:`SegmentError` for a batch that breaks a rule, or is missing.
        """
        start = position
        data, position = self._wanted(data, position, last=last)
        failed: SegmentError | None = None
        try:
            headers = self._scanned(data, position, last=last)
        except SegmentError as error:  # raised below, after the batches before it
            failed = error
            headers = self._scanned(data[: error.position - position], position, last=False)
        self.used = (int(headers["position"][-1] + headers["size"][-1]) if len(headers) else position) - start
        if len(headers):
            self._batches_end = int(headers["base_offset"][-1] + headers["last_offset_delta"][-1]) + 1
            yield from self._decoded(data, headers, position)
        if self.done:
            return
        if failed is not None:
            raise failed
        if last:
            self._check_end(position + len(data))
            yield self._moved(self._end, -1)

    def _wanted(self, data: NDArray[np.uint8], position: int, *, last: bool) -> tuple[NDArray[np.uint8], int]:
        """``data`` from the first batch that reaches the wanted offsets: damage below them does not matter then."""
        if self._batches_end is not None and self._batches_end >= self.next_offset:
            return data, position
        name, base = self._segment.key, self._segment.base
        try:
            headers = scan_headers(
                data,
                name,
                base,
                position=position,
                expected=self._batches_end,
                allow_partial_tail=not last,
                verify=False,
            )
        except SegmentError:
            return data, position  # the scan below finds the error too, after the batches before it
        ends = headers["base_offset"] + headers["last_offset_delta"] + 1
        below = int(np.searchsorted(ends, self.next_offset, "right"))
        if not below:
            return data, position
        skipped = int(headers["position"][below - 1] + headers["size"][below - 1]) - position
        self._batches_end = int(ends[below - 1])
        return data[skipped:], position + skipped

    def _scanned(self, data: NDArray[np.uint8], position: int, *, last: bool) -> Headers:
        headers = scan_headers(
            data,
            self._segment.key,
            self._segment.base,
            position=position,
            expected=self._batches_end,
            allow_partial_tail=not last,
            verify=self._check_crcs,
        )
        self._check(headers)
        return headers

    def _decoded(self, data: NDArray[np.uint8], headers: Headers, position: int) -> Iterator[Block]:
        assert self._batches_end is not None
        reached = min(self._batches_end, self._end)
        wanted = headers["base_offset"] < self._end  # a v0/v1 wrapper's is its last offset: see decode_batches
        within = headers[wanted | (headers["magic"] < 2)]
        last = headers[wanted][-1] if wanted.any() else headers[0]
        for run in np.split(within, np.flatnonzero(np.diff(within["magic"])) + 1):
            yield from self._rows(data, run, position)
        if reached > self.next_offset:
            yield self._moved(reached, int(last["leader_epoch"]))

    def _rows(self, data: NDArray[np.uint8], headers: Headers, position: int) -> Iterator[Block]:
        """The blocks of batches of one format; of a bad batch, the blocks before it and then the error."""
        try:
            for rows in self._batches(data, headers, position):
                offset = int(rows.column("kafka_offset")[-1].as_py()) + 1
                epoch = int(rows.column("kafka_leader_epoch")[-1].as_py())
                columns, schema = self._mask.without(rows).columns, SCHEMAS[int(headers["magic"][0])]
                block = Block(pa.RecordBatch.from_arrays(columns, schema=schema), self.next_offset, offset, epoch)
                self.next_offset = offset
                yield block
        except SegmentError as error:
            before = headers[headers["position"] < error.position]
            if len(before) < len(headers):
                yield from self._rows(data, before, position)
            raise

    def _batches(self, data: NDArray[np.uint8], headers: Headers, position: int) -> Iterator[pa.RecordBatch]:
        return decode_batches(
            data,
            headers,
            name=self._segment.key,
            partition=self._partition,
            incarnation=self._incarnation,
            select=~aborted_mask(headers, self._aborted) if self._aborted else None,
            from_offset=self.next_offset,
            to_offset=self._end,
            position=position,
            limits=LIMITS,
        )

    def _moved(self, offset: int, leader_epoch: int) -> Block:
        block = Block(NOTHING, self.next_offset, offset, leader_epoch)
        self.next_offset = offset
        return block

    def _check(self, headers: Headers) -> None:
        """Compare the batches with the manifest: epochs, and no missing batches except for compaction.

        A batch's checksum covers neither its offset nor its epoch.
        """
        modern = headers["magic"] == 2
        starts = headers["base_offset"]
        ends = starts + headers["last_offset_delta"] + 1
        if not self._segment.compacted and modern.all():
            expected = self.next_offset if self._batches_end is None else self._batches_end
            before = np.concatenate([[expected], ends[:-1]])
            self._refuse(headers, starts > before, "batches before it are missing, and the segment is not compacted")
        if len(self._lineage):
            index = np.searchsorted(self._lineage[:, 1], starts, "right") - 1
            other = (index >= 0) & modern & (self._lineage[index, 0] != headers["leader_epoch"])
            self._refuse(
                headers, other, "its leader epoch is not the one that the segment's lineage has for its offset"
            )

    def _refuse(self, headers: Headers, broken: NDArray[np.bool_], rule: str) -> None:
        if broken.any():
            row = headers[int(np.flatnonzero(broken)[0])]
            raise SegmentError(self._segment.key, int(row["position"]), int(row["base_offset"]), rule)

    def _check_end(self, position: int) -> None:
        if not self._segment.compacted:
            rule = f"the batches end here, but the manifest has offsets up to {self._end}"
            raise SegmentError(self._segment.key, position, self.next_offset, rule)
