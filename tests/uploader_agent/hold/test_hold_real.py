"""A broker's retention against an outage of the store: each acknowledged record is in the store, or in an exact gap."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.record.memory_records import MemoryRecords

from tests.support.kafka import KafkaCluster
from tests.support.paths import ROOT
from tests.support.ports import free_port
from tests.support.s3 import S3Server
from tests.support.waiting import HUNG, wait_until
from tests.uploader_agent.real import SMALL, Deployment, Load
from tidemark.errors import NotFound
from tidemark.formats.keys import SegmentName
from tidemark.store import StoreOptions, open_store
from uploader_agent.disk.log_dirs import find_segments, list_segments

NOBODY, GROUP = 65534, 65533
"""A user, and a group that the broker's files belong to."""


@pytest.fixture(scope="module")
def s3(starts_s3: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3")) as server:
        yield server


class Outage:
    """One topic, an agent on it, and a store that goes down and comes back."""

    def __init__(self, place: Path, broker: KafkaCluster, s3: S3Server, name: str, **hold: Any) -> None:
        self.broker, self.s3 = broker, s3
        self.env: Mapping[str, str] = s3.env()
        self.port = free_port()
        root = place / name
        root.mkdir(mode=0o755)
        topic = f"held-{name}"
        raw = open_store("s3://raw", StoreOptions(endpoint_url=s3.endpoint, path_style=True))
        self.agent = Deployment(
            root,
            broker,
            raw,
            name,
            topic,
            store={"endpoint_url": s3.endpoint, "path_style": True},
            hold={"max": 1, **hold},
            hold_min_free=0.0,
            http={"port": self.port},
            scan_interval="200ms",
            metadata_interval="200ms",
        )
        broker.create_topic(topic, config={**SMALL["4.3.1"], "file.delete.delay.ms": "100"})
        self.load = Load(broker, topic)
        self.load.send(60)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = self.agent.start("run", self.env)

    def end(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(HUNG)

    def rotated(self) -> int:
        return sum(one.rotated for one in find_segments(self.agent.folder()))

    def begin(self) -> None:
        """Start the agent, and stop the store when it has all there is; then send more, and wait until that is held."""
        self.start()
        self.await_covered()
        before = self.rotated()
        self.s3.kill()
        self.load.send(120)
        lacking = self.rotated() - before
        assert lacking > 2
        wait_until(lambda: self.metric("held_segments") == lacking, what=f"{lacking} held segments")

    def await_retention(self) -> None:
        """Let retention take all that is rotated, and wait until it is unlinked."""
        change = {"retention.bytes": "1"}
        with self.broker.admin() as admin:
            admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, self.agent.topic, configs=change)])

        def taken() -> bool:
            found = list_segments(self.agent.folder())
            return len(found.segments) == 1 and not found.deleted

        wait_until(taken, what="retention")

    def await_covered(self) -> None:
        end = find_segments(self.agent.folder())[-1].base_offset
        wait_until(lambda: self._covered() == end, what=f"offset.wm at {end}")

    def _covered(self) -> int:
        try:
            return self.agent.watermark()[1].next_offset
        except NotFound:
            return 0

    def check_records(self) -> set[int]:
        """Every stored record is the one that was acknowledged; their offsets."""
        stored: dict[int, bytes] = {}
        for manifest in self.agent.manifests():
            assert manifest.state == "whole"
            body = self.agent.store.get(self.agent.keys().segment(SegmentName(manifest.base_offset), "log")).body
            for batch in MemoryRecords(body):
                stored |= {record.offset: record.value for record in batch}
        acknowledged = self.load.acknowledged[0]
        assert {offset: acknowledged[offset] for offset in stored} == stored
        return set(stored)

    def metric(self, name: str) -> float | None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as answer:
                lines = answer.read().decode().splitlines()
        except OSError:
            return None  # it is starting
        found = [line for line in lines if line.startswith(f"tidemark_agent_{name} ")]
        return float(found[0].split()[1]) if found else None


@pytest.fixture
def outage(kafka: KafkaCluster, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes an :class:`Outage` of ``kafka``, unless told of another broker; puts its agent and the store in order."""
    made: list[Outage] = []
    for name, value in s3.env().items():
        monkeypatch.setenv(name, value)

    def make(name: str, broker: KafkaCluster = kafka, place: Path = tmp_path, **hold: Any) -> Outage:
        made.append(Outage(place, broker, s3, name, **hold))
        return made[-1]

    yield make
    for one in made:
        if one.process is not None and one.process.poll() is None:
            one.end(signal.SIGKILL)
    if not s3.process.running:
        s3.start()


def python_for_all(env: Mapping[str, str]) -> str:
    """An interpreter that another user can run the agent with: this one may lie in somebody's home."""
    refusals: list[str] = []
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        command = [python, "-c", "import uploader_agent.cli, tests.uploader_agent.faulty_agent"]
        ids: dict[str, Any] = {"user": NOBODY, "group": GROUP, "extra_groups": []}
        try:
            subprocess.run(command, cwd=ROOT, env=env, capture_output=True, check=True, text=True, **ids)
        except OSError as error:
            refusals.append(str(error))
        except subprocess.CalledProcessError as error:
            refusals.append(f"{python}: {error.stderr[-500:]}")
        else:
            return python
    pytest.skip(f"another user can run no Python with the agent's packages here: {refusals}")


def as_nobody(outage: Outage) -> None:
    """Run the agent as a user that may read the broker's files by their group, and nothing more."""
    if os.geteuid() != 0:
        pytest.skip("only root can run the agent as another user")
    packages = {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path and not path.startswith(sys.base_prefix))
    }
    outage.agent.python = python_for_all(packages)
    outage.env = {**outage.env, **packages}
    [log_dir] = outage.broker.brokers[0].log_dirs
    for path in (log_dir, *log_dir.rglob("*")):
        os.chown(path, -1, GROUP)
        path.chmod(0o2750 if path.is_dir() else 0o640)
    os.chown(outage.agent.config.parent, NOBODY, GROUP)
    outage.agent.user = NOBODY, GROUP


@pytest.mark.parametrize("user", ["another", pytest.param("the broker's", marks=pytest.mark.full)])
def test_descriptors_save_all_within_one_run(
    outage: Any, kafka_disk: KafkaCluster, public_place: Path, user: str
) -> None:
    """As another user hard links are refused (``fs.protected_hardlinks``), and descriptors serve instead."""
    if user == "another":
        one = outage("another", kafka_disk, public_place, links=[str(public_place / "another" / "links")])
        as_nobody(one)
    else:
        one = outage("same", kafka_disk, public_place)
    one.begin()
    one.await_retention()
    one.s3.start()
    one.await_covered()
    one.end(signal.SIGTERM)
    _, watermark = one.agent.watermark()
    assert watermark.gaps == ()
    assert one.check_records() == set(range(watermark.next_offset))
    if user == "another":
        log = one.agent.log.read_text()
        assert log.count("links_impossible") == 1
        assert "Operation not permitted" in log


@pytest.mark.essential
def test_links_save_all_across_a_kill_of_the_agent(outage: Any, tmp_path: Path) -> None:
    links = tmp_path / "links"
    one = outage("linked", links=[str(links)])
    one.begin()
    one.end(signal.SIGKILL)
    one.await_retention()
    one.s3.start()
    one.start()
    one.await_covered()
    _, watermark = one.agent.watermark()
    assert watermark.gaps == ()
    assert one.check_records() == set(range(watermark.next_offset))
    wait_until(lambda: not list(links.iterdir()), what="links to be released")
    one.end(signal.SIGTERM)


def test_with_holding_off_the_gap_is_exact(outage: Any) -> None:
    one = outage("off", enabled=False)
    one.start()
    one.await_covered()
    covered = one.agent.watermark()[1].next_offset
    one.s3.kill()
    one.load.send(120)
    one.await_retention()
    lost_end = find_segments(one.agent.folder())[-1].base_offset
    one.s3.start()
    wait_until(lambda: bool(one.agent.watermark()[1].gaps), what="the gap")
    one.end(signal.SIGTERM)
    _, watermark = one.agent.watermark()
    assert [(gap.start, gap.end, gap.reason) for gap in watermark.gaps] == [
        (covered, lost_end, "deleted_before_upload")
    ]
    assert one.check_records() == set(range(covered))
