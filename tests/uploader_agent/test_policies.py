"""The policies under deploy/policies as a real S3 server enforces them, and the agent at work under its own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from botocore.exceptions import ClientError

from tests.support.kafka import KafkaCluster
from tests.support.paths import ROOT
from tests.support.s3 import OwnBuckets
from tests.uploader_agent.fakes import CLUSTER, records
from tests.uploader_agent.in_process import run_here
from tests.uploader_agent.operated import Operated
from tests.uploader_agent.real import SMALL, Load

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

POLICIES = ROOT / "deploy" / "policies"
PREFIX = "prod"
FOLDER = f"{PREFIX}/{CLUSTER}/orders-0"
LOG, WATERMARK = f"{FOLDER}/{0:020d}.log", f"{FOLDER}/offset.wm"
KEPT = [
    WATERMARK,
    f"{PREFIX}/_foreign/{CLUSTER}/orders-0/3/offset.wm",
    f"{PREFIX}/_restores/{CLUSTER}/orders-0/1.json",
    f"{PREFIX}/_topics/{CLUSTER}/orders.json",
]

ENTROPY = f"{PREFIX}/01101/{CLUSTER}/orders-0/{0:020d}.log"
TOMBSTONE = f"{PREFIX}/_tombstones/{CLUSTER}/orders-0/0-1.json"
WORD = f"{PREFIX}/_acks/{CLUSTER}/orders-0/0-1.json"
REQUEST, APPROVAL = (f"{PREFIX}/_erasure/{CLUSTER}/0123456789abcdef/{part}.json" for part in ("request", "approval"))
MASK = f"{PREFIX}/_erased/{CLUSTER}/orders/0/{0:020d}-{1:020d}-0123456789abcdef.json"
BURIED = f"{PREFIX}/_erased/{CLUSTER}/orders/0/buried/{0:020d}-1.json"
OF_ERASURE = {REQUEST, APPROVAL, MASK, BURIED}
REWRITTEN = {f"{FOLDER}/{0:020d}.{kind}" for kind in ("log-e1", "index-7-e12", "log-7-r1-e1")}
DESCRIBED = {f"{FOLDER}/{0:020d}.manifest.json-7-e1"}
PACK = "0123456789abcdef0123456789abcdef.pack"
OWN = [
    f"{PREFIX}/_watermarks/{CLUSTER}/1.json",
    f"{PREFIX}/_gaps/{CLUSTER}/1.json",
    f"{PREFIX}/_heads/{CLUSTER}/1.json",
    f"{PREFIX}/_tails/{CLUSTER}/1/{PACK}",
    f"{PREFIX}/_damaged/{CLUSTER}/1/0123.head",
]
OTHERS = [
    *(f"{PREFIX}/_watermarks/{CLUSTER}/{name}.json" for name in (2, 11)),
    f"{PREFIX}/_gaps/{CLUSTER}/2.json",
    *(f"{PREFIX}/_heads/{CLUSTER}/{name}.json" for name in (2, 11)),
    *(f"{PREFIX}/_tails/{CLUSTER}/{name}/{PACK}" for name in (2, 11)),
    *(f"{PREFIX}/_damaged/{CLUSTER}/{name}/0123.head" for name in (2, 11)),
]
PACKS = [key for key in (*OWN, *OTHERS) if "/_tails/" in key]
OTHER_CLUSTER = [
    f"{PREFIX}/other/orders-0/offset.wm",
    f"{PREFIX}/01101/other/orders-0/{0:020d}.log",
    f"{PREFIX}/_topics/other/orders.json",
    f"{PREFIX}/_watermarks/other/1.json",
]
STATE = f"tables/_tidemark/{CLUSTER}/orders"
DATA, MARK = "tables/orders/dt=2026-01-01/a.parquet", "tables/orders/dt=2026-01-01/_SUCCESS"
REFUSED = "tables/orders__quarantine/dt=2026-01-01/a.parquet"
COMMIT, LEDGER, REVIEW = (
    f"tables/orders/_delta_log/{1:020d}.json",
    f"{STATE}/ledger/1-2.json",
    f"{STATE}/retention/raw/x.json",
)
FOUND = f"tables/_tidemark/_incidents/{CLUSTER}.json"
SAMPLES = f"tables/_tidemark/_samples/{CLUSTER}/20260101T00.json"
PUBLISHED = f"{STATE}/published.json"
HANDED = "tables/_tidemark/_lineage/c/x.json"

SEALS = {LOG, ENTROPY, *REWRITTEN, *DESCRIBED}
RAW_KEYS = [*SEALS, *KEPT, TOMBSTONE, WORD, *OF_ERASURE, *OWN, *OTHERS, *OTHER_CLUSTER, "elsewhere/a"]
LAKE_KEYS = [DATA, MARK, REFUSED, COMMIT, LEDGER, REVIEW, FOUND, SAMPLES, PUBLISHED, HANDED, "elsewhere/a"]
OF_GAPS = {WATERMARK, *DESCRIBED, *KEPT, TOMBSTONE, WORD, *OF_ERASURE, *OWN, *OTHERS, *OTHER_CLUSTER} - {
    OTHER_CLUSTER[1]
}
OF_TABLES = {COMMIT, LEDGER, REVIEW, FOUND, SAMPLES, PUBLISHED, HANDED}


class Rights(NamedTuple):
    """The keys of raw and lake that a role may get, put and delete; all others it may not."""

    get: tuple[set[str], set[str]]
    put: tuple[set[str], set[str]] = (set(), set())
    delete: tuple[set[str], set[str]] = (set(), set())


ALL_RAW, ALL_LAKE = {*RAW_KEYS} - {"elsewhere/a"}, {*LAKE_KEYS} - {"elsewhere/a"}
MINE = {*SEALS, *KEPT, *OWN}
ROLES = {
    "agent": Rights((MINE | {TOMBSTONE, WORD, *OF_ERASURE, *OTHERS}, set()), (MINE, set())),
    "reader": Rights((ALL_RAW, set())),
    "analyst": Rights((set(), {DATA, MARK, COMMIT})),
    "pipeline": Rights((ALL_RAW, ALL_LAKE), (set(), ALL_LAKE - {REVIEW}), (set(), {MARK, COMMIT})),
    "worker": Rights((ALL_RAW, {DATA, MARK, REFUSED, COMMIT}), (set(), {DATA, REFUSED})),
    "maintenance": Rights((ALL_RAW, ALL_LAKE), (set(), ALL_LAKE - {REVIEW}), (set(), ALL_LAKE)),
    "retention": Rights(
        (ALL_RAW, ALL_LAKE), ({TOMBSTONE}, {REVIEW, HANDED}), ({*SEALS, OTHER_CLUSTER[1], *PACKS}, set())
    ),
    "erasure": Rights(
        (ALL_RAW, ALL_LAKE),
        ({MASK, BURIED, *REWRITTEN, *DESCRIBED}, ALL_LAKE - {REVIEW}),
        ({*SEALS, OTHER_CLUSTER[1]}, ALL_LAKE),
    ),
    "page": Rights((OF_GAPS, OF_TABLES), ({WORD}, set())),
    "acknowledge": Rights((OF_GAPS, OF_TABLES), ({WORD}, set())),
    "erasure-request": Rights((OF_GAPS, OF_TABLES), ({REQUEST}, set())),
    "erasure-approval": Rights((OF_GAPS, OF_TABLES), ({APPROVAL}, set())),
    "watch": Rights((OF_GAPS, OF_TABLES), (set(), {FOUND, SAMPLES, PUBLISHED}), (set(), {SAMPLES, HANDED})),
}
ESSENTIAL = {"agent", "reader", "pipeline"}
"""Roles that `make test` tries."""


def statements(name: str, *, cluster: str = CLUSTER, broker: int | str = 1) -> list[dict[str, object]]:
    """A policy's statements for the buckets ``raw`` and ``table``, our prefixes, and the agent of ``broker``."""
    text = (POLICIES / f"{name}.json").read_text(encoding="utf-8")
    places = {"bucket": "raw", "prefix": PREFIX, "lake": "lake", "tables": "tables"}
    for place, value in {**places, "cluster": cluster, "broker": str(broker)}.items():
        text = text.replace(f"<{place}>", value)
    document = json.loads(text)
    assert document["Version"] == "2012-10-17"
    found: list[dict[str, object]] = document["Statement"]
    return found


@pytest.fixture(scope="module")
def server(own_buckets: Callable[..., OwnBuckets]) -> OwnBuckets:
    agents = {"agent-11": statements("agent", broker=11), "slots": statements("agent", broker="2000000???")}
    return own_buckets(users={name: statements(name) for name in ROLES} | agents)


@pytest.fixture(scope="module")
def administrator(server: OwnBuckets) -> S3Client:
    return server.client()


@pytest.fixture
def stored(server: OwnBuckets, administrator: S3Client) -> None:
    """Objects that an administrator has put where policies allow and where they do not."""
    for bucket, key in [*((server.raw, key) for key in [LOG, *KEPT, "elsewhere/a"]), (server.lake, LOG)]:
        administrator.put_object(Bucket=bucket, Key=key, Body=b"x")


def refused(call: Callable[..., object], **arguments: Any) -> bool:
    """Whether the server answers with AccessDenied, and with nothing else that went wrong."""
    try:
        call(**arguments)
    except ClientError as error:
        if error.response["Error"]["Code"] != "AccessDenied":
            raise
        return True
    return False


@pytest.mark.essential
def test_the_agent_works_under_its_policy(server: OwnBuckets, tmp_path: Path) -> None:
    """It creates by If-None-Match, replaces ``offset.wm`` by If-Match, and lists."""
    operated = Operated(
        tmp_path,
        raw={"url": f"s3://{server.raw}/{PREFIX}"},
        store={"endpoint_url": server.endpoint, "path_style": True},
        tail_after="0s",
    )
    disk, environment = operated.disk.partition(), server.env("agent")
    disk.fill(0, end=100)
    disk.segment(100, records(100, 150))

    def once() -> set[str]:
        assert operated.once(environment) == 0, operated.log()
        pages = server.client().list_objects_v2(Bucket=server.raw, Prefix=f"{PREFIX}/")
        return {one["Key"].removeprefix(f"{FOLDER}/") for one in pages["Contents"]}

    assert f"{100:020d}.manifest.json" in once(), "a quiet tail"
    disk.segment(100, records(100, 200))
    disk.roll(200)
    assert f"{150:020d}.manifest.json" in once(), "the rest of its segment"
    body = server.client().get_object(Bucket=server.raw, Key=WATERMARK)["Body"].read()
    assert json.loads(body.splitlines()[1])["next_offset"] == 200
    disk.lineage([(3, 0), (4, 100)])
    disk.segment(100, records(100, 200, epoch=4, value="other"))
    assert f"{100:020d}.manifest.json-4" in once(), "another branch"
    assert "AccessDenied" not in operated.log()


def test_the_agent_cannot_delete_nor_reach_elsewhere(server: OwnBuckets, stored: None) -> None:
    agent = server.client("agent")
    assert refused(agent.delete_object, Bucket=server.raw, Key=LOG)
    several = agent.delete_objects(Bucket=server.raw, Delete={"Objects": [{"Key": LOG}, {"Key": KEPT[1]}]})
    assert [one["Code"] for one in several["Errors"]] == ["AccessDenied"] * 2
    for bucket, key in [(server.raw, "elsewhere/a"), (server.raw, "prod-2/a"), (server.lake, LOG)]:
        assert refused(agent.put_object, Bucket=bucket, Key=key, Body=b"y")
        assert refused(agent.get_object, Bucket=bucket, Key=key)
    assert refused(agent.list_objects_v2, Bucket=server.lake)
    assert refused(agent.delete_bucket, Bucket=server.raw)
    assert server.client().get_object(Bucket=server.raw, Key=LOG)["Body"].read() == b"x"


@pytest.mark.essential
def test_conditions_and_multipart_work_under_the_agents_policy(server: OwnBuckets, stored: None) -> None:
    agent = server.client("agent")
    with pytest.raises(ClientError, match="PreconditionFailed"):
        agent.put_object(Bucket=server.raw, Key=LOG, Body=b"y", IfNoneMatch="*")
    with pytest.raises(ClientError, match="PreconditionFailed"):
        agent.put_object(Bucket=server.raw, Key=LOG, Body=b"y", IfMatch='"00000000000000000000000000000000"')
    with pytest.raises(ClientError, match="404"):
        agent.head_object(Bucket=server.raw, Key=f"{FOLDER}/missing")
    upload = agent.create_multipart_upload(Bucket=server.raw, Key=f"{FOLDER}/big.log")["UploadId"]
    agent.upload_part(Bucket=server.raw, Key=f"{FOLDER}/big.log", UploadId=upload, PartNumber=1, Body=b"y")
    agent.abort_multipart_upload(Bucket=server.raw, Key=f"{FOLDER}/big.log", UploadId=upload)


def test_an_agent_keeps_aside_what_lies_under_its_heads_key(server: OwnBuckets, administrator: S3Client) -> None:
    agent, [head, kept] = server.client("agent"), [key for key in OWN if "/_heads/" in key or "/_damaged/" in key]
    etag = administrator.put_object(Bucket=server.raw, Key=head, Body=b"garbage")["ETag"]
    agent.copy_object(
        Bucket=server.raw, Key=kept, CopySource={"Bucket": server.raw, "Key": head}, CopySourceIfMatch=etag
    )
    assert administrator.get_object(Bucket=server.raw, Key=kept)["Body"].read() == b"garbage"


def test_every_policy_of_a_bucket_is_a_role_that_is_tried() -> None:
    of_versions = {"undo"}  # tried in test_versions.py
    assert {path.stem for path in POLICIES.glob("*.json")} == ROLES.keys() | of_versions


def test_two_roles_alone_destroy_versions() -> None:
    allowed = {
        path.stem
        for path in POLICIES.glob("*.json")
        for statement in statements(path.stem)
        if statement["Effect"] == "Allow" and re.search(r"Version|Bypass|\*'", f"{statement['Action']}")
    }
    assert allowed == {"erasure", "undo"}


@pytest.mark.parametrize(
    "role", [pytest.param(role, marks=pytest.mark.essential if role in ESSENTIAL else ()) for role in ROLES]
)
def test_a_role_may_do_what_it_needs_and_nothing_else(server: OwnBuckets, administrator: S3Client, role: str) -> None:
    """Each request of each role to each kind of object, as the server judges it."""
    client, rights, admin = server.client(role), ROLES[role], administrator
    for bucket, keys, *allowed in zip((server.raw, server.lake), (RAW_KEYS, LAKE_KEYS), *rights, strict=True):
        for key in keys:
            admin.put_object(Bucket=bucket, Key=key, Body=b"x")
            there: dict[str, Any] = {"Bucket": bucket, "Key": key}
            may_get, may_put, may_delete = (key in names for names in allowed)
            assert refused(client.get_object, **there) != may_get, f"get {bucket}/{key}"
            assert refused(client.put_object, **there, Body=b"y") != may_put, f"put {bucket}/{key}"
            if not may_put:
                source = {"Bucket": bucket, "Key": {server.raw: LOG, server.lake: DATA}[bucket]}
                assert refused(client.copy_object, **there, CopySource=source), f"copy to {bucket}/{key}"
                assert refused(client.create_multipart_upload, **there), f"put {bucket}/{key} in parts"
            assert refused(client.delete_object, **there) != may_delete, f"delete {bucket}/{key}"
            left = admin.get_object(**there)["Body"].read() if not may_delete else None
            assert left in {None, b"y" if may_put else b"x"}, f"{bucket}/{key} is {left!r}"


def test_the_agent_of_another_broker_writes_its_own_indexes_alone(server: OwnBuckets) -> None:
    """Of a broker whose number begins like another's as well; segments it writes as all of the cluster do."""
    other = server.client("agent-11")
    for key in [*OWN, *OTHERS]:
        assert refused(other.put_object, Bucket=server.raw, Key=key, Body=b"y") is ("/11" not in key), key
    assert not refused(other.put_object, Bucket=server.raw, Key=LOG, Body=b"y")


def test_the_account_of_all_slots_writes_no_brokers_indexes(server: OwnBuckets) -> None:
    slots = server.client("slots")
    for key in [*OWN, *OTHERS]:
        assert refused(slots.put_object, Bucket=server.raw, Key=key, Body=b"y"), key
    for key in OWN:
        slots.put_object(Bucket=server.raw, Key=re.sub(r"/1\b", "/2000000003", key), Body=b"y")


def test_a_slot_works_under_the_policy_of_all(server: OwnBuckets, kafka: KafkaCluster, tmp_path: Path) -> None:
    kafka.create_topic("slots", config=SMALL["4.3.1"])
    Load(kafka, "slots").send(100)
    settings = {
        "cluster": CLUSTER,
        "include": ["slots"],
        "fetch": {"bootstrap": kafka.bootstrap, "spool": str(tmp_path / "spool")},
        "raw": {"url": f"s3://{server.raw}/{PREFIX}"},
        "store": {"endpoint_url": server.endpoint, "path_style": True},
        "state_dir": str(tmp_path / "state"),
        "tail_after": "0s",
    }
    (tmp_path / "agent.yaml").write_text(json.dumps(settings))
    log = tmp_path / "agent.log"
    # The disk agents of the other tests are of no real cluster.
    server.client().delete_object(Bucket=server.raw, Key=f"{PREFIX}/_fetch/{CLUSTER}/cluster.json")
    assert run_here(["upload-once", "-c", tmp_path / "agent.yaml"], log, server.env("slots")) == 0, log.read_text()
    assert "AccessDenied" not in log.read_text()
    server.client().head_object(Bucket=server.raw, Key=f"{PREFIX}/{CLUSTER}/slots-0/offset.wm")
    server.client().head_object(Bucket=server.raw, Key=f"{PREFIX}/_watermarks/{CLUSTER}/2000000000.json")
