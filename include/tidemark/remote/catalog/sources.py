"""Sources of a view's offsets: seals, and behind them the ranges of the tail."""

from __future__ import annotations

from tidemark.formats.raw.gaps import Gap
from tidemark.raw.segments import SegmentPiece, is_whole
from tidemark.raw.transactions import decided_end
from tidemark.remote.catalog.aborted_transactions import ScanStep
from tidemark.remote.catalog.segment_index import StoredSegments
from tidemark.remote.catalog.watermark_view import WatermarkView


class Sources:
    """The seals ``segments``, and the tail of the view in each call. Thread-safe."""

    def __init__(self, segments: StoredSegments) -> None:
        self._segments = segments
        self._looked_back = ""  # the ETag of the watermark under which all was listed again for a hole

    def piece(self, view: WatermarkView, offset: int) -> SegmentPiece | None:
        """The piece at ``offset``, None if there is none; below the end of the seals, all is listed again before that.

        That is done once for each watermark.
        """
        if offset >= view.sealed:
            return view.packed(offset)
        piece = self._segments.piece(offset, view.lineage)
        if piece is None and self._looked_back != view.etag:
            while piece is None and self._segments.look_back(offset):
                piece = self._segments.piece(offset, view.lineage)
            if piece is None:
                self._looked_back = view.etag
        return piece

    def unrecorded(self, view: WatermarkView, offset: int) -> Gap:
        """The hole at ``offset`` that no agent knows: a segment below the watermark is missing."""
        assert view.stored is not None
        after = self._segments.next_piece(offset, view.sealed, view.lineage)
        fields = {
            "from": offset,
            "to": min(after.start if after else view.sealed, view.clear_until(offset)),
            "reason": "unknown",
            "detected_at": view.stored.watermark.written_at,
        }
        return Gap.model_validate(fields)

    def following(self, view: WatermarkView, offset: int) -> ScanStep:
        """The first piece at or after ``offset``, beyond all missing offsets."""
        piece = self._next(view, offset)
        end = piece.start if piece else view.end
        return ScanStep(piece, self._segments.within(offset, end) if end > offset else ())

    def decided(self, view: WatermarkView) -> int:
        """The end, up to that of ``view``, of the offsets with all transactions decided.

        The last segment or range that is valid up to its end decides. A segment that leaves the lineage before its end
        lists the transactions open on its own branch. So may one that continues beyond the view's end.
        """
        if view.tail.opened is not None:
            return decided_end(view.end, view.tail.opened)[0]
        at, limit = view.end, view.end
        while at > view.start:
            missing = next((part for part in view.missing if part.start < at <= part.end), None)
            if missing is not None:
                at = missing.start
                continue
            piece = self.piece(view, at - 1)
            if piece is not None and is_whole(piece.segment, view.lineage, at - 1):
                return decided_end(limit, piece.segment.open_transactions)[0]
            at = piece.segment.base if piece is not None else self._segments.last_end(at - 1, view.lineage)
            limit = at
        return view.start

    def _next(self, view: WatermarkView, offset: int) -> SegmentPiece | None:
        at = max(offset, view.start)
        while at < view.end:
            missing = view.missing.contiguous_from(at)
            if missing > at:
                at = missing
            elif at >= view.sealed:
                return view.packed(at)
            elif piece := self.piece(view, at) or self._segments.next_piece(at, view.sealed, view.lineage):
                return piece
            else:
                at = view.sealed
        return None
