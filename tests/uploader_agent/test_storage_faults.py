"""A real agent beside a real broker, with a store behind a proxy that does everything to every kind of object."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.kafka import KafkaCluster
from tests.support.ports import free_port
from tests.support.proxy import FOR_WRITES, Fault, FaultProxy, Request
from tests.support.s3 import ADMIN, S3Server
from tests.support.waiting import HUNG, wait_until
from tests.uploader_agent.real import SMALL, Deployment, Load
from tidemark.errors import NotFound
from tidemark.formats.keys import SegmentName
from tidemark.store import StoreOptions, open_store

PARTITIONS = 3

PHASES: Mapping[str, Callable[[Request], bool]] = {
    ".log": lambda request: request.path.endswith(".log"),
    ".index": lambda request: request.path.endswith("index"),
    "manifest": lambda request: request.path.endswith(".manifest.json"),
    "offset.wm": lambda request: request.path.endswith("offset.wm"),
    "_topics": lambda request: "/_topics/" in request.path,
    "_watermarks": lambda request: "/_watermarks/" in request.path,
    "listing": lambda request: "list-type" in request.query,
}
ONCE = {"_topics", "listing"}
"""No other request follows one of these that came through: some faults happen to the first ones that are sent."""


class Plan:
    """Every fault in every phase, in an order by chance, ``rounds`` times; of one round, each phase has some."""

    def __init__(self, rng: random.Random, rounds: int) -> None:
        self._rng = rng
        self.left = {phase: self._faults(phase, rounds) for phase in PHASES}
        self.done: Counter[tuple[str, Fault]] = Counter()

    def __call__(self, request: Request) -> Fault | None:
        """The fault for a request; none for half of them, so that work goes on."""
        phase = next((name for name, holds in PHASES.items() if holds(request)), None)
        if phase is None or (phase not in ONCE and self._rng.random() < 0.5):
            return None
        writes = request.method == "PUT"
        fitting = [one for one in self.left[phase] if writes or one not in FOR_WRITES]
        if not fitting:
            return None
        self.left[phase].remove(fitting[0])
        self.done[phase, fitting[0]] += 1
        return fitting[0]

    @property
    def over(self) -> bool:
        """Whether all has happened that was planned."""
        return not any(self.left.values())

    def _faults(self, phase: str, rounds: int) -> list[Fault]:
        if phase in ONCE:
            return self._rng.sample(sorted(set(Fault) - FOR_WRITES - {Fault.DELAY}), 5)
        found = [*Fault] * rounds
        self._rng.shuffle(found)
        return found if phase == ".log" or rounds > 1 else found[:5]

    def __str__(self) -> str:
        kinds, phases = Counter[str](), Counter[str]()
        for (phase, fault), count in self.done.items():
            kinds[fault.value] += count
            phases[phase] += count
        return f"{sum(kinds.values())} faults: {dict(kinds)}; {dict(phases)}"


@contextmanager
def running(deployment: Deployment, env: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """The agent as a process; it must stop cleanly."""
    agent = deployment.start("run", env)
    try:
        yield agent
        assert agent.poll() is None, deployment.log.read_text()
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(HUNG) == 0, deployment.log.read_text()
    finally:
        if agent.poll() is None:
            agent.kill()
            agent.wait(10)


def is_done(deployment: Deployment) -> bool:
    """Whether offset.wm of every partition stands at the last rotated segment's end."""
    for partition in range(PARTITIONS):
        ends = [int(path.stem) for path in deployment.folder(partition).glob("*.log")]
        try:
            if deployment.watermark(partition)[1].next_offset != max(ends):
                return False
        except NotFound:
            return False
    return True


def check_acknowledged(deployment: Deployment, load: Load) -> int:
    """Every record below the watermark is one that was acknowledged, and stands in its segment; how many."""
    total = 0
    for partition, acknowledged in load.acknowledged.items():
        keys = deployment.keys(partition)
        for manifest in deployment.manifests(partition):
            body = deployment.store.get(keys.segment(SegmentName(manifest.base_offset), "log")).body
            at = 0
            for offset in range(manifest.base_offset, manifest.next_offset):
                at = body.index(acknowledged[offset], at)
                total += 1
    return total


def test_every_fault_in_every_phase(
    kafka: KafkaCluster,
    s3_server: S3Server,
    tmp_path: Path,
    rng: random.Random,
    full: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in s3_server.env().items():
        monkeypatch.setenv(name, value)
    topic = f"faults-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic, partitions=PARTITIONS, config=SMALL["4.3.1"])
    raw = open_store("s3://raw", StoreOptions(endpoint_url=s3_server.endpoint, path_style=True))
    plan, load = Plan(rng, rounds=20 if full else 1), Load(kafka, topic)
    with FaultProxy(s3_server.endpoint, rng, plan) as proxy:
        deployment = Deployment(
            tmp_path,
            kafka,
            raw,
            topic,
            topic,
            store={"endpoint_url": proxy.endpoint, "path_style": True, "deadline": "1s"},
            upload={"concurrency": 8},
            retry_initial="10ms",
            retry_cap="50ms",
            index_interval="100ms",
            index_idle_interval="200ms",
            scan_interval="2s",
            log={"format": "json"},
        )
        with running(deployment, s3_server.env()):
            limit = time.monotonic() + (1800 if full else 120)
            while not plan.over:
                load.send(45, PARTITIONS)
                seen = proxy.requests
                wait_until(lambda: proxy.requests > seen + 20, what="requests", interval=0.02)  # noqa: B023
                assert time.monotonic() < limit, (
                    f"not all happened: {plan} but {plan.left}\n{deployment.log.read_text()[-3000:]}"
                )
            proxy.rules = ()
            load.send(60, PARTITIONS)
            wait_until(lambda: is_done(deployment), what="the watermarks at the ends of the logs")
        sys.stdout.write(f"{plan}; of {proxy.requests} requests\n")
        assert set(proxy.counts()) == set(Fault)
    manifests = [deployment.check_exact(partition) for partition in range(PARTITIONS)]
    records = check_acknowledged(deployment, load)
    sys.stdout.write(f"{sum(map(len, manifests))} segments, {records} records of {PARTITIONS} partitions compared\n")
    log = deployment.log.read_text()
    wrong = ("leadership_lost", "log_truncated", "Traceback", "ContinuityError")
    assert [line for line in log.splitlines() if any(word in line for word in wrong)] == []
    assert log.count('"store_refuses"') == log.count('"store_accepts_again"') > 0


def metric(port: int, name: str) -> float | None:
    """A metric's value; None while the agent does not serve it."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as reply:
            lines = reply.read().decode().splitlines()
    except OSError:
        return None
    return next((float(line.split()[-1]) for line in lines if line.startswith(f"tidemark_agent_{name} ")), None)


@pytest.mark.essential
def test_wrong_credentials_and_a_missing_bucket_are_loud_and_recovered_from(
    kafka: KafkaCluster, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one process: first the secret is wrong, then there is no bucket, then all is well."""
    topic, bucket, port = f"refused-{uuid.uuid4().hex[:8]}", f"late-{uuid.uuid4().hex}", free_port()
    for name, value in s3_server.env().items():
        monkeypatch.setenv(name, value)
    kafka.create_topic(topic, partitions=PARTITIONS, config=SMALL["4.3.1"])
    load = Load(kafka, topic)
    load.send(200, PARTITIONS)
    options = {"endpoint_url": s3_server.endpoint, "path_style": True}
    raw = open_store(f"s3://{bucket}", StoreOptions.model_validate(options))
    deployment = Deployment(
        tmp_path,
        kafka,
        raw,
        "prefix",
        topic,
        store=options,
        http={"port": port},
        upload={"concurrency": 4},
        retry_initial="10ms",
        retry_cap="200ms",
        log={"format": "json"},
    )
    profile = tmp_path / "credentials"

    def credentials(secret: str) -> None:
        access_key = s3_server.credentials[ADMIN].access_key
        profile.write_text(f"[default]\naws_access_key_id = {access_key}\naws_secret_access_key = {secret}\n")

    def told(event: str, kind: str = "") -> int:
        return sum(event in line and kind in line for line in deployment.log.read_text().splitlines())

    credentials("wrong")
    env = {"AWS_SHARED_CREDENTIALS_FILE": str(profile), "AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}
    with running(deployment, env):
        wait_until(lambda: metric(port, "store_refused") == 1, what="the refusal in the metrics")
        wait_until(lambda: told("store_refuses", "AccessDenied") == 1, what="the refusal in the log")
        assert metric(port, "segments_total") in {None, 0.0}
        credentials(s3_server.credentials[ADMIN].secret_key)
        missing = 'failures_total{kind="BucketMissing"}'
        wait_until(lambda: bool(metric(port, missing)), what="the missing bucket in the metrics")
        assert metric(port, "store_refused") == 1
        s3_server.client().create_bucket(Bucket=bucket)
        wait_until(lambda: is_done(deployment), what="the watermarks at the ends of the logs")
        wait_until(lambda: metric(port, "store_refused") == 0, what="the refusal over")
        assert told("store_refuses") == 1, "once, though three partitions went on trying"
        assert told("store_accepts_again") == 1
    for partition in range(PARTITIONS):
        deployment.check_exact(partition)
    assert check_acknowledged(deployment, load) > 50
