"""Pytest fixtures over the servers. Each server starts when a test first asks for it and serves the whole session.

Imports of what needs more than pytest are inside the fixtures: Airflow's environment loads this module too.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.journal import TRIED
from tests.support.tiers import KINDS, check

if TYPE_CHECKING:
    import pyarrow as pa
    import typer

    from tests.golden.answers import ObservedAnswers
    from tests.support.kafka import KafkaCluster
    from tests.support.s3 import OwnBuckets, S3Server
    from tests.support.spark import SparkStandalone

SEED = int(os.environ.get("TIDEMARK_SEED") or random.SystemRandom().randrange(2**32))
os.environ["TIDEMARK_SEED"] = str(SEED)  # for the processes among which pytest-xdist shares the tests out
FULL = os.environ.get("TIDEMARK_FULL") == "1"


@pytest.fixture(scope="session")
def seed() -> int:
    """This session's random seed, shown in pytest's header; TIDEMARK_SEED repeats one."""
    return SEED


@pytest.fixture(scope="session", autouse=True)
def inner_sessions_apart(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Give the pytest sessions that tests start a root of their own.

    Each session closes its root to other users, and some tests run an agent as another user below ours.
    """
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(tmp_path_factory.mktemp("inner"))


@pytest.fixture(scope="session", autouse=True)
def no_power_cut() -> Iterator[None]:
    """Spare the disk: what a process has written outlives its death without ``fsync``, and no test cuts the power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _file: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def models_read_once() -> Iterator[None]:
    """Keep what botocore reads of S3's interface: each new client would parse megabytes of JSON again."""
    from botocore.loaders import JSONFileLoader, Loader

    from tidemark.store.s3.clients import _Undocumented

    services = cache(Loader().list_available_services)
    with pytest.MonkeyPatch.context() as patch:
        for reader in (JSONFileLoader, _Undocumented):
            patch.setattr(reader, "load_file", staticmethod(cache(reader().load_file)))
        patch.setattr(Loader, "list_available_services", lambda _, type_name: services(type_name))
        yield


@pytest.fixture(scope="session", autouse=True)
def evidence_parsed_once() -> Iterator[None]:
    """Keep what was parsed of small objects of evidence, which each look at a table reads: equal bytes, equal rows."""
    from tidemark.table import evidence, evidence_reader

    parse = evidence.parse_evidence
    kept = lru_cache(maxsize=500)(parse)

    def parse_once(body: bytes, key: str) -> pa.Table:
        return (kept if len(body) < 20_000 else parse)(body, key)

    with pytest.MonkeyPatch.context() as patch:
        for module in (evidence, evidence_reader):
            patch.setattr(module, "parse_evidence", parse_once)
        yield


@pytest.fixture(scope="session", autouse=True)
def commands_built_once() -> Iterator[None]:
    """Keep what typer makes of a command's functions: each call would build all commands of the program again."""
    from typer import main, testing

    kept = cache(lambda app, _registered: get_command(app))

    def build(app: typer.Typer) -> object:
        return kept(app, len(app.registered_commands))

    get_command = main.get_command
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(main, "get_command", build)
        patch.setattr(testing, "_get_command", build)
        yield


@pytest.fixture(scope="session")
def observed_answers() -> Iterator[ObservedAnswers]:
    """The commands' answers of this session, beside the list of them."""
    import typer

    from tests.golden.answers import ObservedAnswers

    observed = ObservedAnswers(add=os.environ.get("TIDEMARK_ANSWERS") == "write")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer, "echo", observed.echo)
        yield observed
    observed.write()


@pytest.fixture(autouse=True)
def answers_are_listed(observed_answers: ObservedAnswers) -> Iterator[None]:
    """Fail if a command prints JSON that ``tests/golden/answers.json`` does not list: it is a public surface."""
    observed_answers.surprises.clear()
    yield
    surprises = "\n".join(observed_answers.surprises)
    assert not surprises, f"{surprises}\nCONTRIBUTING.md, The public surface, says how to list what is meant"


@pytest.fixture(autouse=True)
def servers_are_marked(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that asks for a server by ``getfixturevalue`` without the marker of its kind."""
    yield
    check(request.node, request.fixturenames)


@pytest.fixture(scope="module", autouse=True)
def no_kafka_client_left() -> Iterator[None]:
    """Stop the clients of Kafka that a module leaves open; where all tests run, that is a failure.

    Their threads ask brokers that are gone for ever, and draw random numbers while other modules' tests are generated.
    """
    before = set(threading.enumerate())
    yield
    left: list[Any] = [one for one in threading.enumerate() if one not in before and one.name.startswith("kafka-io-")]
    for one in left:
        one._target.__self__.stop()  # kafka-python's NetworkSelector, whose loop the thread runs
    assert not (left and FULL), f"clients of Kafka that nobody closed: {sorted(one.name for one in left)}"


@pytest.fixture
def rng(seed: int, request: pytest.FixtureRequest) -> random.Random:
    """Random numbers of the test's own: the same for a seed whatever else runs."""
    return random.Random(f"{seed}:{request.node.nodeid}")


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have reads repeated at once, as if no store ever needed a rest."""
    from tidemark.backoff import Backoff
    from tidemark.store import retrying

    monkeypatch.setattr(retrying, "PAUSES", Backoff(0.01, 0.05))


@pytest.fixture(scope="session")
def full() -> bool:
    """Whether the long variant is asked for (TIDEMARK_FULL=1, `make test-full`)."""
    return FULL


@pytest.fixture
def tried(record_property: Callable[[str, object], None]) -> Callable[[str, int], None]:
    """``tried(kind, amount)`` notes how much a test has tried; `make test-full` prints the sums by kind."""
    return lambda kind, amount: record_property(f"{TRIED}{kind}", amount)


def _starts(kind: str) -> Any:
    @pytest.fixture(scope="session", name=f"starts_{kind}")
    def permission() -> None:
        pass

    permission.__doc__ = f"Whoever starts {KINDS[kind]} asks for it, so that each test that does has the marker."
    return permission


starts_airflow = _starts("airflow")
starts_browser = _starts("browser")
starts_kafka = _starts("kafka")
starts_other = _starts("other")
starts_s3 = _starts("s3")
starts_spark = _starts("spark")


@pytest.fixture(scope="session")
def s3_server(starts_s3: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """An S3 server with the buckets ``raw`` and ``lake``; use a prefix of your own, and leave it running."""
    from tests.support.s3 import S3Server

    with S3Server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="session")
def own_buckets(s3_server: S3Server) -> Callable[..., OwnBuckets]:
    """``own_buckets(versioned=…, locked=…, users=…)`` gives buckets and users of one's own on :func:`s3_server`."""
    from tests.support.s3 import OwnBuckets

    return partial(OwnBuckets, s3_server)


@pytest.fixture
def s3(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """The server, with its credentials where a client looks for them, and no client left over from other ones."""
    from tidemark.store.s3.clients import forget_clients

    for name, value in s3_server.env().items():
        monkeypatch.setenv(name, value)
    forget_clients()
    yield s3_server
    forget_clients()


@pytest.fixture(scope="session")
def kafka(starts_kafka: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Kafka 4.3.1, one broker that cleans and deletes soon; use topics of your own, and leave it running."""
    from tests.support.kafka import KafkaCluster
    from tests.support.kafka_config import QUICK

    with KafkaCluster(tmp_path_factory.mktemp("kafka"), common=QUICK) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def kafka39(starts_kafka: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Likewise of Kafka 3.9.2, with ZooKeeper."""
    from tests.support.kafka import KafkaCluster
    from tests.support.kafka_config import QUICK

    with KafkaCluster(tmp_path_factory.mktemp("kafka39"), version="3.9.2", common=QUICK) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def spark_home() -> Path:
    """SPARK_HOME of the spark environment."""
    from tests.support.spark import spark_home

    return spark_home()


@pytest.fixture(scope="session")
def spark_standalone(
    starts_spark: None, tmp_path_factory: pytest.TempPathFactory, s3_server: S3Server
) -> Iterator[SparkStandalone]:
    """A Spark master with two workers of one core, whose executors use ``s3_server``."""
    from tests.support.spark import SparkStandalone

    with SparkStandalone(tmp_path_factory.mktemp("spark"), env=s3_server.env()) as cluster:
        yield cluster
