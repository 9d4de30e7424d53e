"""One schedule, run: a broker, its disk, its agent and the store, until everything is stored and told."""

from __future__ import annotations

import gc
import json
import random
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.uploader_agent.simulation.actions import ClusterActions
from tests.uploader_agent.simulation.broker import THEM, US, Cluster
from tests.uploader_agent.simulation.client import Client, Questions
from tests.uploader_agent.simulation.clock import Scheduler
from tests.uploader_agent.simulation.disk import LogDir, SimulatedWatcher
from tests.uploader_agent.simulation.faults import Faults
from tests.uploader_agent.simulation.oracle import CLUSTER, HEAD, Oracle
from tests.uploader_agent.simulation.schedule import Action, Schedule, draw, pick
from tests.uploader_agent.simulation.store import PackReader, SimulatedStore
from tests.uploader_agent.simulation.threads import SimulatedRuntime
from tidemark.formats.keys import TopicPartition
from tidemark.store import clock
from uploader_agent.agent import Agent
from uploader_agent.broker.properties import Broker
from uploader_agent.components import Components
from uploader_agent.packing import packer
from uploader_agent.packs import pack_writer
from uploader_agent.partitions.observation import LONGEST_PAUSE
from uploader_agent.settings import AgentSettings

_REQUESTS = 10.0
"""Seconds in which all requests that are needed are answered when nothing goes wrong any more."""

_GRACE = 3.0
"""Seconds by which a question may be late where threads are stalled."""

_MOST_PASSED = 3
"""Questions for offsets that may not all be put while the question who leads is due."""


@dataclass(frozen=True)
class Result:
    """How a schedule went.

    ``lies`` are statements of indexes that were not true when they were written, ``missing`` is what was not stored or
    told at the end; both are empty if all went well.
    """

    schedule: Schedule
    lies: list[str]
    missing: list[str]
    told: list[str]
    seconds: float
    """Virtual seconds until everything was stored and told."""
    faults: Counter[str]
    actions: Counter[str]
    seen: Counter[str]

    @property
    def failed(self) -> bool:
        """Whether anything was wrong."""
        return bool(self.lies or self.missing)


class World:
    """Everything that a schedule needs, below ``root``."""

    def __init__(self, schedule: Schedule, root: Path) -> None:
        random.seed(f"agent {schedule.seed}")  # the agent's own back-off draws from there
        self._schedule = schedule
        self._root = root
        self._scheduler = Scheduler()
        self._faults = Faults(random.Random(f"faults {schedule.seed}"), self._scheduler)
        self._disk = LogDir(root / "data", self._scheduler, self._faults)
        (self._disk.path / "meta.properties").write_text(f"version=1\nnode.id={US}\ncluster.id={CLUSTER}\n")
        self._cluster = Cluster(self._disk, self._scheduler, self._faults, compacted=schedule.compacted)
        self._actions = ClusterActions(self._cluster, self._scheduler, self._faults, replicated=schedule.replicated)
        self._oracle = Oracle(self._cluster, self._keep_events)
        self._store = SimulatedStore(self._scheduler, self._faults, self._oracle.written)
        self._oracle.packs, self._oracle.store = PackReader(self._store.objects), self._store
        self._names = random.Random(f"packs {schedule.seed}")
        self._settings = self._read_settings(schedule.settings)
        self._agent: Agent | None = None
        self._components: Components | None = None
        self._runtime: SimulatedRuntime | None = None
        self._watcher: SimulatedWatcher | None = None
        self._done: Counter[str] = Counter()
        self._asked_leaders = 0.0
        self._passed = 0  # questions for offsets that were put since who leads ought to have been asked
        self._told_at_lie: list[str] = []
        self._missing: list[str] = []
        self._hidden_before: set[TopicPartition] = set()
        self._late = schedule.late
        self._ended = 0.0

    def run(self) -> Result:
        """Run the schedule to its end."""
        schedule, scheduler = self._schedule, self._scheduler
        wrong: list[str] = []
        for topic, partitions in schedule.topics.items():
            self._cluster.create(topic, partitions, replicated=schedule.replicated)
        self._cluster.checkpoint()
        self._start()
        for action in schedule.actions:
            scheduler.call_at(action.moment, partial(self._act, action))
        scheduler.call_at(schedule.quiet, self._quieten)
        try:
            with (
                patch.object(clock, "utc_now", self._store.clock),
                patch.object(pack_writer, "pack_name", self._name),
                patch.object(packer, "MOST_UNSEALED_AGE", schedule.unsealed),
            ):
                scheduler.run(float("inf"))
            wrong += self._missing or self._oracle.differing(self._store)
        except Exception as error:  # noqa: BLE001 - whatever was found out is the schedule's result
            wrong.append(f"{type(error).__name__}: {error}")
        finally:
            self._ended = scheduler.now
            self._kill()
            scheduler.clear()
        oracle, told = self._oracle, self._told_at_lie or list(self._faults.told)
        sums = Counter(statements=oracle.statements, gap_offsets=oracle.gaps, heads=oracle.heads, ranges=oracle.ranges)
        return Result(schedule, oracle.lies, wrong, told, self._ended, self._faults.struck, self._done, sums)

    def _name(self) -> str:
        """A pack's name: random, and the same whenever the schedule runs."""
        return f"{self._names.getrandbits(128):032x}"

    @property
    def _promised(self) -> float:
        """Seconds after the last disturbance until all must be stored and told: what may have to pass, one by one."""
        settings = self._settings
        waits = [
            settings.metadata_interval.total_seconds(),
            2 * settings.scan_interval.total_seconds(),  # the first one looks at no head that was just put
            LONGEST_PAUSE,
            1.1 * settings.tail_after.total_seconds(),
            settings.upload.retry_cap.total_seconds(),
            settings.index.min_interval.total_seconds() + settings.index.idle_interval.total_seconds(),
        ]
        return sum(waits) + _REQUESTS

    @property
    def _tidied(self) -> float:
        """Seconds within which what is packed for too long is sealed, and what is sealed has left the head.

        A scan may have to find what is to be sealed, and heads are looked after as often as the agent scans.
        """
        scan = self._settings.scan_interval.total_seconds()
        return _REQUESTS + 3 * scan + (self._schedule.unsealed.total_seconds() if self._seals else 0.0)

    @property
    def _seals(self) -> bool:
        """Whether all that is packed is to be sealed within the schedule."""
        return self._schedule.unsealed < timedelta(minutes=1)

    @property
    def _noticed(self) -> float:
        """Seconds after the last disturbance from which on the agent must know what it has not stored yet."""
        settings = self._settings
        return settings.metadata_interval.total_seconds() + 2 * settings.scan_interval.total_seconds() + _REQUESTS

    def _read_settings(self, changed: dict[str, Any]) -> AgentSettings:
        fixed = {
            "broker": {"properties": "unused"},
            "raw": {"url": self._store.url},
            "state_dir": str(self._root / "state"),
        }
        return AgentSettings.model_validate(fixed | changed)

    def _start(self) -> None:
        """Start an agent, as a process that knows nothing."""
        (self._root / "state").mkdir(exist_ok=True)
        broker = Broker(US, CLUSTER, (self._disk.path,), "127.0.0.1:1", "PLAINTEXT", "kraft")
        client = Client(self._cluster, self._scheduler, self._faults)
        self._runtime = SimulatedRuntime(self._scheduler, self._died)
        self._watcher = SimulatedWatcher(self._disk, self._scheduler, self._faults)
        self._disk.watches = self._watcher.watches
        metadata = Questions(lambda: client, self._asked)
        self._components = Components(
            self._settings, broker, metadata, lambda _url: self._store, self._watcher, runtime=self._runtime
        )
        self._agent = Agent(self._components)
        self._asked_leaders, self._passed = self._scheduler.now, 0
        self._runtime.thread("loop", self._agent.run).start()

    def _kill(self) -> None:
        if self._components is None or self._runtime is None or self._watcher is None:
            return
        self._runtime.kill()
        self._components.hold.close()
        self._disk.watches = None
        self._watcher.close()
        self._agent = self._components = None

    def _died(self, name: str, error: BaseException) -> None:
        self._faults.tell(f"-- the thread {name!r} has ended: {type(error).__name__}: {error}")

    def _asked(self, what: str) -> None:
        """Who leads must be asked in time, however many other questions there are."""
        late = self._scheduler.now - self._asked_leaders - self._settings.metadata_interval.total_seconds()
        if what == "leaders":
            self._asked_leaders, self._passed = self._scheduler.now, 0
        elif late > _GRACE:
            self._passed += 1
            if self._passed == _MOST_PASSED:
                wrong = f"{_MOST_PASSED} questions for offsets were put before the one who leads, due {late:.3f} s ago"
                self._scheduler.fail(AssertionError(wrong))

    def _keep_events(self) -> None:
        self._told_at_lie = self._told_at_lie or list(self._faults.told)

    def _quieten(self) -> None:
        self._faults.over = True
        self._faults.tell("-- quiet")
        if self._agent is None:
            self._start()
        for partition in self._cluster.partitions.values():
            self._cluster.catch_up(partition)
        self._watch()

    def _watch(self) -> None:
        """End the run soon after everything is stored and told, or when it ought to be."""
        self._missing = self._oracle.missing(self._store, self._schedule.quiet)
        calm = self._scheduler.now - max(self._schedule.quiet, self._faults.disturbed_until)
        if not self._missing and calm > 0:
            late, self._late = self._late, None
            if late is None:
                self._scheduler.call_later(self._tidied, self._part)
            else:
                self._damage_late(late)
                self._scheduler.call_later(1.0, self._watch)
            return
        hidden, before = self._hidden(), self._hidden_before
        self._hidden_before = hidden
        told = calm < self._noticed or not hidden & before  # for a moment only offset.wm may be on its way
        if calm < self._promised and told:
            self._scheduler.call_later(1.0, self._watch)
        else:
            self._missing += [f"{at}: is not stored, and /waiting does not say so" for at in sorted(hidden & before)]
            self._scheduler.stop()

    def _damage_late(self, which: float) -> None:
        """Damage the head while nothing is new, so that nothing else makes the agent look at it."""
        self._faults.tell("-> spoil late")
        self._faults.felt(0.0)
        self._hidden_before = set()
        if self._schedule.meanwhile != "runs":
            self._crash(1 + self._disk.delete_delay / 5, 0.0)
        if self._schedule.meanwhile == "is down, and retention empties the disk":
            for partition in self._cluster.partitions.values():
                self._cluster.roll(partition)
                self._cluster.retire(partition, len(partition.disk.bases))
        self._spoil(which, 0.0)

    def _hidden(self) -> set[TopicPartition]:
        """Partitions of which something is not stored, and the agent does not say that it waits for it."""
        whole, waits = self._waits()
        return self._oracle.unstored(self._store) - {at for at, _ in waits} if whole is None else set()

    def _part(self) -> None:
        """All is stored and told still, and the agent says so itself."""
        if self._components is None:
            self._watch()  # it was asked to end before all was quiet, and another one starts
            return
        self._missing = [*self._oracle.missing(self._store, self._schedule.quiet), *self._oracle.kept()]
        if self._seals:
            self._missing += self._oracle.unsealed(self._store)
        whole, waits = self._waits()
        if whole is not None or any(kind != "gap" for _, kind in waits):
            self._missing.append(f"all is stored and told, and /waiting says: {whole or waits}")
        trouble = self._components.health.trouble()
        if trouble is not None:
            self._missing.append(f"all is stored and told, and /-/healthy says: {trouble}")
        self._scheduler.stop()

    def _waits(self) -> tuple[str | None, set[tuple[TopicPartition, str]]]:
        """What the agent says that it waits for: as a whole, and for each partition with the kind of it."""
        if self._agent is None:
            return "there is no agent", set()
        said: dict[str, Any] = self._agent.waiting()
        partitions = {(TopicPartition(one["topic"], one["partition"]), one["kind"]) for one in said["partitions"]}
        return said["agent"], partitions

    def _act(self, action: Action) -> None:
        self._faults.tell(f"-> {action.kind} {action.numbers[0]:.3f} {action.numbers[1]:.3f}")
        self._done[action.kind] += 1
        happen = getattr(self._actions, action.kind, None) or getattr(self, f"_{action.kind}")
        happen(*action.numbers)

    def _crash(self, down: float, _: float) -> None:
        """Kill the agent as ``SIGKILL`` does; another one starts later."""
        if self._agent is not None:
            self._kill()
            self._scheduler.call_later(self._faults.felt(5 * down), self._start_again)

    def _restart(self, down: float, number: float) -> None:
        """Ask the agent to end; another one starts later, when it must be gone."""
        if self._agent is not None:
            self._agent.stop()
            agent = self._agent
            limit = 2 * self._settings.drain.total_seconds() * number
            self._scheduler.call_later(limit, lambda: self._kill() if self._agent is agent else None)
            self._scheduler.call_later(self._faults.felt(limit + 5 * down), self._start_again)

    def _spoil(self, which: float, number: float) -> None:
        """Damage the head of our broker, or remove it; maybe while the agent is down."""
        if number > 0.5:
            self._crash(number, 0.0)
        before = self._store.objects.get(HEAD)
        head = json.loads(before.body) if before is not None and before.body.startswith(b"{") else {}
        damages = [
            b"",
            b"\xff\x00 no JSON",
            b'{"format": 1}',
            json.dumps(head | {"broker": THEM, "entries": []}).encode(),
            json.dumps(head | {"cluster": "elsewhere"}).encode(),
            json.dumps(head | {"format": 2}).encode(),
            None,
        ]
        if self._schedule.compacted:
            damages.remove(None)  # packs of compacted topics are named again only where there was a head
        self._store.spoil(HEAD, pick(which, damages))
        self._oracle.spoiled()

    def _start_again(self) -> None:
        if self._agent is None:
            self._start()

    def _shorten(self, which: float, _: float) -> None:
        """Read a file again that has a shorter ``tail_after``."""
        shorter = min(pick(which, [0.5, 1.0, 5.0]), self._settings.tail_after.total_seconds())
        self._settings = self._read_settings({**self._schedule.settings, "tail_after": f"{shorter}s"})
        agent, settings = self._agent, self._settings
        if agent is not None:
            agent.soon(lambda: self._reload(agent, settings))

    @staticmethod
    def _reload(agent: Agent, settings: AgentSettings) -> None:
        agent.reconfigure(settings, "agent.yaml")


def run(seed: int, *, replicated: bool | None = None, compacted: bool = False) -> Result:
    """Run the schedule of ``seed``, in a directory in memory where there is one.

    ``replicated`` overrides its own, and ``compacted`` has its topics compacted in any case.
    """
    memory = Path("/dev/shm")  # noqa: S108 - a directory of our own is made in it
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None, prefix="tidemark-simulation-") as folder:
        schedule = draw(seed, compacted=compacted)
        if replicated is not None:
            schedule = replace(schedule, replicated=replicated)
        result = World(schedule, Path(folder)).run()
    gc.unfreeze()  # the agent freezes what it has at its start, which would keep every schedule's for good
    return result
