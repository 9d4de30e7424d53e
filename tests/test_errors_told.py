"""Every error that a person can cause is one message, with what, where and what to do, from each command and job."""

from __future__ import annotations

import io
import json
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.support.s3 import ADMIN, S3Server
from tidemark import cli, retry
from tidemark.store import StoreOptions, open_store
from tidemark.store.s3_clients import forget_clients
from tidemark_spark.cli import audit, compact, export, ingest, rebuild, repair, replay, retain, vacuum

Main = Callable[[Sequence[str]], int]

DATES = ("--from", "2026-01-01", "--to", "2026-01-02")
JOBS: dict[str, tuple[Main, tuple[str, ...]]] = {
    "ingest": (ingest.main, ()),
    "rebuild": (rebuild.main, DATES),
    "repair": (repair.main, ()),
    "replay": (replay.main, ()),
    "vacuum": (vacuum.main, ()),
    "audit": (audit.main, ()),
    "compact": (compact.main, ()),
    "retain": (retain.main, ()),
    "export": (export.main, ("--to", "file:///nowhere")),
}
COMMANDS: dict[str, tuple[str, ...]] = {
    "status": ("orders",),
    "files": ("orders",),
    "continuity": ("orders",),
    "consume": ("orders", "--limit", "1"),
    "incidents": (),
    "acknowledge-gap": ("orders", "0", "1", "2", "--by", "ada", "--reason", "lost", "-y"),
}
ALL = (*JOBS, *COMMANDS)
OF_RAW = ("export", "consume", "acknowledge-gap")
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
        "no agent of cluster east has ever seen this topic in s3://raw/seen: did you mean orders-v2?",
        of=without("consume", "acknowledge-gap", "incidents"),
        text=(("s3://raw", "s3://raw/seen"),),
    ),
    "an empty bucket": Fault(
        "no agent of cluster east has ever written to s3://raw/empty; there is none of any cluster",
        of=without("consume", "acknowledge-gap", "incidents"),
        text=(("s3://raw", "s3://raw/empty"),),
    ),
    "a wrong cluster": Fault(
        "no agent of cluster west has ever written to s3://raw/seen; there are east",
        of=without("consume", "acknowledge-gap", "incidents"),
        text=(("s3://raw", "s3://raw/seen"), ("cluster: east", "cluster: west")),
    ),
    "an unknown key": Fault(
        "topics.0.latenes: is not a known key; did you mean lateness?",
        code=2,
        text=(("{topic:", "{latenes: 1h, topic:"),),
    ),
    "a topic that is not in the file": Fault(
        "must name one topic of the topics file, which has: east/other",
        code=2,
        of=without("incidents", "consume"),
        text=(("topic: orders", "topic: other"),),
    ),
    "no YAML": Fault("is no valid YAML: line", code=2, text=(("topics:", "topics: ]"),)),
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
        options = StoreOptions(endpoint_url=server.endpoint, region="us-east-1")
        self._lake = open_store("s3://lake", options)
        open_store("s3://raw", options).put("seen/_topics/east/orders-v2.json", b"{}")

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
            self._lake.put(fault.planted, b"rubbish\n")
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


@pytest.fixture
def deployment(tmp_path: Path, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    monkeypatch.setattr(retry, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(retry, "LONGEST_PAUSE", 0.01)
    yield Deployment(tmp_path, s3_server, monkeypatch)
    forget_clients()


class _Output(io.TextIOWrapper):
    """Standard output that a command may write bytes to, as well."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", write_through=True)


def outcome(name: str, topics: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> tuple[int, str]:
    """(exit code, what was said) of a command or job; an exception that it lets through fails the test."""
    said: Any = io.StringIO()
    monkeypatch.setattr(sys, "stderr", said)
    monkeypatch.setattr(sys, "stdout", _Output())
    try:
        if name in JOBS:
            main, arguments = JOBS[name]
            code: object = main(["--topics", str(topics), "--topic", "orders", *arguments, *more])
        else:
            arguments = (*COMMANDS[name], *more, "--topics", str(topics))
            monkeypatch.setattr(sys, "argv", ["tidemark", name, *arguments])
            cli.main()
            code = 0
    except SystemExit as ended:
        code = ended.code or 0
    return int(str(code)), said.getvalue()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one_message(
    fault: str, deployment: Deployment, rng: random.Random, monkeypatch: pytest.MonkeyPatch, *, full: bool
) -> None:
    one = FAULTS[fault]
    topics = deployment.topics(one)
    for name in one.of if full else rng.sample(one.of, 3):
        code, said = outcome(name, topics, monkeypatch)
        assert (name, code) == (name, one.code), said
        assert one.says in said, name
        assert "Traceback" not in said
        assert len(said.strip().splitlines()) == 1, (name, said)


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
