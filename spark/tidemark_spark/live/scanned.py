"""A topic's raw store as the triggerer's scan has seen it, so that a plan reads no watermark index again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

from typing_extensions import override

from tidemark.formats.incarnations import TopicIncarnations
from tidemark.formats.live_landing import AheadPartition
from tidemark.formats.watermark_index import IndexEntry
from tidemark.raw.heads import LiveEnd
from tidemark.raw.topic import RawTopic
from tidemark.table.delta_table import TopicTable
from tidemark.timestamps import utc_now


class ScannedTopic(RawTopic):
    """Takes the scan's word for how far ``partitions`` are ahead, and for no other partition.

    What it says of log ends is not known, so no date may close by it.
    """

    def __init__(self, table: TopicTable, partitions: Iterable[AheadPartition], live_end: LiveEnd) -> None:
        super().__init__(table, live_end, outages=True)
        self._topic_name = table.topic.topic
        self._ahead = tuple(partitions)

    @override
    def incarnations(self) -> TopicIncarnations:
        """As they were when they were first asked for."""
        return self._incarnations

    @cached_property
    def _incarnations(self) -> TopicIncarnations:
        return super().incarnations()

    @cached_property
    def entries(self) -> Mapping[tuple[int, int], IndexEntry]:
        """The partitions that were ahead, as far as the topic has had their incarnations."""
        topic_ids = [incarnation.topic_id for incarnation in self.incarnations().incarnations]
        return {
            (one.incarnation, one.partition): _entry(self._topic_name, one)
            for one in self._ahead
            if one.incarnation < len(topic_ids) and topic_ids[one.incarnation] == one.topic_id
        }


def _entry(topic: str, one: AheadPartition) -> IndexEntry:
    return IndexEntry(
        topic=topic,
        partition=one.partition,
        topic_id=one.topic_id,
        incarnation=one.incarnation,
        leader_epoch=one.leader_epoch,
        next_offset=one.end,
        uploaded_end=one.end,
        tail_end=one.end,
        log_end_offset=one.end,
        high_watermark=one.end,
        observed_at=utc_now(),
    )
