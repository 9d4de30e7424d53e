"""An agent beside each broker of a cluster, and the comparison of what they made with what producers know."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from tests.support.kafka import KafkaCluster
from tests.support.kafka_broker import Broker
from tests.support.paths import ROOT
from tests.support.process import ManagedProcess, stop_all
from tests.support.s3 import S3Server
from tests.support.tuned_agent import argument, split
from tests.support.waiting import HUNG, wait_until
from tests.uploader_agent.faults.agent import Plan
from tests.uploader_agent.faults.cluster import bases, folder, high_watermark, leader_of, topic_id
from tests.uploader_agent.faults.load import Book
from tests.uploader_agent.faults.oracle import Expected, Reader, Verdict, log_on_disk, total
from tests.uploader_agent.in_process import run_here
from tests.uploader_agent.packs import reader
from tidemark.errors import NotFound
from tidemark.formats.keys import ControlKeys, PartitionKeys
from tidemark.formats.raw.watermark import Watermark
from tidemark.storage import ClusterStore
from tidemark.store import Store


def as_user(user: int) -> list[str]:
    """What runs a command as ``user``, with that number's group alone."""
    return ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]


class FleetAgent:
    """The agent of one broker, or of a slot that fetches: its configuration, its process, its log."""

    def __init__(self, root: Path, broker: Broker, settings: Mapping[str, Any], env: Mapping[str, str]) -> None:
        self.broker = broker
        self._root = root
        self._env = {**os.environ, **env}
        self.config = root / "agent.yaml"
        self.log = root / "agent.log"
        self.notes = root / "puts"
        self.clock = root / "clock"
        fetch = settings.get("fetch")
        source = {"fetch": {**fetch, "spool": str(root / "spool")}} if fetch else {}
        own = {"state_dir": str(root / "state"), "broker": {"properties": str(broker.properties_path)}}
        self.settings, self.tuning = split({**own, **settings, **source})
        if fetch:
            del self.settings["broker"]
        root.mkdir(parents=True)
        self.program: Path | None = None
        """``tidemark-agent`` of another installation, without faults and tuning; None for this tree's."""
        self.process = self._process("run", self.plan(), None, {})
        self._from = 0

    def plan(self, **fault: Any) -> Plan:
        """A plan with the agent's own files."""
        return Plan(str(self.notes), **fault)

    def start(
        self, *, plan: Plan | None = None, command: str = "run", user: int | None = None, **settings: Any
    ) -> None:
        """Start it; ``plan`` is the fault that it meets, ``settings`` are for this time only."""
        assert not self.process.running, "it runs"
        self._from = len(self.text())
        given, tuning = split(settings)
        content = self.settings | given
        if self.program is not None:  # which may refuse a deadline that is so short
            content["store"] = {name: value for name, value in content["store"].items() if name != "deadline"}
        self.config.write_text(json.dumps(content))
        self.process = self._process(command, plan or self.plan(), user, tuning).start()

    def await_started(self) -> None:
        """Wait until it has signal handlers, and works."""
        self.process.wait_until(lambda: "agent_started" in self.text()[self._from :])

    def stop(self) -> None:
        """SIGTERM; it must end by itself, and well."""
        if self.process.running:
            self.await_started()
            self.process.send(signal.SIGTERM)
            code = self.process.wait(HUNG)
            assert code == 0, f"the agent of broker {self.broker.node_id} ended with {code}\n{self.tail()}"

    def upload_all(self) -> int:
        """``upload-once``, quiet tails too, in this process, while the agent does not run; the exit code."""
        assert not self.process.running, "it runs"
        self.config.write_text(json.dumps(self.settings | {"tail_after": "0s"}))
        return run_here(["upload-once", "-c", self.config], self.log, self._env, tuning=self.tuning)

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()

    def lose_spool(self) -> None:
        """Remove what was fetched, while the agent does not run."""
        assert not self.process.running, "it runs"
        shutil.rmtree(self._root / "spool", ignore_errors=True)

    def double(self) -> FleetAgent:
        """Another agent of the same slot, on another host."""
        root = self._root.with_name(f"{self._root.name}-double-{next(_doubles)}")
        shared = {name: value for name, value in self.settings.items() if name != "state_dir"} | self.tuning
        return FleetAgent(root, self.broker, shared, self._env)

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send(number)

    @property
    def frozen(self) -> bool:
        """Whether it has been stopped by SIGSTOP."""
        return psutil.Process(self.process.pid).status() == psutil.STATUS_STOPPED

    def await_end(self, timeout: float) -> int | None:
        """Its exit code, negative for a signal; None if it still runs after ``timeout`` seconds."""
        try:
            wait_until(lambda: not self.process.running, timeout=timeout, what="the agent to end")
        except TimeoutError:
            return None
        return self.process.wait(1)

    def tail(self, lines: int = 15) -> str:
        """The end of its log."""
        return self.process.log_tail(lines)

    def text(self) -> str:
        """Its log."""
        return self.log.read_text() if self.log.exists() else ""

    def _process(self, command: str, plan: Plan, user: int | None, tuning: Mapping[str, Any]) -> ManagedProcess:
        module = [sys.executable, "-m", "tests.uploader_agent.faults.agent"]
        faulty = [*module, plan.argument(), argument({**self.tuning, **tuning}), "--"]
        program = faulty if self.program is None else [str(self.program)]
        if user is not None:
            program = [*as_user(user), *program]
        argv = [*program, command, "-c", str(self.config)]
        return ManagedProcess(f"agent-{self.broker.node_id}", argv, log=self.log, env=self._env, cwd=ROOT)


_doubles = itertools.count(1)


class Fleet:
    """The agents of all brokers, with one prefix in one store; ``agents`` is by node id.

    With ``slots`` nobody is at a broker's disk: as many agents fetch, and ``agents`` is by slot. Each has a broker for
    what happens to both.
    """

    def __init__(
        self,
        root: Path,
        cluster: KafkaCluster,
        s3: S3Server,
        raw: Store,
        prefix: str,
        include: Sequence[str],
        *,
        nodes: Sequence[int] = (1, 2, 3),
        slots: int = 0,
        **more: Any,
    ) -> None:
        """``nodes`` are the brokers that have an agent, ``more`` are settings."""
        self.cluster = cluster
        self.store = raw
        self._s3 = s3
        self.slots = slots
        self.reader = Reader(raw, prefix, cluster.cluster_id)
        self.control = ControlKeys(prefix, cluster.cluster_id)
        fetch = {"bootstrap": cluster.bootstrap, "slots": slots}
        settings: dict[str, Any] = {
            "raw": {"url": f"{raw.url}/{prefix}"},
            "store": {"endpoint_url": more.pop("endpoint", s3.endpoint), "path_style": True, "deadline": "4s"},
            "include": list(include),
            "tail_after": "1h",
            "scan_interval": "1s",
            "metadata_interval": "500ms",
            "fetch_segment": "1MiB",
            "upload": {"concurrency": 4},
            "retry_initial": "20ms",
            "retry_cap": "500ms",
            "index_interval": "500ms",
            "index_idle_interval": "10s",
            **more,
        }
        env = s3.env()
        self.agents = {
            slot: FleetAgent(root / f"slot-{slot}", broker, settings | {"fetch": fetch | {"slot": slot}}, env)
            for slot, broker in zip(range(slots), cluster.brokers, strict=False)
        } or {
            broker.node_id: FleetAgent(root / f"agent-{broker.node_id}", broker, settings, env)
            for broker in cluster.brokers
            if broker.node_id in nodes
        }

    def start(self, **settings: Any) -> None:
        """Start those that do not run."""
        for agent in self.agents.values():
            if not agent.process.running:
                agent.start(**settings)

    def stop(self) -> None:
        """SIGTERM to all, side by side."""
        with ThreadPoolExecutor(len(self.agents)) as pool:
            list(pool.map(lambda agent: agent.stop(), self.agents.values()))

    @contextmanager
    def running(self, *, start: bool = True) -> Iterator[None]:
        """All agents run, or will if not ``start``; those that are left are ended afterwards.

        Their logs are shown if something failed.
        """
        if start:
            self.start()
        try:
            yield
        except BaseException:
            for agent in self.agents.values():
                state = "runs" if agent.process.running else "does not run"
                print(f"agent {agent.broker.node_id} {state}\n{agent.tail(40)}")  # noqa: T201 - for whoever looks into it
            raise
        finally:
            for agent in self.agents.values():
                if agent.process.running and agent.frozen:
                    agent.send(signal.SIGCONT)
            stop_all([agent.process for agent in self.agents.values()])

    def leader(self, topic: str, partition: int = 0) -> FleetAgent:
        """The agent beside the leader."""
        return self.agents[leader_of(self.cluster, topic, partition)]

    def log(self, topic: str, partition: int = 0) -> Path:
        """The directory of the leader's log."""
        return folder(self.cluster.brokers[leader_of(self.cluster, topic, partition) - 1], topic, partition)

    def next_offset(self, topic: str, partition: int = 0, *, replica: int | None = None) -> int:
        """How far the store is; 0 before anything is there.

        ``replica`` is a broker that has the partition, where the cluster cannot be asked who leads it.
        """
        agent = self.leader(topic, partition) if replica is None else self.agents[replica]
        found = self._watermark(topic, partition, topic_id(folder(agent.broker, topic, partition)))
        return found.next_offset if found else 0

    def stored_end(self, topic: str) -> int:
        """How far seals and packs of a topic's first partition are, by ``offset.wm`` and the heads that it lists."""
        found = self._watermark(topic, 0, topic_id(folder(self.leader(topic).broker, topic, 0)))
        if found is None:
            return 0
        heads = reader.heads(ClusterStore(self.store, self.control))
        entries = [(entry, head.broker) for head in heads for entry in head.entries if entry.topic == topic]
        ends = [one.tail_end for one, broker in entries if (one.epoch, broker) in found.tails]
        return max([found.next_offset, *ends])

    def _watermark(self, topic: str, partition: int, identity: str | None) -> Watermark | None:
        try:
            found = self.reader.watermark(self.reader.keys(topic, identity, partition))
        except (AssertionError, NotFound):
            return None  # the incarnation has not been written down yet
        return found[1] if found else None

    def await_rotated(self, topic: str, partitions: int = 1, *, by_leader: bool = False) -> None:
        """Wait until the running agents have brought over all that the leaders have rotated.

        ``by_leader`` for logs that leave a branch: of that, ``offset.wm`` may be as far already, by its former leader.
        Where a log has but its first segment, nothing is rotated and there need not be a watermark.
        """
        last = ""

        def arrived(partition: int) -> bool:
            nonlocal last
            agent = self.leader(topic, partition)
            place = folder(agent.broker, topic, partition)
            rotated = bases(place)[-1]
            found = self._watermark(topic, partition, topic_id(place))
            last = f"broker {agent.broker.node_id} leads and has rotated up to {rotated}, the store has {found}"
            if found is None or (by_leader and found.broker != agent.broker.node_id):
                return found is None and not by_leader and rotated == 0
            return found.next_offset >= rotated

        for partition in range(partitions):
            try:
                wait_until(
                    lambda number=partition: arrived(number),  # type: ignore[misc]
                    what=f"what is rotated of {topic}-{partition} to be in the store",
                )
            except TimeoutError as error:
                raise TimeoutError(f"{error}; {last}") from error

    def await_writer(self, topic: str, node: int, partition: int = 0) -> None:
        """Wait until the agent of broker ``node`` has brought a rotated segment over and written ``offset.wm``."""
        place = folder(self.agents[node].broker, topic, partition)

        known = self._watermark(topic, partition, topic_id(place))
        before = known.next_offset if known else 0

        def wrote() -> bool:
            found = self._watermark(topic, partition, topic_id(place))
            return found is not None and found.broker == node and found.next_offset > before

        wait_until(wrote, what=f"broker {node} to bring over a segment of {topic}-{partition}")

    def settle(self) -> None:
        """Stop the agents that run, and let each once upload everything, quiet tails too."""
        self.stop()
        for agent in self.agents.values():
            self._upload_all(agent)

    def _upload_all(self, agent: FleetAgent) -> None:
        if agent.broker.running or self.slots:
            code = agent.upload_all()
            assert code == 0, f"upload-once of broker {agent.broker.node_id} ended with {code}\n{agent.tail(40)}"

    def judge(
        self,
        topic: str,
        book: Book,
        partitions: int = 1,
        expected: Expected | None = None,
        identity: str | None = None,
        *,
        disk: bool = True,
    ) -> list[Verdict]:
        """The oracle's verdicts on a topic; without ``expected`` everything up to the high watermark is due.

        ``identity`` is the topic id of a former incarnation, of which only what is there is judged; without ``disk``
        the leader's own log is not to be trusted either.
        """
        verdicts = []
        for partition in range(partitions):
            place = self.log(topic, partition)
            due = expected
            if identity is None:
                high = high_watermark(self.cluster, topic, partition)
                due = replace(due or Expected(end=high or 0), high=high)
                if disk and not due.compacted:
                    due = replace(due, log=log_on_disk(place))
            number = identity or topic_id(place)
            keys = self.reader.keys(topic, number, partition)
            verdict = self.reader.judge(keys, number, book.truth(partition), due or Expected())
            for key in self.written_twice(keys):
                verdict.wrong(f"{key} was written twice")
            verdicts.append(verdict)
        return verdicts

    def written_twice(self, keys: PartitionKeys) -> Iterator[str]:
        """The segments' objects of which the store has several versions."""
        found = self._versions(keys.folder)
        yield from (key for key, count in found.items() if count > 1 and keys.segment_of(key) is not None)

    def packs(self) -> Counter[str]:
        """The packs, each with the number of its versions in the store."""
        return self._versions(self.control.tails)

    def _versions(self, prefix: str) -> Counter[str]:
        pages = self._s3.client().get_paginator("list_object_versions").paginate(Bucket="raw", Prefix=prefix)
        return Counter(version["Key"] for page in pages for version in page.get("Versions", []))


def assert_exact(verdicts: Sequence[Verdict], tried: str) -> None:
    """Print what was tried and looked at, and fail with everything that is wrong."""
    print(f"tried: {tried}\njudged: {total(verdicts)}")  # noqa: T201 - what a test tried is part of its result
    problems = [problem for verdict in verdicts for problem in verdict.problems]
    assert not problems, f"{len(problems)} problems\n" + "\n".join(problems[:30])
    assert sum(verdict.counts["compared"] for verdict in verdicts), "nothing was compared: the test shows nothing"
