"""The context that all partitions of an agent share, and the local log of a partition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tidemark.formats.keys import Endpoint, TopicPartition
from tidemark.intervals import Intervals
from tidemark.storage import ClusterStore, StoredWatermark
from uploader_agent.broker.admin import Cleanup, KafkaTier, Led, Offsets
from uploader_agent.disk.log_dirs import LocalSegment
from uploader_agent.hold import Hold
from uploader_agent.log_source import BrokerDisk, LogSource
from uploader_agent.runtime import MACHINE, Runtime
from uploader_agent.stored.incarnations import Resolve
from uploader_agent.stored.other_origin import OtherOrigin


@dataclass(frozen=True, slots=True)
class Context:
    """The context that all partitions of an agent share.

    ``resolve`` returns a topic's incarnation and a partition's objects, ``bucket`` where its packs are. ``cluster`` has
    the objects in the deployment's default store. ``sleep`` waits some seconds, or fewer when the agent stops.
    ``on_truncated`` counts logs that elections cut off.
    ``is_foreign`` returns True if an ``offset.wm`` that fences a leadership has an epoch that the cluster never gave.
    ``settled_head`` returns the version of this broker's head if no earlier PUT of it can take effect any more;
    otherwise None, and the head is settled soon. ``other_origin`` knows agents that get logs otherwise. ``source`` is
    where the log directories come from. While a partition has holes, the store is searched every ``search_interval``
    seconds.
    """

    broker: int
    resolve: Resolve
    bucket: Callable[[TopicPartition], Endpoint]
    cluster: ClusterStore
    sleep: Callable[[float], object]
    on_truncated: Callable[[], object]
    hold: Hold
    is_foreign: Callable[[TopicPartition, Led, StoredWatermark], bool]
    settled_head: Callable[[TopicPartition], int | None]
    other_origin: OtherOrigin
    source: LogSource = field(default_factory=BrokerDisk)
    search_interval: float = 0.0
    runtime: Runtime = MACHINE


@dataclass(frozen=True, slots=True)
class LocalLog:
    """The log as disk and broker last showed it. The loop replaces it as a whole, so any thread may read it.

    ``segments`` are held or on the disk, by base offset, the last one active. ``offsets`` come from the broker or its
    checkpoint. ``disk_start`` is the base offset of the first segment on the disk; None without one. ``observed_start``
    is its value before the broker was asked for the ``offsets``. ``replicas`` are the brokers that have a replica, as
    metadata names them. ``lists_tail`` is true if ``offset.wm`` lists this leadership among those that may have packed
    from its claim on.
    """

    segments: tuple[LocalSegment, ...] = ()
    offsets: Offsets | None = None
    cleanup: Cleanup = field(default_factory=Cleanup)
    disk_start: int | None = None
    observed_start: int | None = None
    replicas: tuple[int, ...] = ()
    lists_tail: bool = False

    @property
    def start_evidence(self) -> tuple[int | None, int | None, KafkaTier | None]:
        """What tells why the disk lacks offsets: the log's start, the disk's, and the remote tier's part between."""
        seen = self.offsets
        return seen.log_start_offset if seen else None, self.observed_start, seen.tier if seen else None

    @property
    def rotated(self) -> Intervals:
        """The offsets of all segments but the active one."""
        spans = ((segment.base_offset, segment.next_offset) for segment in self.segments)
        return Intervals((start, end) for start, end in spans if end is not None)
