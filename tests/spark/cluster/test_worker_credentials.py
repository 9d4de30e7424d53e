"""Workers on other machines have the credentials that their machines give them, and none of the driver's."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.spark.world import World
from tests.support.paths import ROOT
from tests.support.process import ProcessFailed
from tests.support.s3 import OwnBuckets
from tests.support.spark import SparkStandalone, spark_submit
from tests.tidemark.kafka_log.build import simple
from tests.uploader_agent.test_policies import PREFIX, statements
from tidemark.store.s3.clients import forget_clients
from tidemark_spark.run.vacuum import vacuum

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

PROFILE = "tables"
DT = "2026-02-02"


@pytest.fixture(scope="module")
def server(own_buckets: Callable[..., OwnBuckets]) -> OwnBuckets:
    return own_buckets(users={name: statements(name, cluster="east") for name in ("maintenance", "worker")})


@pytest.fixture(scope="module")
def cluster(starts_spark: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkStandalone]:
    """Its machines have no credentials, neither in the environment nor where AWS's tools look by themselves."""
    nowhere = str(tmp_path_factory.mktemp("machine") / "none")
    env = {"AWS_CONFIG_FILE": nowhere, "AWS_SHARED_CREDENTIALS_FILE": nowhere, "AWS_EC2_METADATA_DISABLED": "true"}
    with SparkStandalone(tmp_path_factory.mktemp("spark"), workers=1, env=env) as running:
        yield running


@pytest.fixture
def world(server: OwnBuckets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A topic in a table of its own, of which the administrator has stored two segments."""
    forget_clients()
    for name, value in server.env().items():
        monkeypatch.setenv(name, value)
    store = [f"endpoint_url: '{server.endpoint}'", "path_style: true"]
    prefix = f"{PREFIX}/{uuid.uuid4().hex}"
    raw, lake = f"s3://{server.raw}/{prefix}", f"s3://{server.lake}/tables"
    yield World(tmp_path, raw=raw, lake=lake, store=store)
    forget_clients()


def profile(server: OwnBuckets, role: str, folder: Path) -> dict[str, str]:
    """Variables that lead to the keys of ``role`` by a profile; they hold no key."""
    keys = server.env(role)
    path = folder / f"{role}-credentials"
    path.write_text(
        f"[{PROFILE}]\naws_access_key_id = {keys['AWS_ACCESS_KEY_ID']}\n"
        f"aws_secret_access_key = {keys['AWS_SECRET_ACCESS_KEY']}\n"
    )
    path.chmod(0o600)
    return {"AWS_SHARED_CREDENTIALS_FILE": str(path), "AWS_PROFILE": PROFILE, "AWS_REGION": keys["AWS_REGION"]}


class Submit(NamedTuple):
    """Submits jobs of ``world``, whose drivers have the environment ``driver``, and workers ``workers``."""

    world: World
    cluster: SparkStandalone
    driver: Mapping[str, str]
    workers: Mapping[str, str]

    def __call__(self, job: str, *arguments: str) -> str:
        conf = {f"spark.executorEnv.{name}": value for name, value in self.workers.items()}
        conf["spark.task.maxFailures"] = "1"
        program, topics = ROOT / job if "/" in job else ROOT / "spark" / "jobs" / job, str(self.world.topics_file)
        told = ("--topics", topics, "--topic", "orders", *arguments)
        return spark_submit(program, *told, master=self.cluster.master_url, conf=conf, env=self.driver)


def test_workers_convert_under_their_own_role_and_not_under_the_drivers(
    world: World, cluster: SparkStandalone, server: OwnBuckets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for base in (0, 3):
        world.raw.segment(simple(base))
    world.raw.publish()
    driver, workers = (profile(server, role, tmp_path) for role in ("maintenance", "worker"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)

    with pytest.raises(ProcessFailed, match=r"each machine of Spark's workers"):
        Submit(world, cluster, driver, {"AWS_REGION": driver["AWS_REGION"]})("ingest.py")
    submit = Submit(world, cluster, driver, workers)
    submit("ingest.py")
    submit("rebuild.py", "--from", DT, "--to", DT)
    submit("rebuild.py", "--from", DT, "--to", DT, "--compare")
    submit("tests/spark/compaction/of_few_files.py")
    submit("audit.py")

    for name, value in server.env().items():
        monkeypatch.setenv(name, value)
    world.check()
    assert vacuum(world.table, dry_run=True).unknown == ()
