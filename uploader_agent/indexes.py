"""Which partitions stand in which watermark index, and what is said about each.

The default bucket's index has all; every other bucket's has the partitions whose segments lie there.
"""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from tidemark.errors import FormatError
from tidemark.layout import ControlKeys, TopicPartition
from tidemark.stored import utc_now
from tidemark.watermark_index import IndexEntry
from uploader_agent.active import ActiveSpan
from uploader_agent.files import SegmentChanged
from uploader_agent.index import IndexWriter
from uploader_agent.partition import LedPartition
from uploader_agent.places import Places
from uploader_agent.settings import IndexSettings

logger = structlog.get_logger(__name__)


class Indexes:
    """Writes all indexes of one broker."""

    def __init__(self, places: Places, broker: int, settings: IndexSettings) -> None:
        self._places = places
        self._broker = broker
        self._settings = settings
        self._default_url = places.control_store.url
        self._writers = {self._default_url: self._writer(self._default_url, places.control)}
        self._spans: dict[TopicPartition, ActiveSpan] = {}

    def reconfigure(self, settings: IndexSettings) -> None:
        """Write at these intervals from now on."""
        self._settings = settings
        for writer in self._writers.values():
            writer.reconfigure(*self._intervals())

    def offer(self, partitions: Iterable[LedPartition], *, now: bool = False) -> bool:
        """Write what has changed, where it is time, or everything ``now``; True if anything was written.

        Raises:
            StoreError: an index could not be written; the next call tries again.
        """
        if not now and not any(writer.due() for writer in self._writers.values()):
            return False
        by_store: dict[str, list[IndexEntry]] = {url: [] for url in self._writers}
        known = {partition.at: partition for partition in partitions}
        self._spans = {at: self._spans.get(at) or ActiveSpan() for at in known}
        for at, partition in known.items():
            entry = self._entry(partition)
            if entry is None:
                continue
            url, control = self._places.bucket(at)
            by_store[self._default_url].append(entry)
            if url != self._default_url:
                by_store.setdefault(url, []).append(entry)
                if url not in self._writers:
                    self._writers[url] = self._writer(url, control)
        written = [self._writers[url].offer(entries, now=now) for url, entries in by_store.items()]
        return any(written)

    def _writer(self, url: str, control: ControlKeys) -> IndexWriter:
        return IndexWriter(self._places.store(url), control, self._broker, *self._intervals())

    def _intervals(self) -> tuple[float, float]:
        return self._settings.min_interval.total_seconds(), self._settings.idle_interval.total_seconds()

    def _entry(self, partition: LedPartition) -> IndexEntry | None:
        """What is known of ``partition``; None before it has been surveyed and the broker asked."""
        offsets, life = partition.offsets, partition.life
        if offsets is None or life is None:
            return None
        span = self._span(partition)
        watermark = partition.watermark
        return IndexEntry(
            topic=partition.at.topic,
            partition=partition.at.partition,
            topic_id=partition.led.topic_id,
            incarnation=life.number,
            leader_epoch=partition.led.leader_epoch,
            next_offset=watermark.next_offset if watermark else partition.start,
            uploaded_end=partition.uploaded_end,
            log_end_offset=offsets.log_end_offset or offsets.high_watermark,
            high_watermark=offsets.high_watermark,
            active_base_offset=span.base_offset,
            active_first_timestamp=span.first,
            active_max_timestamp=span.largest,
            observed_at=utc_now(),
            gaps=partition.gaps,
        )

    def _span(self, partition: LedPartition) -> ActiveSpan:
        span = self._spans[partition.at]
        if partition.segments:
            try:
                span.update(partition.folder, partition.led.topic_id, partition.segments[-1].base_offset)
            except (SegmentChanged, FormatError, OSError) as error:
                logger.debug("active_segment_not_read", partition=str(partition.at), error=str(error))
        return span
