"""Day two with real parts: a lost lake made again from raw, and raw moved to another bucket under running brokers."""

from __future__ import annotations

import json
import random
import resource
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from tests.end_to_end.deployment import SmallDeployment, credentials
from tests.end_to_end.rows import consumed, landed
from tests.end_to_end.test_whole_path import SMALL, plain, transactional
from tests.spark.test_copies import in_a_part
from tests.support.paths import ROOT
from tests.support.s3 import S3Server, allow
from tests.support.spark import spark_submit
from tidemark.cli.app import app
from tidemark.formats.raw.hashsum import combine
from tidemark.raw_topic import RawTopic
from tidemark.table.delta_table import TopicTable, committed_ledger
from tidemark.table.evidence import read_evidence

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

pytestmark = pytest.mark.full

Sums = dict[tuple[int, str, str | None], tuple[int, int]]


def sums(table: TopicTable) -> Sums:
    """Number of offsets and sum of their rows' hashes, by partition, class and date, as evidence has them."""
    found: Sums = defaultdict(lambda: (0, 0))
    for attempt in committed_ledger(table).landed:
        for row in read_evidence(table, attempt).to_pylist():
            rows, total = found[row["partition"], row["class"], row["dt"]]
            hashed = int.from_bytes(row["hash128"] or b"", "big")
            found[row["partition"], row["class"], row["dt"]] = rows + row["rows"], combine(total, hashed)
    return dict(found)


def listed(client: S3Client, bucket: str, prefix: str) -> Iterator[tuple[str, str]]:
    """Key and ETag of each object below ``prefix``, or in a folder of entropy above it."""
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
        for found in page.get("Contents", ()):
            if prefix in found["Key"]:
                yield found["Key"], found["ETag"]


def audit(small: SmallDeployment, topic: str) -> list[dict[str, Any]]:
    """The findings of an audit of all dates, by the real job."""
    job = ROOT / "spark" / "jobs" / "audit.py"
    printed = spark_submit(job, "--topics", small.topics_file, "--topic", topic, "--json", env=small.s3.env())
    lines = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    return [finding for line in lines for finding in line.get("findings", [])]


def test_a_lost_lake_is_made_again_from_raw(
    small: SmallDeployment, rng: random.Random, record_property: Callable[[str, object], None]
) -> None:
    bootstrap = small.kafka.bootstrap
    for topic in small.topics:
        small.kafka.create_topic(topic, partitions=3, config=SMALL)
    for codec in ("zstd", "lz4"):
        plain(bootstrap, small.topics[0], codec, rng)
        small.upload()
        assert small.land(small.topics[0]).status == "landed"
    producer = transactional(bootstrap, small.topics[1], "zstd", rng)
    small.upload()
    assert small.land(small.topics[1]).status == "landed"
    producer.commit_transaction()
    small.upload()
    assert small.land(small.topics[1]).status == "landed"
    before = {topic: (sorted(landed(small.table(topic)), key=str), sums(small.table(topic))) for topic in small.topics}

    client = small.s3.client()
    for key, _ in list(listed(client, "lake", small.prefix)):
        client.delete_object(Bucket="lake", Key=key)
    assert [*listed(client, "lake", small.prefix)] == []

    for topic in small.topics:
        began, read = resource.getrusage(resource.RUSAGE_CHILDREN), 0
        while (result := small.job("ingest", topic))["status"] != "empty":
            assert result["status"] == "landed"
            read += result["bytes_read"]
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = used.ru_utime + used.ru_stime - began.ru_utime - began.ru_stime
        record_property(f"{topic}: MB of raw, core-seconds", (read / 1e6, seconds))
        table = small.table(topic)
        assert (sorted(landed(table), key=str), sums(table)) == before[topic]
        assert set(landed(table)) == consumed(bootstrap, topic)
        assert audit(small, topic) == []


def moved(client: S3Client, old: str, new: str, prefix: str, seen: dict[str, str], *, in_parts: bool) -> None:
    """Copy what is new or changed since ``seen``, with other ETags if ``in_parts``."""
    for key, etag in list(listed(client, old, prefix)):
        if seen.get(key) == etag:
            continue
        seen[key] = etag
        body = client.get_object(Bucket=old, Key=key)["Body"].read()
        if in_parts and body:
            in_a_part(client, {"Bucket": new, "Key": key}, body)
        else:
            client.put_object(Bucket=new, Key=key, Body=body)


def watermarks(small: SmallDeployment, topic: str) -> dict[int, int]:
    """Where each partition's ``offset.wm`` stands."""
    raw = RawTopic(small.table(topic))
    parts = [raw.partition((number, part)) for number in range(len(raw.incarnations)) for part in range(3)]
    return {part.keys.partition: found.next_offset for part in parts if (found := raw.watermark(part))}


def stored(small: SmallDeployment, topic: str) -> int:
    """The number of offsets that the agent says are stored."""
    return sum(entry.least_stored_end for entry in RawTopic(small.table(topic)).entries.values())


def bucket_of(s3: S3Server, name: str) -> S3Client:
    """A client, and the bucket ``name``."""
    client = s3.client()
    client.create_bucket(Bucket=name)
    return client


def test_raw_moves_to_another_bucket_between_two_runs_of_the_agent(
    small: SmallDeployment, rng: random.Random, tmp_path: Path
) -> None:
    topic, bootstrap, bucket = small.topics[0], small.kafka.bootstrap, f"raw-{small.prefix}"
    client, seen = bucket_of(small.s3, bucket), dict[str, str]()
    small.kafka.create_topic(topic, partitions=3, config=SMALL)
    plain(bootstrap, topic, "zstd", rng)
    small.upload()
    assert small.land(topic).status == "landed"
    with small.running_agent() as agent:
        plain(bootstrap, topic, "lz4", rng)
        moved(client, "raw", bucket, small.prefix, seen, in_parts=True)
        agent.wait_until(lambda: stored(small, topic) > 6_000, what="packs")
        agent.stop()
    plain(bootstrap, topic, "gzip", rng)  # while no agent runs
    moved(client, "raw", bucket, small.prefix, seen, in_parts=False)
    left = watermarks(small, topic)

    (tmp_path / "new").mkdir()
    new = replace(small, folder=tmp_path / "new", bucket=bucket)
    arguments = ["verify-copy", topic, "--topics", str(new.topics_file)]
    named = CliRunner().invoke(app, arguments)
    assert (named.exit_code, "names other ETags" in named.output) == (1, True)
    assert CliRunner().invoke(app, [*arguments, "--renew"]).exit_code == 0
    assert watermarks(new, topic) == left

    plain(bootstrap, topic, "snappy", rng)
    new.upload()
    assert all(watermarks(new, topic)[part] >= end for part, end in left.items())
    while new.land(topic).status == "landed":
        pass
    rows = landed(new.table(topic))
    assert len(rows) == len(set(rows)) == 4 * 6_000
    assert set(rows) == consumed(bootstrap, topic)
    assert [state.gaps for state in committed_ledger(new.table(topic)).partitions] == [()] * 3
    assert new.agent("verify", "--deep").returncode == 0


def test_an_agent_that_begins_in_an_empty_bucket_uploads_all_that_kafka_has(
    small: SmallDeployment, rng: random.Random, tmp_path: Path
) -> None:
    """Not the procedure: its offset.wm begins at the log's start, and hides what lies below."""
    topic, bootstrap, bucket = small.topics[0], small.kafka.bootstrap, f"raw-{small.prefix}"
    bucket_of(small.s3, bucket)
    small.kafka.create_topic(topic, partitions=3, config=SMALL)
    plain(bootstrap, topic, "zstd", rng)
    small.upload()
    assert small.land(topic).status == "landed"
    (tmp_path / "new").mkdir()
    new = replace(small, folder=tmp_path / "new", bucket=bucket)
    plain(bootstrap, topic, "lz4", rng)
    new.upload()
    while new.land(topic).status == "landed":
        pass
    rows = landed(new.table(topic))
    assert len(rows) == len(set(rows)) == 2 * 6_000, "offsets have their class already: no row twice"
    assert set(rows) == consumed(bootstrap, topic)


def test_a_running_agent_takes_the_keys_that_its_credentials_file_has_now(
    small: SmallDeployment, rng: random.Random, tmp_path: Path
) -> None:
    """The old key is revoked first, and the new one written then: the agent tries again until it has it."""
    topic, file, everything = small.topics[0], tmp_path / "credentials", [allow(["s3:*"], ["arn:aws:s3:::*"])]
    small.kafka.create_topic(topic, partitions=3, config=SMALL)
    with S3Server(tmp_path / "s3", users={"agent": everything}) as server:

        def write_keys() -> None:
            keys = server.credentials["agent"]
            lines = [f"aws_access_key_id = {keys.access_key}", f"aws_secret_access_key = {keys.secret_key}"]
            file.write_text("\n".join(["[default]", *lines, ""]))

        (tmp_path / "own").mkdir()
        own = replace(small, folder=tmp_path / "own", s3=server)
        write_keys()
        plain(small.kafka.bootstrap, topic, "zstd", rng)
        with credentials(server), own.running_agent({"AWS_SHARED_CREDENTIALS_FILE": str(file)}) as agent:
            agent.wait_until(lambda: stored(own, topic) == 6_000, what="packs")
            server.rotate("agent")
            plain(small.kafka.bootstrap, topic, "zstd", rng)
            write_keys()
            agent.wait_until(lambda: stored(own, topic) == 12_000, what="packs under the new key")
