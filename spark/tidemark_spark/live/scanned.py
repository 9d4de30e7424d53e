"""A topic's raw store as seen by the triggerer's scan, so that a plan reads no watermark index again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

from typing_extensions import override

from tidemark.formats.raw.incarnations import TopicIncarnations
from tidemark.formats.raw.watermark_index import IndexEntry
from tidemark.formats.table.live_landing import AheadPartition
from tidemark.raw.heads import LiveEnd
from tidemark.raw_topic import RawTopic
from tidemark.table.delta_table import TopicTable
from tidemark.timestamps import utc_now


class ScannedTopic(RawTopic):
    """A topic that takes from the scan how far ``partitions`` are ahead, and considers no other partition.

    The scan does not know log ends, so no date may close from its entries.
    """

    def __init__(self, table: TopicTable, partitions: Iterable[AheadPartition], live_end: LiveEnd) -> None:
        super().__init__(table, live_end, outages=True)
        self._topic_name = table.topic.topic
        self._ahead = tuple(partitions)

    @override
    def incarnations(self) -> TopicIncarnations:
        """The topic's incarnations, read once."""
        return self._incarnations

    @cached_property
    def _incarnations(self) -> TopicIncarnations:
        return super().incarnations()

    @cached_property
    def entries(self) -> Mapping[tuple[int, int], IndexEntry]:
        """Entries of the partitions that were ahead, if the topic knows their incarnations."""
        topic_ids = [incarnation.topic_id for incarnation in self.incarnations().incarnations]
        return {
            (part.incarnation, part.partition): _entry(self._topic_name, part)
            for part in self._ahead
            if part.incarnation < len(topic_ids) and topic_ids[part.incarnation] == part.topic_id
        }


def _entry(topic: str, part: AheadPartition) -> IndexEntry:
    return IndexEntry(
        topic=topic,
        partition=part.partition,
        topic_id=part.topic_id,
        incarnation=part.incarnation,
        restored=part.restored,
        leader_epoch=part.leader_epoch,
        next_offset=part.end,
        uploaded_end=part.end,
        tail_end=part.end,
        log_end_offset=part.end,
        high_watermark=part.end,
        observed_at=utc_now(),
    )
