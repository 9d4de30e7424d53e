"""Every error that a person can cause is one message, with what, where and what to do, from each command and job."""

from __future__ import annotations

import io
import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.support.raw_builder import RawBuilder
from tests.support.s3 import ADMIN, S3Server
from tests.tidemark.kafka_log.build import simple
from tidemark import cli
from tidemark.store import StoreOptions, open_store
from tidemark.store.s3.clients import forget_clients
from tidemark_spark.jobs.running import run_job

DATES = ("--from", "2026-01-01", "--to", "2026-01-02")
JOBS: dict[str, tuple[str, ...]] = {
    "ingest": (),
    "rebuild": DATES,
    "repair": (),
    "replay": (),
    "vacuum": (),
    "audit": (),
    "compact": (),
    "retain": (),
    "export": ("--to", "file:///nowhere"),
    "run_plan": ("--plan", "_tidemark/plan.json"),
}
COMMANDS: dict[str, tuple[str, ...]] = {
    "status": ("orders",),
    "files": ("orders",),
    "continuity": ("orders",),
    "consume": ("orders", "--limit", "1"),
    "incidents": (),
    "acknowledge-gap": ("orders", "0", "1", "2", "--by", "ada", "--reason", "lost", "-y"),
    "erase": ("status",),
    "restore": ("orders", "--to-topic", "again", "--bootstrap", "127.0.0.1:1", "--dry-run"),
}
ALL = (*JOBS, *COMMANDS)
FILES = (*ALL, "config")
"""What reads the topics file."""
OF_RAW = ("export", "consume", "acknowledge-gap", "erase", "restore")
"""They do not read the table."""


@dataclass(frozen=True)
class Fault:
    """What a person did: to the topics file, to the environment; what the message says, and the exit code.

    ``of`` are those that it concerns. An object is put under ``planted``, and a Delta table of others ``beside``.
    """

    says: str
    code: int = 1
    of: tuple[str, ...] = ALL
    text: tuple[tuple[str, str], ...] = ()
    environment: tuple[tuple[str, str | None], ...] = ()
    planted: str = ""
    beside: str = ""


def without(*names: str) -> tuple[str, ...]:
    return tuple(one for one in ALL if one not in names)


TABLES = without(*OF_RAW, "incidents")

FAULTS = {
    "a wrong secret": Fault("check the credentials", environment=(("AWS_SECRET_ACCESS_KEY", "x" * 30),)),
    "no credentials": Fault(
        "give credentials", environment=(("AWS_ACCESS_KEY_ID", None), ("AWS_SECRET_ACCESS_KEY", None))
    ),
    "an unknown profile": Fault(
        "the environment: AWS_*: no S3 client can be made", code=2, environment=(("AWS_PROFILE", "nobody"),)
    ),
    "a store that is down": Fault(
        "does the store run, and is store.endpoint_url right?", text=(("ENDPOINT", "http://127.0.0.1:1"),)
    ),
    "no lake bucket": Fault(
        "the bucket does not exist; create it", of=without(*OF_RAW), text=(("s3://lake", "s3://no-lake"),)
    ),
    "no raw bucket": Fault(
        "the bucket does not exist; create it", of=without("incidents"), text=(("s3://raw", "s3://no-raw"),)
    ),
    "another Delta table": Fault(
        "has a Delta table that Tidemark did not make",
        code=2,
        of=TABLES,
        text=(("s3://lake", "s3://lake/theirs"),),
        beside="theirs/orders",
    ),
    "a damaged Delta log": Fault(
        "cannot be read as a Delta log",
        of=TABLES,
        text=(("s3://lake", "s3://lake/damaged"),),
        planted="damaged/orders/_delta_log/00000000000000000000.json",
    ),
    "a topic that no agent knows": Fault(
        "no agent of cluster east has ever seen this topic in s3://raw/seen; did you mean orders-v2?",
        of=without("consume", "acknowledge-gap", "incidents", "restore", "erase"),
        text=(("s3://raw", "s3://raw/seen"),),
    ),
    "an empty bucket": Fault(
        "no agent of cluster east has ever written to s3://raw/empty; nothing of any cluster is there",
        of=without("consume", "acknowledge-gap", "incidents", "restore", "erase"),
        text=(("s3://raw", "s3://raw/empty"),),
    ),
    "a wrong cluster": Fault(
        "no agent of cluster west has ever written to s3://raw/seen; there are east",
        of=without("consume", "acknowledge-gap", "incidents", "restore", "erase"),
        text=(("s3://raw", "s3://raw/seen"), ("cluster: east", "cluster: west")),
    ),
    "an unknown key": Fault(
        "topics.orders.latenes: is not a known key; did you mean lateness?",
        code=2,
        text=(("{topic:", "{latenes: 1h, topic:"),),
    ),
    "a topic that is not in the file": Fault(
        "orders is not a topic of the file; there is other",
        code=2,
        of=without("incidents", "consume", "restore", "erase"),
        text=(("topic: orders", "topic: other"),),
    ),
    "a topic that no agent knows, read from raw": Fault(
        "no agent of cluster east has ever seen this topic; did you mean orders-v2?",
        code=2,
        of=("consume", "restore"),
        text=(("s3://raw", "s3://raw/seen"),),
    ),
    "an empty bucket, read from raw": Fault(
        "no agent of cluster east has ever seen this topic; there are none",
        code=2,
        of=("consume", "restore"),
        text=(("s3://raw", "s3://raw/empty"),),
    ),
    "a gap of a topic that no agent knows": Fault(
        "no agent has uploaded this topic; check its name and cluster",
        of=("acknowledge-gap",),
        text=(("s3://raw", "s3://raw/empty"),),
    ),
    "a cluster that no watch has looked at": Fault("", of=("incidents",), text=(("cluster: east", "cluster: west"),)),
    "no YAML": Fault("is not valid YAML: line", code=2, of=FILES, text=(("topics:", "topics: ]"),)),
    "a date that is none": Fault(
        "line 6, column 49: this is not a valid timestamp",
        code=2,
        of=FILES,
        text=(("orders}", "orders, sane_timestamps: {earliest: 2026-02-30}}"),),
    ),
    "a length of time without a unit": Fault(
        "topics.orders.lateness: must be a number with a unit",
        code=2,
        of=FILES,
        text=(("orders}", "orders, lateness: 10}"),),
    ),
    "a size with another unit": Fault(
        "topics.orders.batch.size: must be bytes or a number with a unit",
        code=2,
        of=FILES,
        text=(("orders}", "orders, batch: {size: 1MB}}"),),
    ),
    "an endpoint that is no URL": Fault(
        "store.endpoint_url: must be a URL such as", code=2, of=FILES, text=(("ENDPOINT", "http://[::1"),)
    ),
    "a lake that is no URL": Fault("lake: must be s3://", code=2, of=FILES, text=(("s3://lake", "lake"),)),
    "no topics": Fault(
        "topics: must name one topic at least", code=2, of=FILES, text=(("  - {topic: orders}", "  []"),)
    ),
    "a resolver that is not there": Fault(
        "nowhere:Resolver: names nothing that can be imported",
        code=2,
        of=without("incidents"),
        text=(("url: 's3://raw'", "url: 's3://raw', resolver: 'nowhere:Resolver'"),),
    ),
}


_TOPICS = """\
raw: {url: 's3://raw'}
lake: 's3://lake'
cluster: east
store: !endpoint
topics:
  - {topic: orders}
"""


class Deployment:
    """A real server with two buckets, and topics files over it, each with a fault."""

    def __init__(self, root: Path, server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
        """``raw`` is filled already: see :func:`filled`."""
        self._root, self._endpoint, self._monkeypatch = root, server.endpoint, monkeypatch
        known = server.credentials[ADMIN]
        self._environment: dict[str, str | None] = {
            "AWS_ACCESS_KEY_ID": known.access_key,
            "AWS_SECRET_ACCESS_KEY": known.secret_key,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_PROFILE": None,
            "AWS_SESSION_TOKEN": None,
            "AWS_CONFIG_FILE": str(root / "none"),
            "AWS_SHARED_CREDENTIALS_FILE": str(root / "none"),
        }
        self._set(self._environment)

    def topics(self, fault: Fault) -> Path:
        """The topics file with the fault; what the fault needs is planted, and the environment is as it says."""
        text = _TOPICS
        for old, new in fault.text:
            if old.startswith("s3://"):
                text = text.replace(f"'{old}'", f"'{new}'")
            elif old != "ENDPOINT":
                text = text.replace(old, new)
        endpoint = dict(fault.text).get("ENDPOINT", self._endpoint)
        path = self._root / "topics.yaml"
        path.write_text(text.replace("!endpoint", json.dumps({"endpoint_url": endpoint, "region": "us-east-1"})))
        if fault.planted:
            lake = open_store("s3://lake", StoreOptions(endpoint_url=self._endpoint, region="us-east-1"))
            lake.put(fault.planted, b"rubbish\n")
        if fault.beside:
            options = {"AWS_ENDPOINT_URL": self._endpoint, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"}
            url = f"s3://lake/{fault.beside}"
            write_deltalake(url, pa.table({"a": [1]}), mode="overwrite", storage_options=options)
        self._set(self._environment | dict(fault.environment))
        return path

    def _set(self, environment: dict[str, str | None]) -> None:
        for name, value in environment.items():
            if value is None:
                self._monkeypatch.delenv(name, raising=False)
            else:
                self._monkeypatch.setenv(name, value)
        forget_clients()


@pytest.fixture(scope="module")
def filled(s3_server: S3Server) -> S3Server:
    """Raw with a topic that an agent has seen, and one that has a segment."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3_server.env().items():
            patch.setenv(name, value)
        forget_clients()
        raw = open_store("s3://raw", StoreOptions(endpoint_url=s3_server.endpoint, region="us-east-1"))
        raw.put("seen/_topics/east/orders-v2.json", b"{}")
        topic = RawBuilder(raw, prefix="filled")
        topic.segment([simple(0, 4)])
        topic.publish()
    return s3_server


@pytest.fixture
def deployment(
    tmp_path: Path, filled: S3Server, monkeypatch: pytest.MonkeyPatch, quick_retries: None
) -> Iterator[Deployment]:
    yield Deployment(tmp_path, filled, monkeypatch)
    forget_clients()


class _Output(io.TextIOWrapper):
    """Standard output that a command may write bytes to, as well."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", write_through=True)


def outcome(name: str, topics: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> tuple[int, str]:
    """(exit code, what was said) of a command or job; an exception that it lets through fails the test.

    Where JSON is asked for, nothing else stands on standard output.
    """
    said: Any = io.StringIO()
    output = _Output()
    monkeypatch.setattr(sys, "stderr", said)
    monkeypatch.setattr(sys, "stdout", output)
    try:
        if name in JOBS:
            code: object = run_job(name, ["--topics", str(topics), "--topic", "orders", *JOBS[name], *more])
        else:
            arguments = (*COMMANDS[name], *more, "--topics", str(topics))
            monkeypatch.setattr(sys, "argv", ["tidemark", name, *arguments])
            cli.main()
            code = 0
    except SystemExit as ended:
        code = ended.code or 0
    if "json" in more:
        for line in output.buffer.getvalue().splitlines():  # type: ignore[attr-defined] # a BytesIO
            json.loads(line)
    return int(str(code)), said.getvalue()


@pytest.mark.essential
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one_message(
    fault: str, deployment: Deployment, rng: random.Random, monkeypatch: pytest.MonkeyPatch, *, full: bool
) -> None:
    one = FAULTS[fault]
    topics = deployment.topics(one)
    monkeypatch.setitem(COMMANDS, "config", ("check",))
    for name in one.of if full else rng.sample(one.of, min(3, len(one.of))):
        more = ("--output", "json") if name in COMMANDS and name != "consume" else ()
        code, said = outcome(name, topics, monkeypatch, *more)
        assert (name, code) == (name, one.code), said
        assert one.says in said, name
        assert "Traceback" not in said
        assert len(said.strip().splitlines()) == (1 if one.says else 0), (name, said)


@pytest.mark.parametrize("kind", ["missing", "a directory", "no text"])
def test_a_topics_file_that_cannot_be_read_is_one_message(
    kind: str, deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "other.yaml"
    if kind == "a directory":
        path.mkdir()
    elif kind == "no text":
        path.write_bytes(b"\xff\xfe")
    monkeypatch.setitem(COMMANDS, "config", ("check",))
    told = "does not exist; name the topics file by --topics" if kind == "missing" else "cannot be read: "
    for name in FILES:
        code, said = outcome(name, path, monkeypatch)
        assert (name, code, f"{path}: {told}" in said) == (name, 2, True), said
        assert len(said.strip().splitlines()) == 1


BIG = "9" * 30
WRONG: tuple[tuple[str, tuple[str, ...], int, str], ...] = (
    ("ingest", ("--attempt", "x"), 2, "'x' is not a number from 0 to"),
    ("ingest", ("--attempt", "-1"), 2, "'-1' is not a number from 0 to"),
    ("ingest", ("--attempt", BIG), 2, "is not a number from 0 to"),
    ("compact", ("--attempt", "-1"), 2, "'-1' is not a number from 0 to"),
    ("ingest", ("--cluster", "west"), 2, "no topic belongs to a cluster west; there is east"),
    ("ingest", ("--remote", "http://host"), 2, "must be sc://host:port"),
    (
        "ingest",
        ("--remote", "sc://host", "--master", "local"),
        2,
        "--remote: only one of both says where Spark is",
    ),
    ("ingest", ("--bogus",), 2, "No such option: --bogus"),
    ("rebuild", ("--from", "2026-01-03"), 2, "--to not before --from"),
    ("rebuild", ("--all",), 2, "or only --all"),
    ("rebuild", ("--report", "x"), 2, "'x' is not the name of a report"),
    ("repair", ("--report", "x"), 2, "'x' is not the name of a report"),
    ("replay", ("--report", "x"), 2, "'x' is not the name of a report"),
    ("run_plan", ("--report", "x"), 2, "'x' is not the name of a report"),
    ("run_plan", ("--report", "0" * 16), 2, "--report: is an option of --compare"),
    ("run_plan", (), 1, "_tidemark/plan.json"),
    ("audit", ("--from", "2026-01-01"), 2, "both are needed"),
    ("audit", ("--from", "2026-01-05", "--to", "2026-01-01"), 2, "--to lies before --from"),
    ("audit", ("--topic", "nothing"), 2, "nothing is not a topic of the file; there is orders"),
    ("retain", ("--only", "all"), 2, "--only: must be 'table' or 'raw'"),
    ("export", ("--to", "nowhere"), 2, "--to: nowhere: must be s3://<bucket>"),
    ("export", ("--to", "s3://BAD"), 2, "--to: s3://BAD: must be s3://<bucket>"),
    ("export", ("--option", "bogus=1"), 2, "bogus: is not an option of this format"),
    ("export", ("--option", "fromOffset=soon"), 2, "fromOffset: 'soon' is wrong: the first offset"),
    ("export", ("--option", "partitions=1,,2"), 2, "partitions: '1,,2' is wrong: their numbers"),
    ("export", ("--option", "fromTime=2026-01-01"), 2, "is wrong: the first record time, such as 2026-11-20T00"),
    ("export", ("--option", "isolation=none"), 2, "is wrong: read_committed"),
    ("status", ("--cluster", "west"), 2, "no topic belongs to a cluster west; there is east"),
    ("status", ("--output", "xml"), 2, "--output"),
    ("incidents", ("--cluster", "west"), 2, "no topic belongs to a cluster west; there is east"),
    ("consume", ("--cluster", "a/b"), 2, "--cluster: 'a/b' is not a valid cluster name"),
    ("consume", ("--cluster", "west"), 2, "no agent of cluster west has ever seen this topic; there are none"),
    ("consume", ("--to", "1", "--to", "2"), 2, "--to: '2': is given twice"),
    ("consume", ("--from", "3:soon"), 2, "must be beginning, end, an offset"),
    ("consume", ("--partition", "7"), 2, "there is no partition 7; the remote tier has 0"),
    ("consume", ("--partition", "-1"), 2, "--partition"),
    ("consume", ("--limit", "many"), 2, "--limit"),
    ("consume", ("--delimiter", "\\x", "--format", "raw"), 2, "--delimiter"),
    ("consume", ("--file", "/dev/null/x"), 2, "/dev/null/x: --file: cannot be written"),
    ("consume", ("--file", "/dev/full"), 1, "No space left on device: '/dev/full'"),
    ("consume", ("--group", "g"), 2, "--group: needs --bootstrap"),
    ("consume", ("--bootstrap", "host:port"), 2, "--bootstrap: 'host:port' must be HOST:PORT"),
    ("consume", ("--bootstrap", ""), 2, "--bootstrap: '' must be HOST:PORT"),
    ("consume", ("--bootstrap", "host:1", "--client-config", "/nowhere"), 2, "/nowhere: --client-config: cannot be"),
    ("restore", ("--bootstrap", "host:port"), 2, "--bootstrap: 'host:port' must be HOST:PORT"),
    ("restore", ("--config", "a=b"), 2, "--config: applies only with --create"),
    ("restore", ("--create", "--config", "a"), 2, "--config: 'a' must be NAME=VALUE"),
    ("restore", ("--from", "soon"), 2, "--from: 'soon' must be beginning"),
    ("restore", ("--to-topic", "a/b"), 2, "'a/b' is not a valid topic name"),
    ("acknowledge-gap", ("--incarnation", "9"), 1, "has incarnations 0 to 0, and not 9"),
    ("acknowledge-gap", ("--by", " "), 2, "must not be empty"),
)


@pytest.mark.parametrize(
    ("name", "more", "code", "says"), WRONG, ids=[f"{one} {' '.join(more)[:40]}" for one, more, _, _ in WRONG]
)
def test_a_wrong_option_says_which_and_why(
    name: str, more: tuple[str, ...], code: int, says: str, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a topic with a segment, so that nothing else is wrong."""
    topics = deployment.topics(Fault("", text=(("s3://raw", "s3://raw/filled"),)))
    if name == "restore":
        real = tuple(one for one in COMMANDS[name] if one != "--dry-run")
        monkeypatch.setitem(COMMANDS, name, real)
    found, said = outcome(name, topics, monkeypatch, *more)
    flat = " ".join(said.replace("│", " ").split())
    assert (found, says in flat) == (code, True), said
    assert "Traceback" not in said


DAYS = {
    "rebuild": ("--from", "yesterday"),
    "replay": ("--dt", "2026-02-30"),
    "audit": ("--dt", "2026-13-01"),
    "compact": ("--dt", "yesterday"),
    "files": ("--dt", "20.11.2026"),
    "continuity": ("--dt", "yesterday"),
    "consume": ("--from", "yesterday"),
}


@pytest.mark.parametrize("name", DAYS)
def test_a_date_that_is_none_says_what_one_looks_like(
    name: str, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, said = outcome(name, deployment.topics(Fault("")), monkeypatch, *DAYS[name])
    assert code == 2, said
    assert "2026-" in said.replace(DAYS[name][1], ""), "an example"
    assert "fromisoformat" not in said
    assert "Traceback" not in said


def test_a_topic_that_an_agent_knows_and_that_has_nothing_yet_waits(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = Fault("", text=(("s3://raw", "s3://raw/seen"), ("topic: orders", "topic: orders-v2")))
    topics = deployment.topics(fault)
    monkeypatch.setitem(COMMANDS, "status", ("orders-v2",))
    monkeypatch.setitem(COMMANDS, "continuity", ("orders-v2",))
    for name in ("status", "continuity"):
        assert outcome(name, topics, monkeypatch) == (0, "")


def test_the_check_of_the_topics_file_asks_for_agents(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COMMANDS, "config", ("check", "--agents"))
    unseen = deployment.topics(Fault("", text=(("s3://raw", "s3://raw/seen"),)))
    code, said = outcome("config", unseen, monkeypatch)
    assert (code, "east/orders: no agent of cluster east has ever seen this topic" in said) == (1, True)
    known = deployment.topics(Fault("", text=(("s3://raw", "s3://raw/seen"), ("topic: orders", "topic: orders-v2"))))
    assert outcome("config", known, monkeypatch) == (0, "")
