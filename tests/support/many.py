"""A raw store with more segments than anybody could write: listing and manifests are made when they are asked for.

``python -m tests.support.many COUNT BYTES ROOT`` plans such a topic over and over until nothing is left, and prints one
line of JSON: how many plans, ranges and tasks, seconds, the largest plan in bytes, and the process's peak memory.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import tidemark.planning.ingest
import tidemark.storage
from tests.support.memory import own_peak
from tests.support.raw_builder import RawBuilder
from tests.tidemark.kafka_log.build import simple
from tidemark.formats.keys import PartitionKeys, SegmentName
from tidemark.formats.raw.manifest import ObjectSum, SegmentManifest
from tidemark.formats.table.ledger import Ledger, PartitionState
from tidemark.formats.table.plan import RunPlan
from tidemark.kafka_log import segment_name
from tidemark.planning import plan_ingest
from tidemark.store.base import Fetched, ObjectInfo
from tidemark.store.local import LocalStore
from tidemark.table.delta_table import TopicTable, open_topic_table
from tidemark.topics import load_topics

OFFSETS: Final = 1000
"""Offsets of each segment."""

PARTITIONS: Final = 4
_UPLOADED: Final = datetime(2026, 11, 20, 12, tzinfo=UTC)


class ManySegments(LocalStore):
    """``count`` segments of ``size`` bytes in each of :data:`PARTITIONS` partitions; all else lies in ``root``."""

    def __init__(self, root: Path, count: int, size: int) -> None:
        super().__init__(root)
        self._count, self._size = count, size
        builder = RawBuilder(LocalStore(root))
        key = builder.segment([simple(0, OFFSETS)])
        manifest = f"{key.removesuffix('log')}manifest.json"
        self._manifest = SegmentManifest.from_bytes(super().get(manifest).body, manifest)
        self._parts: dict[str, PartitionKeys] = {}
        for partition in range(PARTITIONS):
            builder.partition(partition).end = count * OFFSETS
            keys = builder.keys(partition)
            self._parts[keys.folder] = keys
        builder.publish()

    def list(self, prefix: str, *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        """The segments' objects in order, from ``start_after`` on."""
        keys = self._parts.get(prefix)
        if keys is None:
            yield from super().list(prefix, start_after=start_after)
            return
        first = 0 if start_after is None else int(start_after.rpartition("/")[2].split(".")[0]) // OFFSETS
        for number in range(first, self._count):
            for extension in ("index", "log", "manifest.json", "timeindex"):
                key = keys.segment(SegmentName(number * OFFSETS), extension)
                if start_after is None or key > start_after:
                    yield ObjectInfo(key, self._size, '"etag"', _UPLOADED)

    def get(self, key: str, *, if_match: str | None = None, limit: int | None = None) -> Fetched:
        """An object of ``root``, or a segment's manifest."""
        keys = self._parts.get(f"{key.rpartition('/')[0]}/")
        if keys is None or not key.endswith(".manifest.json"):
            return super().get(key, if_match=if_match, limit=limit)
        base = int(key.rpartition("/")[2].split(".")[0])
        update = {
            "partition": keys.partition,
            "base_offset": base,
            "last_batch_end": base + OFFSETS,
            "next_offset": base + OFFSETS,
            "objects": {f"{segment_name(base)}.log": ObjectSum(size=self._size, crc32c="00000000", etag='"etag"')},
        }
        return Fetched(self._manifest.model_copy(update=update).to_bytes(), '"etag"')


def planned(table: TopicTable) -> Iterator[RunPlan]:
    """Plan after plan, each as if the one before had landed, until nothing is left."""
    ledger = Ledger.genesis(table.topic.cluster, table.topic.topic, table.topic.table)
    while True:
        setattr(tidemark.planning.ingest, "ledger_of", lambda *_, now=ledger: now)  # noqa: B010 - likewise
        plan = plan_ingest(table)
        if plan.empty:
            return
        yield plan
        states = ledger.by_partition
        for part in plan.partitions:
            states[part.key] = PartitionState(
                incarnation=part.incarnation,
                topic_id=part.topic_id,
                partition=part.partition,
                start_offset=0,
                next_offset=part.end,
                verdicts_end=part.end,
                leader_epoch=part.leader_epoch,
                lineage=part.lineage,
            )
        ledger = ledger.model_copy(update={"n": ledger.n + 1, "partitions": tuple(states.values())})


def main() -> None:
    """The command line."""
    count, size, root = int(sys.argv[1]) // PARTITIONS, int(sys.argv[2]), Path(sys.argv[3])
    raw = ManySegments(root / "raw", count, size)
    setattr(tidemark.storage, "open_store", lambda *_: raw)  # noqa: B010 - it is no name of that module's own
    topics = root / "topics.yaml"
    topics.write_text(
        f"raw: {{url: '{raw.url}'}}\nlake: 'file://{root}/lake'\ncluster: east\ntopics: [{{topic: orders}}]"
    )
    table = open_topic_table(deployment := load_topics(topics), deployment.topics[0])
    began = time.monotonic()
    plans = ranges = tasks = largest = covered = 0
    for plan in planned(table):
        plans, tasks = plans + 1, tasks + len(plan.tasks)
        ranges += sum(len(task.ranges) for task in plan.tasks)
        covered += sum(part.end - part.start for part in plan.partitions)
        largest = max(largest, len(plan.to_bytes()))
    found = {
        "plans": plans,
        "tasks": tasks,
        "ranges": ranges,
        "offsets": covered,
        "seconds": time.monotonic() - began,
        "plan_bytes": largest,
        "peak_bytes": own_peak(),
    }
    sys.stdout.write(f"{json.dumps(found)}\n")


if __name__ == "__main__":
    main()
