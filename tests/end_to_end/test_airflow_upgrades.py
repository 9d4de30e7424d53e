"""Airflow's metadata database between two versions, there and back: runs go on, and nothing lands or is told twice.

Which earlier version it is, see ``tests.support.earlier``: its Airflow and its jobs are installed from its wheel. The
others are those of this tree. The jobs' tasks run in the job's process. The agent is that of this tree.
"""

from __future__ import annotations

import base64
import random
import secrets
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.end_to_end.deployment import SmallDeployment
from tests.end_to_end.rows import consumed, landed
from tests.end_to_end.test_airflow import BACKFILL, answer, waiting
from tests.end_to_end.test_whole_path import SMALL, plain
from tests.support.airflow import AirflowStack, import_early
from tests.support.earlier import BEFORE_1_0, Earlier, earlier
from tests.support.kafka import KafkaCluster
from tests.support.paths import ROOT, env_bin
from tests.support.pipeline import pipeline_env
from tests.support.s3 import S3Server
from tests.support.waiting import HUNG, wait_until
from tidemark.backfill.report import read_report
from tidemark.backfill.request import report_name
from tidemark.cli.read_models import stated_versions
from tidemark.formats.table.ledger import Ledger
from tidemark.installation import VERSION
from tidemark.table.delta_table import committed_ledger

pytestmark = pytest.mark.full

Version = Literal["old", "new"]
ORDER: tuple[Version, ...] = ("old", "new", "old")
"""There is no way back to 0.1.0: see docs/upgrading.md."""
BUSY = ["running", "queued", "scheduled", "restarting", "up_for_retry", "up_for_reschedule"]
"""The states of task instances for which an upgrade waits; deferred ones, and those that ask a person, stay."""


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Earlier:
    return earlier(tmp_path_factory.mktemp("earlier"), "spark", "airflow")


@dataclass
class Upgraded:
    """An Airflow of either version, on one metadata database."""

    home: Path
    small: SmallDeployment
    before: Earlier
    fernet: str = field(default_factory=lambda: base64.urlsafe_b64encode(secrets.token_bytes(32)).decode())

    @property
    def dags(self) -> list[str]:
        return [f"tidemark_ingest__test__{self.small.topics[0]}", "tidemark_live__test", BACKFILL]

    @contextmanager
    def running(self, version: Version) -> Iterator[AirflowStack]:
        """Airflow until the pause in which the other version is installed, as docs/upgrading.md has it."""
        new = version == "new"
        env = self.small.s3.env() | pipeline_env(
            self.small.topics_file, self.home / f"spark-{secrets.token_hex(4)}", scan_seconds=0.5
        )
        env["AIRFLOW__TIDEMARK__SPARK_SUBMIT"] = str(self._submit(version))
        env["AIRFLOW__CORE__FERNET_KEY"] = self.fernet
        env["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS"] = "admin:admin,oskar:op"
        [packages] = (self.before.folder / "airflow").glob("lib/python3.*/site-packages")
        with AirflowStack(
            self.home / "airflow",
            dags=ROOT / "dags" if new else packages / "tidemark" / "shipped" / "dags",
            plugins=ROOT / "plugins" if new else None,
            env=env,
            unpaused=self.dags,
            program=None if new else self.before.program("airflow", "airflow"),
        ) as airflow:
            yield airflow
            for dag in self.dags:
                airflow.client.pause(dag)
            wait_until(lambda: not self._busy(airflow), what="running jobs to end", interval=0.5)
            airflow.stop()

    def _busy(self, airflow: AirflowStack) -> int:
        found: int = airflow.client.get("/dags/~/dagRuns/~/taskInstances", state=BUSY, limit=1)["total_entries"]
        return found

    def _submit(self, version: Version) -> Path:
        """What stands in for spark-submit of ``version``."""
        tests = self.home / "path"
        if not tests.exists():
            tests.mkdir()
            (tests / "tests").symlink_to(ROOT / "tests")  # and nothing else of the checkout
        python = env_bin("spark", "python") if version == "new" else self.before.program("spark", "python")
        submit = self.home / f"spark-submit-{version}"
        submit.write_text(f'#!/bin/sh\ncd {tests} && exec {python} -m tests.spark.inline "$@"\n')
        submit.chmod(0o755)
        return submit

    def ledger(self, topic: str) -> Ledger:
        return committed_ledger(self.small.table(topic))

    def done(self, airflow: AirflowStack, topic: str, rows: int) -> bool:
        """Whether all rows have landed, the last commit is told, and no date is open but those of live landings."""
        ledger, table = self.ledger(topic), self.small.table(topic).topic
        if ledger.rows != rows or (not table.freshness and {date.state for date in ledger.dates.values()} != {"final"}):
            return False
        return any(name.removesuffix(".final") == table.table and n == ledger.n for name, _, n in events(airflow))

    def deferred(self, airflow: AirflowStack) -> dict[str, str]:
        """The runs that wait in a trigger, by DAG."""
        found = airflow.client.get("/dags/~/dagRuns/~/taskInstances", state="deferred", limit=100)["task_instances"]
        return {instance["dag_id"]: instance["dag_run_id"] for instance in found}


@pytest.fixture
def upgraded(tmp_path: Path, kafka: KafkaCluster, s3_server: S3Server, mark: str, before: Earlier) -> Upgraded:
    """Two topics, one of them with a ``freshness``."""
    topics = (f"plain-{mark}", f"live-{mark}")
    settings = {topics[1]: {"freshness": "60s"}}
    (home := tmp_path / "home").mkdir()
    import_early(home / "airflow")
    return Upgraded(home, SmallDeployment(tmp_path, kafka, s3_server, mark, topics, settings=settings), before)


def assets(airflow: AirflowStack, small: SmallDeployment) -> dict[str, tuple[int, str]]:
    """Airflow's number and the address of each asset of the topics, by name."""
    found = airflow.client.get("/assets", limit=1000)["assets"]
    tables = {small.table(topic).topic.table for topic in small.topics}
    return {
        asset["name"]: (asset["id"], asset["uri"]) for asset in found if asset["name"].removesuffix(".final") in tables
    }


def events(airflow: AirflowStack) -> Counter[tuple[Any, ...]]:
    """How often each change of a date was told."""
    found = airflow.client.get("/assets/events", limit=1000)["asset_events"]
    return Counter((event["name"], event["partition_key"], event["extra"]["ledger"]) for event in found)


@pytest.mark.timeout(2400)
def test_airflow_goes_on_with_the_database_of_another_version(upgraded: Upgraded, rng: random.Random) -> None:
    small = upgraded.small
    bootstrap, table = small.kafka.bootstrap, small.table(small.topics[0])
    for topic in small.topics:
        small.kafka.create_topic(topic, partitions=3, config=SMALL)
    deferred: dict[str, str] = {}
    known: dict[str, tuple[int, str]] = {}
    told: Counter[tuple[Any, ...]] = Counter()
    asked = ""
    with small.running_agent():
        for number, version in enumerate(ORDER[:2] if upgraded.before.origin == BEFORE_1_0 else ORDER, 1):
            for topic in small.topics:  # for runs that the version before has begun
                plain(bootstrap, topic, rng.choice(["zstd", "lz4"]), rng)
            with upgraded.running(version) as airflow:
                for topic in small.topics:
                    done = partial(upgraded.done, airflow, topic, number * 6_000)
                    wait_until(
                        done, what=f"all of {topic} to land", timeout=3 * HUNG, interval=0.5, check=airflow.revive
                    )
                assert airflow.client.import_errors() == {}
                for dag, run in deferred.items():
                    assert airflow.client.run(dag, run)["state"] == "success", f"{dag} had begun in another version"
                if asked:
                    answer(airflow, asked, "oskar", "Approve")
                    assert airflow.client.wait_for_run(BACKFILL, asked) == "success"
                    assert read_report(table, report_name(asked)).state == "landed"
                found = assets(airflow, small)
                assert len(found) == 4
                assert known in ({}, found), "the assets are others"
                known = found
                asked = airflow.client.trigger(BACKFILL, form(f"test/{small.topics[0]}"))
                wait_until(partial(waiting, airflow, asked), what="the approval to be asked for", interval=0.5)
                stated = {
                    each["version"] for each in stated_versions(small.deployment, "test") if each["part"] != "agent"
                }
                assert stated <= ({VERSION} if version == "new" else {upgraded.before.version, None})
                wait_until(lambda: len(upgraded.deferred(airflow)) == 2, what="both DAGs to wait for records")
                deferred = upgraded.deferred(airflow)
                told = events(airflow)
    for topic in small.topics:
        rows = landed(small.table(topic))
        assert len(rows) == len(set(rows)) == upgraded.ledger(topic).rows
        assert set(rows) == consumed(bootstrap, topic)
    lines = consumed_by(env_bin("dev", "tidemark"), small)
    assert len(lines) == upgraded.ledger(small.topics[0]).rows
    assert lines == consumed_by(upgraded.before.program("airflow", "tidemark"), small)
    assert {key: count for key, count in told.items() if count > 1} == {}, "a change was told twice"
    assert {name for name, _, _ in told} >= {small.table(topic).topic.table for topic in small.topics}
    assert [line for line in upgraded.before.opened() if "/tests/" not in line] == [], "the earlier version is whole"


def consumed_by(program: Path, small: SmallDeployment) -> list[str]:
    """What ``tidemark consume`` writes of a topic, a line per record."""
    asked: list[str | Path] = [program, "consume", small.topics[0], "--topics", small.topics_file]
    env = small.s3.env() | {"PATH": "/usr/bin:/bin", "HOME": str(Path.home())}
    done = subprocess.run(asked, env=env, capture_output=True, text=True, timeout=HUNG, check=True)
    return sorted(done.stdout.splitlines())


def form(topic: str) -> dict[str, Any]:
    """A backfill that asks for an approval."""
    dates = {"from_date": "2026-11-18", "to_date": "2026-11-20"}
    return {"topics": [topic], **dates, "dry_run": False, "reason": "INC-7", "approve_above_gib": 0}
