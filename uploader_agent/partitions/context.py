"""What all partitions of an agent share, and what the disk and the broker last showed of one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidemark.formats.keys import ControlKeys, PartitionKeys, TopicPartition
from tidemark.intervals import Intervals
from tidemark.store import Store
from uploader_agent.broker.admin import UNKNOWN_POLICY, Led, Offsets
from uploader_agent.disk.log_dirs import LocalSegment
from uploader_agent.hold import Hold
from uploader_agent.remote.destinations import Bucket
from uploader_agent.remote.incarnations import TopicIncarnation
from uploader_agent.remote.watermark import StoredWatermark
from uploader_agent.runtime import MACHINE, Runtime


@dataclass(frozen=True, slots=True)
class Context:
    """What all partitions of an agent share. ``resolve`` says where a topic's incarnation lies, ``bucket`` where packs.

    ``sleep`` waits some seconds, and less when the agent stops. ``on_truncated`` counts what elections cut off.
    ``is_foreign`` tells whether an ``offset.wm`` that fences a leadership has an epoch that the cluster never gave.
    While a partition has holes, the store is searched every ``search_interval`` seconds.
    """

    broker: int
    resolve: Callable[[TopicPartition, str | None], tuple[TopicIncarnation, Store, PartitionKeys]]
    bucket: Callable[[TopicPartition], Bucket]
    control_store: Store
    control: ControlKeys
    sleep: Callable[[float], object]
    on_truncated: Callable[[], object]
    hold: Hold
    is_foreign: Callable[[TopicPartition, Led, StoredWatermark], bool]
    search_interval: float = 0.0
    runtime: Runtime = MACHINE


@dataclass(frozen=True, slots=True)
class LocalLog:
    """The log as disk and broker last showed it. The loop replaces it as a whole, so any thread may read it.

    ``segments`` are held or on the disk, by base offset, the last one active. ``offsets`` come from the broker or its
    checkpoint. ``disk_start`` is the base offset of the first segment on the disk, None without one. ``observed_start``
    is its value when the broker gave the ``offsets``.
    """

    segments: tuple[LocalSegment, ...] = ()
    offsets: Offsets | None = None
    cleanup_policy: str = UNKNOWN_POLICY
    disk_start: int | None = None
    observed_start: int | None = None

    @property
    def rotated(self) -> Intervals:
        """The offsets of all segments but the active one."""
        ended = ((one.base_offset, one.next_offset) for one in self.segments if one.next_offset is not None)
        return Intervals(ended)
