"""A copy of raw, whose objects arrive in any order: nothing wrong is read from it, and at the end all of it.

The objects are on a real S3 server. Copied in parts, they have other ETags there, as with many ways to copy.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from tests.spark.world import World, in_process
from tests.support.erased import erase
from tests.support.live_end import Packer
from tests.support.s3 import S3Server
from tests.tidemark.kafka_log.build import marker, simple, transactional
from tests.tidemark.remote.reader import Reader, records_of
from tidemark.cli.app import app
from tidemark.cli.raw import check_copy
from tidemark.errors import GapError, NotFound, PreconditionFailed, StoreError
from tidemark.formats.keys import TopicPartition
from tidemark.monitoring.incident_store import watch
from tidemark.planning import plan_ingest, write_plan
from tidemark.storage import Storage
from tidemark.timestamps import utc_now
from tidemark_spark.run.driver import run

PARTITIONS = 4
CHUNKS = 3
CONTROL = ("_topics/", "_watermarks/", "_heads/", "_erased/")


def filled(world: World, prefix: str) -> None:
    """Partitions of each kind: erased records, compaction, aborted transactions, a tail in packs."""
    raw = world.raw
    for base in range(0, 36, 9):
        raw.segment([simple(base + 3 * number) for number in range(3)])
    erase(raw, [4, 20])
    for base in range(0, 40, 10):
        raw.segment([simple(base), simple(base + 6)], 1, base=base, next_offset=base + 10, compacted=True)
    for base in range(0, 40, 10):
        batches = [transactional(base, 7, 4), marker(base + 4, 7, commit=False), simple(base + 5, 5)]
        raw.segment(batches, 2, base=base, aborted=[(7, base, base + 4)])
    raw.segment([simple(0), simple(3)], 3)
    packer = Packer(raw, prefix=prefix)
    packer.pack([simple(6), simple(9)], 3)
    packer.pack([simple(12)], 3)
    raw.publish()


class Copied(NamedTuple):
    """Two worlds that share a server: the second one's raw is empty, and ``copy`` brings objects of the first."""

    first: World
    second: World
    keys: list[str]
    copy: Callable[[Iterable[str]], None]


SAME = pytest.mark.parametrize("copied", [False], indirect=True, ids=["same ETags"])
OTHER = pytest.mark.parametrize("copied", [True], indirect=True, ids=["other ETags"])


@pytest.fixture
def copied(request: pytest.FixtureRequest, s3: S3Server, tmp_path: Path) -> Copied:
    mark, client = uuid.uuid4().hex[:8], s3.client()
    store = (f"endpoint_url: {s3.endpoint}", "region: us-east-1", "path_style: true")
    first, second = (
        World(tmp_path / name, raw=f"s3://raw/{mark}-{name}", lake=f"s3://lake/{mark}-{name}", store=store)
        for name in ("first", "second")
    )
    filled(first, f"{mark}-first")
    first.land()
    listed = client.get_paginator("list_objects_v2").paginate(Bucket="raw", Prefix=f"{mark}-first/")
    keys = [found["Key"].partition("/")[2] for page in listed for found in page.get("Contents", ())]

    def copy(chosen: Iterable[str]) -> None:
        for key in chosen:
            body = client.get_object(Bucket="raw", Key=f"{mark}-first/{key}")["Body"].read()
            target: dict[str, Any] = {"Bucket": "raw", "Key": f"{mark}-second/{key}"}
            if request.param:
                in_a_part(client, target, body)
            else:
                client.put_object(**target, Body=body)

    return Copied(first, second, keys, copy)


def in_a_part(client: Any, target: dict[str, Any], body: bytes) -> None:
    """Upload an object as one part, which gives it another ETag."""
    upload = client.create_multipart_upload(**target)["UploadId"]
    etag = client.upload_part(**target, UploadId=upload, PartNumber=1, Body=body)["ETag"]
    parts = {"Parts": [{"PartNumber": 1, "ETag": etag}]}
    client.complete_multipart_upload(**target, UploadId=upload, MultipartUpload=parts)


def landed(world: World) -> None:
    """Land what can land now. What an object that is not there keeps from being planned is told by its key."""
    try:
        plan = plan_ingest(world.table)
    except (NotFound, PreconditionFailed) as error:
        if not error.key.endswith("index"):
            raise
        return
    if not plan.empty:
        write_plan(world.table, plan)
    run(world.table, plan, in_process)
    world.check()


def gap_incidents(world: World) -> set[str]:
    """The open incidents of gaps, as the watch finds them now."""
    found = watch(world.table.deployment, "east", utc_now())
    return {incident.key for incident in found.incidents if incident.open and incident.kind == "gap"}


def by_place(world: World) -> dict[tuple[int, int], dict[str, Any]]:
    """The rows by partition and offset."""
    return {(row["kafka_partition"], row["kafka_offset"]): row for row in world.rows()}


def read(world: World, partition: int) -> tuple[list[int], Exception | None]:
    """The offsets that the consumer's remote tier gives, and the error that ends them."""
    storage, found = Storage("east", world.table.deployment.raw, world.table.deployment.store), list[int]()
    tp = TopicPartition("orders", partition)
    with Reader(storage) as reader:
        reader.tier.read(tp, 0)
        try:
            for block in reader.blocks(tp):
                found += [record.offset for record in records_of(block, tp)]
        except (GapError, StoreError) as error:
            return found, error
    return found, None


@pytest.mark.parametrize(
    "copied",
    [pytest.param(False, id="same ETags", marks=pytest.mark.full), pytest.param(True, id="other ETags")],
    indirect=True,
)
@pytest.mark.usefixtures("quick_retries")
def test_a_copy_gives_nothing_wrong_at_any_stage_and_at_the_end_all(copied: Copied, rng: random.Random) -> None:
    whole, classes = by_place(copied.first), [copied.first.classes(number) for number in range(PARTITIONS)]
    offsets = [read(copied.first, number)[0] for number in range(PARTITIONS)]
    early = [key for key in copied.keys if key.startswith(CONTROL) or key.endswith("offset.wm")]
    manifests = [key for key in copied.keys if key.endswith(".manifest.json")]
    late = [key for key in copied.keys if key not in {*early, *manifests}]
    rng.shuffle(manifests)
    rng.shuffle(late)
    stages = [early, *(part[n::CHUNKS] for part in (manifests, late) for n in range(CHUNKS))]
    refused, opened = list[Exception](), set[str]()
    for number, chosen in enumerate(stages):
        copied.copy(chosen)
        landed(copied.second)
        opened |= gap_incidents(copied.second)
        rows = by_place(copied.second)
        assert rows == {place: whole[place] for place in rows}
        for partition in range(PARTITIONS):
            assert copied.second.classes(partition) <= classes[partition]
            found, error = read(copied.second, partition)
            assert found == offsets[partition][: len(found)]
            refused += [error] if error else []
        assert bool(check_copy(copied.second.table, renew=False).findings) or number == len(stages) - 1
    assert refused, "bytes that were not there yet"
    assert opened, "offset.wm came before manifests"

    proved = check_copy(copied.second.table, renew=True)
    assert (proved.partitions, proved.segments, proved.findings) == (PARTITIONS, 13, ())
    assert proved.renewed in {0, 13}
    assert check_copy(copied.second.table, renew=True).renewed == 0
    landed(copied.second)
    assert by_place(copied.second) == whole
    assert [copied.second.classes(number) for number in range(PARTITIONS)] == classes
    assert [state.gaps for state in copied.second.ledger.partitions] == [()] * PARTITIONS
    assert gap_incidents(copied.second) == set()
    assert [read(copied.second, number) for number in range(PARTITIONS)] == [(one, None) for one in offsets]


@SAME
@pytest.mark.parametrize(
    ("lost", "said"),
    [
        (".log", "is missing, though its manifest is there"),
        (".txnindex", "is missing, though its manifest is there"),
        (".manifest.json", "but no manifest here has them"),
        ("offset.wm", "is missing"),
        (".pack", "but no pack here has them"),
        ("_erased/", "is missing, though its index names it"),
    ],
)
def test_what_a_copy_lacks_is_named(copied: Copied, rng: random.Random, lost: str, said: str) -> None:
    left_out = rng.choice([key for key in copied.keys if lost in key and not key.endswith("_erased/east/orders.json")])
    copied.copy(key for key in copied.keys if key != left_out)
    [finding] = check_copy(copied.second.table, renew=True).findings
    assert said in finding
    assert lost in {".manifest.json", ".pack"} or left_out in finding


@OTHER
def test_bytes_that_differ_are_never_renewed(copied: Copied, rng: random.Random) -> None:
    copied.copy(copied.keys)
    log = rng.choice([key for key in copied.keys if key.endswith(".log")])
    store, prefix = copied.second.raw.store, copied.second.table.deployment.raw.url.rpartition("/")[2]
    body = bytearray(store.get(f"{prefix}/{log}").body)
    body[-1] ^= 1
    store.put(f"{prefix}/{log}", bytes(body))
    arguments = ["verify-copy", "--renew", "--topics", str(copied.second.topics_file), "--output", "json"]
    told = CliRunner().invoke(app, arguments)
    assert told.exit_code == 1, told.output
    assert "has CRC32C" in told.output
    assert log in told.output
