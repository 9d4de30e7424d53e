"""Real brokers and a real store: load, agents as processes, and the proof that the store is exact."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

from confluent_kafka import Message, Producer
from crc32c import crc32c

from tests.support.kafka import KafkaCluster
from tests.support.paths import ROOT
from tests.support.tuned_agent import argument, split
from tests.support.waiting import HUNG
from tests.uploader_agent.faulty_agent import FaultyStore
from tests.uploader_agent.in_process import run_here
from tidemark.formats.keys import ControlKeys, Endpoint, PartitionKeys, SegmentName, TopicPartition
from tidemark.formats.raw.manifest import SegmentManifest
from tidemark.formats.raw.watermark import Watermark, parse
from tidemark.intervals import Intervals
from tidemark.kafka_log import scan_batches
from tidemark.store import Store, StoreOptions, open_store
from tidemark.store.base import Traffic
from uploader_agent.cli import common
from uploader_agent.disk.log_dirs import find_partitions, find_segments

SMALL = {"4.3.1": {"internal.segment.bytes": "16384"}, "3.9.2": {"segment.bytes": "16384"}}
"""Topic settings for segments of 16 KiB."""


class Load:
    """A producer that remembers what was acknowledged to it, by partition and offset."""

    def __init__(self, cluster: KafkaCluster, topic: str, **config: Any) -> None:
        self.acknowledged: dict[int, dict[int, bytes]] = {}
        self.topic = topic
        self.producer = Producer(
            {"bootstrap.servers": cluster.bootstrap, "linger.ms": 1, "batch.num.messages": 10, **config}
        )
        self._number = 0

    def send(self, count: int, partitions: int = 1, size: int = 400) -> None:
        """Send ``count`` records round robin and wait for their acknowledgements."""
        for _ in range(count):
            self._number += 1
            value = b"%d:" % self._number + os.urandom(size)
            self.producer.produce(self.topic, value, partition=self._number % partitions, on_delivery=self._delivered)
            self.producer.poll(0)
        assert self.producer.flush(30) == 0

    def _delivered(self, error: object, message: Message) -> None:
        assert error is None
        partition, offset, value = message.partition(), message.offset(), message.value()
        assert partition is not None
        assert offset is not None
        self.acknowledged.setdefault(partition, {})[offset] = bytes(value or b"")


class Deployment:
    """An agent's configuration for one topic of a real broker, and a view of what it made of it."""

    def __init__(self, root: Path, cluster: KafkaCluster, raw: Store, prefix: str, topic: str, **settings: Any) -> None:
        self.cluster = cluster
        self.store = raw
        self.topic = topic
        self.endpoint = Endpoint(raw.url, prefix)
        self.control = ControlKeys(prefix, cluster.cluster_id)
        self.config = root / "agent.yaml"
        self.notes = root / "puts"
        self.log = root / "agent.log"
        self.user: tuple[int, int] | None = None  # (uid, gid) that the agent runs as
        self.python = sys.executable
        self.settings: dict[str, Any] = {}
        self.tuning: dict[str, Any] = {}
        own = {
            "broker": {"properties": str(cluster.brokers[0].properties_path)},
            "raw": {"url": f"{raw.url}/{prefix}" if raw.url.startswith("s3:") else raw.url},
            "state_dir": str(root / "state"),
            "include": [topic],
            "tail_after": "1h",
            "upload": {"concurrency": 4},
            "retry_initial": "10ms",
            "retry_cap": "100ms",
            **settings,
        }
        self.configure(**own)

    def configure(self, **settings: Any) -> None:
        """Change settings, and what is tuned at the next start."""
        given, tuning = split(settings)
        self.settings |= given
        self.tuning |= tuning
        self.config.write_text(json.dumps(self.settings))

    def start(self, command: str, env: Mapping[str, str], *fault: str) -> subprocess.Popen[bytes]:
        """``tidemark-agent <command>`` as a process; ``fault`` as in ``faulty_agent``."""
        module = [self.python, "-m", "tests.uploader_agent.faulty_agent", argument(self.tuning), str(self.notes)]
        chosen = fault or ("SIGKILL", "never", "", "0")
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [*module, *chosen, "--", command, "-c", str(self.config)],
                env={**os.environ, **env},
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=self.user[0] if self.user else None,
                group=self.user[1] if self.user else None,
                extra_groups=[] if self.user else None,
            )

    def run(self, command: str, env: Mapping[str, str], *fault: str) -> int:
        """As :meth:`start`, until it ends; its exit code. Without a fault it runs in this process."""
        if fault or self.user:
            return self.start(command, env, *fault).wait(HUNG)
        opened: dict[str, Store] = {}

        def opener(url: str, options: StoreOptions | None = None, traffic: Traffic | None = None) -> Store:
            if url not in opened:
                inner = open_store(url, options, traffic)
                opened[url] = FaultyStore(inner, self.notes, signal.SIGKILL, "never", "", 0)
            return opened[url]

        with patch.object(common, "open_store", opener):
            return run_here([command, "-c", self.config], self.log, env, tuning=self.tuning)

    def puts(self) -> list[str]:
        """Keys of all PUTs that were answered, in order, of all runs."""
        return self.notes.read_text().splitlines() if self.notes.exists() else []

    def keys(self, partition: int = 0, place: str | None = None) -> PartitionKeys:
        return PartitionKeys(self.endpoint, self.control.cluster, place or self.topic, partition)

    def watermark(self, partition: int = 0, place: str | None = None) -> tuple[int, Watermark]:
        key = self.keys(partition, place).watermark
        base, found = parse(self.store.get(key).body, key)
        assert found is not None
        return base, found

    def folder(self, partition: int = 0) -> Path:
        """The partition's directory on the broker's disk."""
        found = find_partitions(self.cluster.brokers[0].log_dirs).partitions
        return found[TopicPartition(self.topic, partition)]

    def manifests(self, partition: int = 0, place: str | None = None) -> list[SegmentManifest]:
        keys = self.keys(partition, place)
        names = [info.key for info in self.store.list(keys.folder) if ".manifest.json" in info.key]
        return [SegmentManifest.from_bytes(self.store.get(name).body, name) for name in names]

    def check_exact(self, partition: int = 0, place: str | None = None) -> list[SegmentManifest]:
        """The store has exactly what the disk has rotated: same bytes, each offset once, watermark at its end.

        Its segments may end elsewhere than those on the disk, where a quiet tail was sealed.
        """
        keys, folder = self.keys(partition, place), self.folder(partition)
        segments, manifests = find_segments(folder), self.manifests(partition, place)
        rotated = [one for one in segments if one.rotated]
        assert {one.base_offset for one in rotated} <= {one.base_offset for one in manifests}
        disk = b"".join((folder / f"{one.base_offset:020d}.log").read_bytes() for one in rotated)
        expected = {keys.watermark}
        offsets: list[tuple[int, int]] = []
        for manifest in manifests:
            assert manifest.state == "whole"
            expected.add(keys.segment(SegmentName(manifest.base_offset), "manifest.json"))
            for name, total in manifest.objects.items():
                expected.add(keys.file(name))
                body, etag = self.store.get(keys.file(name))
                assert (len(body), f"{crc32c(body):08x}", etag) == (total.size, total.crc32c, total.etag)
                if name.endswith(".log"):
                    assert disk.startswith(body), name
                    disk = disk[len(body) :]
                    headers = scan_batches([body], name, manifest.base_offset)
                    offsets += [(header.base_offset, header.next_offset) for header in headers]
        assert disk == b""
        assert {info.key for info in self.store.list(keys.folder)} == expected
        assert sum(end - start for start, end in offsets) == Intervals(offsets).size, "an offset is there twice"
        base, watermark = self.watermark(partition, place)
        assert Intervals(offsets).to_json() == [[watermark.start_offset, watermark.next_offset]]
        assert (base, watermark.next_offset) == (manifests[-1].base_offset, segments[-1].base_offset)
        assert [*watermark.gaps, *watermark.ranges_above] == []
        return manifests
