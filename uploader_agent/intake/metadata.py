"""The agent's questions about partitions that a slot follows.

A slot "leads" a partition under the leader epoch that its spool follows: the newest one in the spool's checkpoint. So
what was fetched under an epoch is sealed under that epoch. Offsets come from the partition's leader, if its epoch is
still that one. The log end is asked for first: a high watermark at that end covers everything before the question.

Source: KIP-101 (the leader answers OffsetForLeaderEpoch of its own epoch with its log end offset).
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from typing_extensions import override

from tidemark.errors import FormatError
from tidemark.formats.keys import TopicPartition
from tidemark.kafka_log import parse_leader_epoch_checkpoint
from uploader_agent.broker.admin import (
    AdminMetadata,
    BrokerUnavailable,
    Cleanup,
    KafkaTier,
    Leader,
    Led,
    Metadata,
    Offsets,
)
from uploader_agent.disk.log_dirs import read_text, topic_id_of
from uploader_agent.disk.segment_files import EPOCHS
from uploader_agent.intake.replica import owns
from uploader_agent.settings import FetchSettings

_MOST_REUSED: Final = 10

Ends = Mapping[tuple[TopicPartition, str], int]


class SlotMetadata(Metadata):
    """The questions of the slot of ``settings``; ``number`` stands for its broker's id.

    ``cluster`` asks the brokers. ``over`` gives the ends of deleted topics in the spool that the store does not have.
    """

    def __init__(self, settings: FetchSettings, number: int, cluster: AdminMetadata, over: Callable[[], Ends]) -> None:
        self._settings, self._number, self._cluster, self._over = settings, number, cluster, over
        self._leaders: Mapping[TopicPartition, Leader] = {}
        self._told: dict[TopicPartition, tuple[Led, Offsets]] = {}
        """The last answers about offsets."""
        self._reused: Counter[TopicPartition] = Counter()
        """The times that an answer has stood for another one."""
        self._epochs: dict[TopicPartition, tuple[tuple[int, int], Led | None]] = {}
        """What each directory follows, with the checkpoint's inode and modification time."""

    @override
    def leaders(self, wanted: Collection[TopicPartition], *, everything: bool = False) -> dict[TopicPartition, Leader]:
        self._leaders = self._cluster.leaders(wanted)
        leaders: dict[TopicPartition, Leader] = {}
        over = self._over()
        for tp in wanted:
            leader, followed = self._leaders.get(tp), self._followed(tp)
            topic_id = leader.led.topic_id if leader is not None else None
            if followed is not None and ((tp, followed.topic_id or "") in over or followed.topic_id == topic_id):
                leaders[tp] = Leader(self._number, followed, (self._number,))
            elif leader is not None:
                leaders[tp] = Leader(-1, leader.led)
        return leaders

    @override
    def offsets(self, led: Mapping[TopicPartition, Led]) -> dict[TopicPartition, Offsets]:
        offsets: dict[TopicPartition, Offsets] = {}
        by_broker: defaultdict[int, dict[TopicPartition, Led]] = defaultdict(dict)
        over = self._over()
        for tp, ours in led.items():
            end, leader = over.get((tp, ours.topic_id or "")), self._leaders.get(tp)
            if end is not None:
                offsets[tp] = Offsets(end, log_start_offset=end, log_end=end)  # nobody has what the spool lacks
            elif leader is not None and leader.led == ours and leader.broker >= 0:
                by_broker[leader.broker][tp] = ours
        failed: list[BrokerUnavailable] = []
        for broker, asked in by_broker.items():
            try:
                ends = self._cluster.log_ends(broker, asked)
                same = {tp for tp, end in ends.items() if self._is_idle(tp, asked[tp], end)}
                self._reused.update(same)
                told = self._cluster.offsets_from(broker, {tp: asked[tp] for tp in ends.keys() - same})
            except BrokerUnavailable as error:
                failed.append(error)
                continue
            for tp in told:
                self._reused.pop(tp, None)
            self._told |= {tp: (asked[tp], replace(found, log_end=ends[tp])) for tp, found in told.items()}
            offsets |= {tp: self._told[tp][1] for tp in told.keys() | same}
        if failed and len(failed) == len(by_broker) and not offsets:
            raise failed[0]
        return offsets

    def _is_idle(self, tp: TopicPartition, led: Led, end: int) -> bool:
        """True if all was committed at the last answer of this leadership, and nothing was appended since.

        Its log start may have moved since, so it counts a few times only: what lies above it can never be called lost.
        """
        known, offsets = self._told.get(tp, (None, None))
        if self._reused[tp] >= _MOST_REUSED:
            return False
        return known == led and offsets is not None and offsets.high_watermark == offsets.log_end == end

    @override
    def remote_tier(self, led: Mapping[TopicPartition, Led]) -> dict[TopicPartition, KafkaTier | None]:
        """None for all: whatever lies above the log's start may still be fetched."""
        return dict.fromkeys(led)

    @override
    def cleanup(self, topics: Collection[str]) -> dict[str, Cleanup]:
        return self._cluster.cleanup(topics)

    def brokers(self) -> list[int]:
        """See :class:`AdminMetadata`."""
        return self._cluster.brokers()

    @property
    def answered(self) -> str | None:
        """See :class:`AdminMetadata`."""
        return self._cluster.answered

    def close(self) -> None:
        """Close the connections."""
        self._cluster.close()

    def _followed(self, tp: TopicPartition) -> Led | None:
        """The leadership that the slot's spool follows; None before its first one, and of another slot's partition."""
        path = f"{self._settings.spool}/{tp}/{EPOCHS}"
        try:
            stat = os.stat(path)  # noqa: PTH116 - of thousands of partitions
            mark = stat.st_ino, stat.st_mtime_ns
            known = self._epochs.get(tp)
            if known is None or known[0] != mark:
                lineage = parse_leader_epoch_checkpoint(read_text(Path(path)), path)
                followed = Led(lineage.entries[-1][0], topic_id_of(Path(path).parent))
                ours = owns(self._settings, followed.topic_id or "", tp.partition)
                known = self._epochs[tp] = mark, followed if ours else None
        except (FileNotFoundError, NotADirectoryError, FormatError, IndexError):
            return None
        return known[1]
