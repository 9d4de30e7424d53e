"""A topic's history made by hand in a directory, to be restored to a real broker; and a restore as another process."""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import yaml

from tests.consumer.history import Kept
from tests.consumer.killed_restore import STABLE_SECONDS, STEP_RECORDS
from tests.support.kafka import KafkaCluster
from tests.support.paths import ROOT
from tests.support.raw_builder import RawBuilder
from tests.tidemark.decode.real_logs import random_records, unique
from tests.tidemark.kafka_log.build import CODEC_IDS, Record, batch, marker, transactional
from tidemark import cli
from tidemark.formats.raw.watermark import parse, render
from tidemark.restore import run as running
from tidemark.store import open_store


@dataclass
class RawHistory:
    """``orders`` of cluster ``east``, and what a restore of each partition must give."""

    folder: Path
    raw: RawBuilder
    topics_file: Path
    expected: list[list[Kept]]

    def command(self, cluster: KafkaCluster, target: str, *more: str) -> list[str]:
        """The arguments of a restore into ``target``, which is made if it is not there."""
        options = ["--to-topic", target, "--bootstrap", cluster.bootstrap, "--topics", str(self.topics_file)]
        return ["orders", *options, "--create", "--output", "json", *more]

    def run(
        self, cluster: KafkaCluster, target: str, *more: str, point: str = "never", nth: int = 1
    ) -> tuple[int, Any]:
        """(exit code, report or error) of a restore: one that kills itself is a process of its own."""
        if point == "never":
            return self._run_here(self.command(cluster, target, *more))
        arguments = [point, str(nth), *self.command(cluster, target, *more)]
        done = subprocess.run(
            [sys.executable, "-m", "tests.consumer.killed_restore", *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done.returncode, json.loads(done.stdout) if done.returncode == 0 else done.stderr

    @staticmethod
    def _run_here(arguments: list[str]) -> tuple[int, Any]:
        """Likewise in this process, in steps of the same size."""
        output, errors = io.StringIO(), io.StringIO()
        with (
            patch.object(running, "STEP_RECORDS", STEP_RECORDS),
            patch.object(running, "STABLE_SECONDS", STABLE_SECONDS),
            patch.object(sys, "argv", ["tidemark", "restore", *arguments]),
            redirect_stdout(output),
            redirect_stderr(errors),
            pytest.raises(SystemExit) as ended,
        ):
            cli.main()
        code = int(ended.value.code or 0)
        return code, json.loads(output.getvalue()) if code == 0 else errors.getvalue()

    def add(self, partition: int, records: list[Record], codec: str = "none") -> None:
        """One more segment with one batch."""
        base = self.raw.partition(partition).end
        self.raw.segment([batch(base, [one._replace(delta=i) for i, one in enumerate(records)], codec)], partition)
        self.expected[partition] += [(one.key, one.value, list(one.headers), one.timestamp) for one in records]

    def abort(self, partition: int) -> None:
        """One more segment, of which a reader of committed records gets nothing."""
        base = self.raw.partition(partition).end
        aborted = [transactional(base, 7, 3), marker(base + 3, 7, commit=False)]
        self.raw.segment(aborted, partition, aborted=[(7, base, base + 3)])

    def compact(self, partition: int, offsets: int) -> None:
        """One more segment of that many offsets, of which compaction has left the first alone."""
        base = self.raw.partition(partition).end
        left = Record(0, key=b"left", value=b"over")
        data = batch(base, [left], last_offset_delta=0)
        self.raw.segment([data], partition, next_offset=base + offsets, compacted=True)
        self.expected[partition].append((b"left", b"over", [], left.timestamp))

    def lose(self, partition: int, offsets: int, records: list[Record]) -> None:
        """The next ``offsets`` are a recorded gap, and ``records`` follow it; published."""
        known = self.raw.partition(partition)
        known.next_offset, known.end = known.end, known.end + offsets
        known.gaps = [self.raw.gap(known.next_offset, known.end)]
        behind = known.end
        self.add(partition, records)
        self.raw.publish()
        key = self.raw.keys(partition).watermark
        line1, watermark = parse(self.raw.store.get(key).body, key)
        assert watermark is not None
        whole = watermark.model_copy(update={"ranges_above": ((behind, known.end),)})
        self.raw.store.put(key, render(line1, whole))


def raw_history(folder: Path, rng: random.Random, *, partitions: int = 2, rounds: int = 8) -> RawHistory:
    """Batches of every codec, nulls, aborts and holes."""
    (folder / "raw").mkdir()
    topics = folder / "topics.yaml"
    raw = f"file://{folder}/raw"
    settings = {
        "cluster": "east",
        "raw": {"url": raw},
        "lake": f"file://{folder}/lake",
        "topics": [{"topic": "orders"}],
    }
    topics.write_text(yaml.safe_dump(settings))
    made = RawHistory(folder, RawBuilder(open_store(raw)), topics, [[] for _ in range(partitions)])
    for partition in range(partitions):
        for number in range(rounds):
            records = random_records(rng, rng.randint(1, 40), librdkafka=True)
            made.add(partition, records, list(CODEC_IDS)[number % len(CODEC_IDS)])
            if number % 3 == 1:
                made.abort(partition)
                made.compact(partition, 5)
    made.raw.publish()
    return made


def target_name() -> str:
    """A topic that is not there yet."""
    return unique("restored")
