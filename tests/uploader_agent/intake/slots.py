"""An agent of a slot over a scripted cluster, and the judgement of what it stored."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.support.tuned_agent import tuned
from tests.uploader_agent.fakes import CLUSTER, WatchedStore
from tests.uploader_agent.intake.scripted import BROKERS, TOPIC, ScriptedCluster, T, header_of
from tests.uploader_agent.tested_agent import TestedAgent
from tidemark.formats.keys import ControlKeys, Endpoint, PartitionKeys, TopicPartition
from tidemark.formats.raw.cluster import FIRST_SLOT
from tidemark.formats.raw.manifest import SegmentManifest
from tidemark.formats.raw.watermark import Watermark, parse
from tidemark.formats.raw.watermark_index import IndexEntry, WatermarkIndex
from tidemark.intervals import Intervals
from tidemark.kafka_log import Lineage, scan_batches
from tidemark.storage import Storage
from tidemark.store import LocalStore
from uploader_agent.broker.admin import AdminMetadata, Cleanup, Leader, Led, Offsets
from uploader_agent.broker.properties import Broker
from uploader_agent.components import Components
from uploader_agent.disk.watcher import Watcher
from uploader_agent.intake.fetching import PartitionRefused
from uploader_agent.intake.metadata import SlotMetadata
from uploader_agent.intake.replica import SlotReplica
from uploader_agent.observability.metrics import Metrics
from uploader_agent.runtime import Runtime
from uploader_agent.settings import AgentSettings
from uploader_agent.stored.incarnations import Incarnations


class ScriptedTime(Runtime):
    """The time of a scripted cluster."""

    def __init__(self, cluster: ScriptedCluster) -> None:
        self._cluster = cluster

    def monotonic(self) -> float:
        return self._cluster.now


class ScriptedAdmin(AdminMetadata):
    """An admin client of a scripted cluster."""

    def __init__(self, cluster: ScriptedCluster) -> None:
        super().__init__(-1, lambda: None)
        self._scripted = cluster
        self.asked = 0
        """Partitions that were asked for offsets beside the log end."""

    def leaders(self, wanted: Collection[TopicPartition], *, everything: bool = False) -> dict[TopicPartition, Leader]:
        topic = self._scripted.topic(TOPIC)
        return {tp: topic.leaders[tp.partition] for tp in wanted if topic is not None}

    def log_ends(self, broker: int, led: Mapping[TopicPartition, Led]) -> dict[TopicPartition, int]:
        return dict.fromkeys(self._led(broker, led), self._scripted.log.end)

    def offsets_from(self, broker: int, led: Mapping[TopicPartition, Led]) -> dict[TopicPartition, Offsets]:
        log = self._scripted.log
        self.asked += len(led)
        return {tp: Offsets(log.high_watermark, log.high_watermark, log.start) for tp in self._led(broker, led)}

    def cleanup(self, topics: Collection[str]) -> dict[str, Cleanup]:
        return dict.fromkeys(topics, Cleanup(self._scripted.cleanup_policy))

    def _led(self, broker: int, led: Mapping[TopicPartition, Led]) -> list[TopicPartition]:
        starts = self._scripted.run(
            self._scripted.log_starts(broker, {tp: ours.leader_epoch for tp, ours in led.items()})
        )
        return [tp for tp, start in starts.items() if not isinstance(start, PartitionRefused)]


class Slot:
    """A slot's agent, which starts anew for each pass, and its store and spool below ``root``."""

    def __init__(self, root: Path, cluster: ScriptedCluster) -> None:
        self.cluster = cluster
        self.root = root
        self.spool = root / "spool"
        self.store = WatchedStore(LocalStore(root / "store"))
        fetch = {"bootstrap": "127.0.0.1:1", "spool": str(self.spool)}
        self.settings = AgentSettings.model_validate(
            {
                "fetch": fetch,
                "raw": {"url": self.store.url},
                "state_dir": str(root / "state"),
                "cluster": CLUSTER,
                "upload": {"concurrency": 2},
            }
        )

    def replica(self, *, segment: int = 500, **fetch: Any) -> SlotReplica:
        """The slot's replica, of a new process."""
        assert self.settings.fetch is not None
        self.cluster.begin_client()
        storage = Storage(CLUSTER, self.settings.raw, opener=lambda _: self.store)
        resolve = Incarnations(storage, record=False).resolve
        settings = self.settings.fetch.model_copy(update=fetch)
        return SlotReplica(settings, self.cluster, resolve, Metrics(), ScriptedTime(self.cluster), segment)

    def agent(self, replica: SlotReplica, bell: Watcher) -> TestedAgent:
        """An agent on ``replica``."""
        self.spool.mkdir(parents=True, exist_ok=True)
        broker = Broker(FIRST_SLOT, CLUSTER, (self.spool,), "127.0.0.1:1", "PLAINTEXT", "fetch")
        assert self.settings.fetch is not None
        metadata = SlotMetadata(self.settings.fetch, FIRST_SLOT, ScriptedAdmin(self.cluster), lambda: replica.over)
        surroundings = self.settings, broker, metadata, lambda _: self.store, bell
        tuning = tuned({"retry_initial": "1ms", "retry_cap": "2ms"})
        components = Components(*surroundings, source=replica, tuning=tuning)
        return TestedAgent(components)

    def upload(self, *, tails: bool = False, **fetch: Any) -> TestedAgent:
        """Fetch up to the high watermarks, and upload."""
        with closing(Watcher()) as bell, closing(self.replica(**fetch)) as replica:
            agent = self.agent(replica, bell)
            agent.upload_once(tails=tails)
            return agent

    def upload_with(self, replica: SlotReplica, *, tails: bool = False) -> None:
        """As :meth:`upload`, in the process of ``replica``."""
        with closing(Watcher()) as bell:
            self.agent(replica, bell).upload_once(tails=tails)

    def lose_spool(self) -> None:
        """Lose the spool's disk."""
        shutil.rmtree(self.spool, ignore_errors=True)

    @property
    def keys(self) -> PartitionKeys:
        return self.keys_in(TOPIC)

    def keys_in(self, place: str) -> PartitionKeys:
        return PartitionKeys(Endpoint(self.store.url), CLUSTER, place, T.partition)

    def watermark(self, place: str = TOPIC) -> Watermark:
        key = self.keys_in(place).watermark
        found = parse(self.store.inner.get(key).body, key)[1]
        assert found is not None
        return found

    def index(self) -> IndexEntry:
        key = ControlKeys("", CLUSTER).index(FIRST_SLOT)
        [entry] = WatermarkIndex.from_bytes(self.store.inner.get(key).body, key).entries
        return entry

    def manifests(self) -> list[SegmentManifest]:
        folder = self.keys.folder
        keys = [info.key for info in self.store.inner.list(folder) if ".manifest.json" in info.key]
        return [SegmentManifest.from_bytes(self.store.inner.get(key).body, key) for key in keys]

    def live_batches(self) -> dict[int, bytes]:
        """The stored batches that are on the lineage of ``offset.wm``, by base offset."""
        lineage, found = Lineage(self.watermark().lineage), dict[int, bytes]()
        for manifest in self.manifests():
            body = self.store.inner.get(self.keys.file(manifest.log_name)).body
            for header in scan_batches([body], manifest.log_name, manifest.base_offset):
                if lineage.is_live(header.last_offset, header.leader_epoch):  # the log start may lie within it
                    found[header.base_offset] = body[header.position : header.end]
        return found

    def upload_all(self) -> None:
        """Upload tails as well; then everything is exact."""
        self.upload(tails=True)
        self.check_exact()

    def check_exact(self) -> None:
        """All that the leader has committed is stored; what is missing, it no longer has; nothing else is there."""
        log, watermark, stored = self.cluster.log, self.watermark(), self.live_batches()
        damaged = [manifest.name for manifest in self.manifests() if manifest.state != "whole"]
        assert not damaged, f"sound batches were stored as damaged: {damaged}"
        theirs = {header_of(raw).base_offset: raw for raw in log.batches}
        for at, raw in theirs.items():
            # A replica with an older log start may be elected uncleanly; the store begins where it began.
            committed = watermark.start_offset < header_of(raw).next_offset <= log.high_watermark
            assert not committed or stored.get(at) == raw, f"the leader's batch at {at} is not stored"
        foreign = [at for at, raw in stored.items() if at >= log.start and theirs.get(at) != raw]
        assert not foreign, f"the leader has no such batches at {foreign}"
        gaps = Intervals.of(watermark.gaps)
        untrue = gaps - Intervals([(0, log.start)])
        assert not untrue, f"recorded as lost, and the leader has it: {untrue.parts}"
        reasons = {gap.reason for gap in watermark.gaps} - {"deleted_before_upload", "unclean_election"}
        assert not reasons, f"wrong reasons: {reasons}"
        covered = Intervals((at, header_of(raw).next_offset) for at, raw in stored.items()) | gaps | self._cut_batches()
        silent = covered.missing(watermark.start_offset, log.high_watermark)
        assert not silent, f"neither stored nor recorded as lost: {silent.parts}"
        end = gaps.parts[0].start if gaps else log.high_watermark
        assert watermark.next_offset == end, (
            f"offset.wm ends at {watermark.next_offset}, and the stored offsets at {end}"
        )

    def _cut_batches(self) -> Intervals:
        """The offsets of stored batches below the next branch, whose start lies within them.

        Only where an unclean election and DeleteRecords have left no broker that knows where the branch began.
        """
        lineage, found = Lineage(self.watermark().lineage), list[tuple[int, int]]()
        for manifest in self.manifests():
            body = self.store.inner.get(self.keys.file(manifest.log_name)).body
            for header in scan_batches([body], manifest.log_name, manifest.base_offset):
                offsets = range(header.base_offset, header.next_offset)
                found += [(at, at + 1) for at in offsets if lineage.epoch_at(at) == header.leader_epoch]
        return Intervals(found)

    def check_index(self) -> None:
        """The index knows the leader's log end, for nothing was appended since."""
        entry = self.index()
        said, true = entry.log_end_offset, self.cluster.log.end
        assert said == true, f"the index names the log end {said}, and it is {true}"


def settle(cluster: ScriptedCluster) -> None:
    """End all faults, and let the followers catch up."""
    cluster.mischief, cluster.down = {}, set()
    cluster.throttled_until.clear()
    cluster.commit(*BROKERS)
