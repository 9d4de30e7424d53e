"""One schedule, run: two brokers with disks, agents and the store, until everything is stored and told."""

from __future__ import annotations

import errno
import gc
import json
import random
import tempfile
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.support.tuned_agent import split, tuned
from tests.uploader_agent.simulation.actions import ClusterActions
from tests.uploader_agent.simulation.broker import BROKERS, US, Cluster, Partition, SavedPartition
from tests.uploader_agent.simulation.clock import Scheduler
from tests.uploader_agent.simulation.disk import LogDir
from tests.uploader_agent.simulation.failing_disk import ERRORS, FailingDisks
from tests.uploader_agent.simulation.faults import KINDS, Faults
from tests.uploader_agent.simulation.fetching import FETCH_KINDS, SpoolDir, fetch_settings, of_slot
from tests.uploader_agent.simulation.landing import Landings, VirtualRetry, one_thread
from tests.uploader_agent.simulation.oracle import CLUSTER, CONTROL, Oracle
from tests.uploader_agent.simulation.pack_retention import PackRetention
from tests.uploader_agent.simulation.process import AgentProcess, of_broker
from tests.uploader_agent.simulation.restore_oracle import RestoreOracle
from tests.uploader_agent.simulation.schedule import Action, Schedule, draw, pick
from tests.uploader_agent.simulation.store import DeletingStore, PackReader, SimulatedStore
from tests.uploader_agent.simulation.table_oracle import TableOracle
from tests.uploader_agent.simulation.threads import SimulatedRuntime
from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw import pack
from tidemark.formats.raw.cluster import FIRST_SLOT
from tidemark.store import clock
from tidemark.store.retrying import RepeatingStore
from uploader_agent.intake.replica import slot_of
from uploader_agent.packing import packer
from uploader_agent.partitions.jobs import QUESTION_BACKOFF
from uploader_agent.runtime import MACHINE
from uploader_agent.settings import AgentSettings

_REPLICA = 200.0
"""Seconds after which a slot follows its partitions again: it notices that a topic is gone after a minute."""

_LOOKED_AT = 120.0
"""Seconds after which an agent has looked at the entry of a deleted topic once more, however often it has in vain."""

_REQUESTS = 10.0
"""Seconds in which all requests that are needed are answered when nothing goes wrong any more."""

_ON_DISK: dict[str, Any] = {"broker": {"properties": "unused"}}


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
        self._scheduler = scheduler = Scheduler()
        kinds = KINDS | FETCH_KINDS if schedule.fetching else KINDS
        self._faults = faults = Faults(random.Random(f"faults {schedule.seed}"), scheduler, kinds)
        brokers = BROKERS if schedule.replicated else (US,)
        disks = {broker: LogDir(root / f"data-{broker}", scheduler, faults) for broker in brokers}
        for broker, disk in disks.items():
            (disk.path / "meta.properties").write_text(f"version=1\nnode.id={broker}\ncluster.id={CLUSTER}\n")
        self._cluster = cluster = Cluster(
            disks, scheduler, faults, compacted=schedule.compacted, transactional=schedule.transactional
        )
        cluster.keeps_last = (
            schedule.fetching is not None
        )  # followers do not learn how far compaction has emptied a log
        self._oracle = Oracle(cluster, scheduler, self._keep_events)
        self._store = SimulatedStore(scheduler, faults, self._oracle.written)
        self._oracle.packs, self._oracle.store = PackReader(self._store.objects), self._store
        limit = self._oracle.stored_until if schedule.careful else None
        self._actions = ClusterActions(cluster, scheduler, faults, limit, replicated=schedule.replicated)
        self._names = random.Random(f"packs {schedule.seed}")
        self._changed: dict[str, Any] = {}
        self._settings = self._read_settings("", _ON_DISK)
        self._tuning = tuned(split(schedule.settings)[1])
        if schedule.fetching:
            slots = range(schedule.fetching.slots)
            self._agents = {FIRST_SLOT + slot: self._of_slot(slot, f"slot-{slot}") for slot in slots}
        else:
            self._agents = {broker: self._of_broker(broker, disk) for broker, disk in disks.items()}
        self._twins: list[AgentProcess] = []
        """Second processes of slots."""
        self._oracle.agent_of = self._agent_of
        reading = RepeatingStore(self._store, VirtualRetry(scheduler))
        self._tables = TableOracle(cluster, self._oracle, self._store, fetching=schedule.fetching is not None)
        self._landings = Landings(reading, scheduler, faults, random.Random(f"landings {schedule.seed}"), self._tables)
        deleting = RepeatingStore(DeletingStore(self._store, self._oracle.deleted), VirtualRetry(scheduler))
        self._retention = PackRetention(deleting, scheduler, random.Random(f"retention {schedule.seed}"), faults.tell)
        self._readers = SimulatedRuntime(scheduler, self._reader_died)
        self._delete_delay = max(disk.delete_delay for disk in disks.values())
        self._done: Counter[str] = Counter()
        self._told_at_lie: list[str] = []
        self._missing: list[str] = []
        self._hidden_before: set[tuple[int, TopicPartition]] = set()
        self._late = schedule.late
        self._ended = 0.0
        self._disks = disks
        self._failing = FailingDisks(random.Random(f"failing {schedule.seed}"), faults.tell)
        self._saved: dict[TopicPartition, SavedPartition] = {}
        self._restorations = RestoreOracle(cluster, self._store)

    def run(self) -> Result:
        """Run the schedule to its end."""
        schedule, scheduler = self._schedule, self._scheduler
        wrong: list[str] = []
        for topic, partitions in schedule.topics.items():
            self._cluster.create(topic, partitions, replicated=schedule.replicated)
        self._cluster.checkpoint()
        for action in schedule.actions:
            scheduler.call_at(action.moment, partial(self._act, action))
        scheduler.call_at(schedule.quiet, self._quieten)
        try:
            with (
                patch.object(clock, "utc_now", self._store.clock),
                patch.object(MACHINE, "host_now", self._store.clock),
                patch.object(pack, "pack_name", self._name),
                patch.object(packer, "MOST_UNSEALED_AGE", schedule.unsealed),
                one_thread(),
                self._failing.patched(),
                self._retention.patched(),
            ):
                for process in self._agents.values():
                    process.start()
                if not schedule.restored:
                    self._readers.thread("landings", self._landings.run).start()
                    self._readers.thread("retention of packs", self._retention.run).start()
                scheduler.run(float("inf"))
            wrong += self._missing or ([] if schedule.restored else self._oracle.differing(self._store))
        except Exception as error:  # noqa: BLE001 - whatever was found out is the schedule's result
            wrong.append(f"{type(error).__name__}: {error}")
        finally:
            self._ended = scheduler.now
            for process in self._agents.values():
                process.kill()
            self._readers.kill()
            scheduler.clear()
        oracle, told = self._oracle, self._told_at_lie or list(self._faults.told)
        sums = Counter(statements=oracle.statements, gap_offsets=oracle.gaps, heads=oracle.heads, ranges=oracle.ranges)
        sums += Counter({"landed batches": self._tables.batches}) + self._landings.counts + self._retention.counts
        return Result(schedule, oracle.lies, wrong, told, self._ended, self._faults.struck, self._done, sums)

    def _name(self) -> str:
        """A pack's name: random, and the same whenever the schedule runs."""
        return f"{self._names.getrandbits(128):032x}"

    @property
    def _promised(self) -> float:
        """Seconds after the last disturbance until all must be stored and told: what may have to pass, one by one."""
        settings, tuning = self._settings, self._tuning
        waits = [
            tuning.metadata_interval.total_seconds(),
            2 * tuning.scan_interval.total_seconds(),  # the first one looks at no head that was just put
            QUESTION_BACKOFF.longest,
            1.1 * settings.tail_after.total_seconds(),
            tuning.retry_cap.total_seconds(),
            tuning.index_interval.total_seconds() + tuning.index_idle_interval.total_seconds(),
        ]
        return sum(waits) + _REQUESTS + self._replica

    @property
    def _replica(self) -> float:
        return _REPLICA if self._schedule.fetching else 0.0

    @property
    def _tidied(self) -> float:
        """Seconds within which what is packed for too long is sealed, and what is sealed has left the head.

        A scan may have to find what is to be sealed, and heads are looked after as often as the agent scans.
        """
        scan = self._tuning.scan_interval.total_seconds()
        return _REQUESTS + 3 * scan + (self._schedule.unsealed.total_seconds() if self._seals else 0.0)

    @property
    def _seals(self) -> bool:
        """Whether all that is packed is to be sealed within the schedule."""
        return self._schedule.unsealed < timedelta(minutes=1)

    @property
    def _noticed(self) -> float:
        """Seconds after the last disturbance from which on the agent must know what it has not stored yet."""
        tuning = self._tuning
        waits = tuning.metadata_interval.total_seconds() + 2 * tuning.scan_interval.total_seconds()
        return waits + _REQUESTS + self._replica

    def _read_settings(self, name: str, own: dict[str, Any]) -> AgentSettings:
        fixed = {"raw": {"url": self._store.url}, "state_dir": str(self._root / f"state-{name}")}
        return AgentSettings.model_validate(fixed | own | split(self._schedule.settings)[0] | self._changed)

    def _of_broker(self, broker: int, disk: LogDir) -> AgentProcess:
        world = self._cluster, self._scheduler, self._faults
        settings = partial(self._read_settings, str(broker), _ON_DISK)
        surrounded = partial(of_broker, broker, disk, *world)
        around = self._store, self._scheduler, self._faults
        return AgentProcess(str(broker), disk, settings, self._tuning, surrounded, *around)

    def _of_slot(self, slot: int, name: str) -> AgentProcess:
        fetched, world = self._schedule.fetching, (self._store, self._cluster, self._scheduler, self._faults)
        assert fetched is not None
        spool = SpoolDir(self._root / f"spool-{name}", self._scheduler, self._faults)
        settings = partial(self._read_settings, name, fetch_settings(fetched, slot, spool.path))
        surrounded = partial(of_slot, fetched, settings, spool, *world)
        around = self._store, self._scheduler, self._faults
        return AgentProcess(name, spool, settings, self._tuning, surrounded, *around)

    def _agent_of(self, partition: Partition) -> int:
        fetched = self._schedule.fetching
        if fetched is None or partition.leader in self._agents:
            return partition.leader
        return FIRST_SLOT + slot_of(partition.kafka_id, partition.at.partition, fetched.slots)

    def _number(self, broker: int) -> int:
        """The agent that an action at ``broker`` is about."""
        numbers = [*self._agents]
        return numbers[(broker - 1) % len(numbers)]

    def _reader_died(self, name: str, error: BaseException) -> None:
        self._scheduler.fail(error)

    def _keep_events(self) -> None:
        self._told_at_lie = self._told_at_lie or list(self._faults.told)

    def _quieten(self) -> None:
        self._faults.over = True
        self._faults.tell("-- quiet")
        self._failing.heal_all()
        for twin in self._twins:
            twin.kill()
        for process in self._agents.values():
            process.start()
        for partition in self._cluster.partitions.values():
            self._cluster.settle(partition)
        if self._schedule.restored:
            self._scheduler.call_later(self._promised + self._tidied, self._judge_restored)
        else:
            self._watch()

    def _judge_restored(self) -> None:
        """Whatever the brokers have is stored, or told; and nothing else is told."""
        told = {at for process in self._agents.values() for at, _ in process.waits()[1]}
        certain = {
            partition.tp
            for process in self._agents.values()
            if process.components is not None
            for partition in process.components.leadership.parted()
        }
        self._missing = [*self._restorations.untold(told | certain), *self._restorations.false(certain)]
        self._done["told of another history"] += len(certain)
        late, self._late = self._late, None
        if late is None or self._missing:
            self._scheduler.stop()
            return
        records = 1 + int(late * 3)
        saved = self._cluster.back_up()
        self._append_to_all(records)
        self._scheduler.call_later(self._promised + self._tidied, lambda: self._restore_late(saved, records))

    def _restore_late(self, saved: dict[TopicPartition, SavedPartition], records: int) -> None:
        """Give the last ``records`` of each log other content while the agents are down, and nothing else that is new.

        Then the logs end where the former indexes say, under the same leaderships: only a comparison with the batch
        that an index states shows that they are others.
        """
        self._faults.tell("-> restore late")
        self._done["restored late"] += 1
        for process in self._agents.values():
            process.crash(1.0)
        self._cluster.restore(saved, BROKERS, disks=True, metadata=True)
        self._append_to_all(records)
        self._scheduler.call_later(self._promised + self._tidied, self._judge_restored)

    def _append_to_all(self, records: int) -> None:
        for partition in self._cluster.partitions.values():
            self._cluster.settle(partition)
            self._cluster.append(partition, partition.leader, [records])

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
            self._missing += [f"{at}: is not stored, and /waiting does not say so" for _, at in sorted(hidden & before)]
            self._scheduler.stop()

    def _damage_late(self, which: float) -> None:
        """Damage the head while nothing is new, so that nothing else makes the agent look at it."""
        self._faults.tell("-> spoil late")
        self._faults.felt(0.0)
        self._hidden_before = set()
        if self._schedule.meanwhile != "runs":
            self._crash(1 + self._delete_delay / 5, 0.0, US)
        if self._schedule.meanwhile == "is down, and retention empties the disk":
            for partition in self._cluster.partitions.values():
                replica = partition.replicas[US]
                replica.roll()
                self._cluster.retire(partition, replica, len(replica.disk.bases))
        self._spoil(which, 0.0, US)

    def _hidden(self) -> set[tuple[int, TopicPartition]]:
        """Partitions of which something is not stored, and the leader's agent does not say that it waits for it."""
        hidden: set[tuple[int, TopicPartition]] = set()
        for number, process in self._agents.items():
            whole, waits = process.waits()
            if whole is None:
                unstored = self._oracle.unstored(self._store, number)
                hidden |= {(number, at) for at in unstored - {at for at, _ in waits}}
        return hidden

    def _part(self) -> None:
        """All is stored and told still, and the agents say so themselves."""
        if any(process.components is None for process in self._agents.values()):
            self._watch()  # one was asked to end before all was quiet, and another one starts
            return
        calm = self._scheduler.now - max(self._schedule.quiet, self._faults.disturbed_until)
        waiting = any(kind != "gap" for process in self._agents.values() for _, kind in process.waits()[1])
        if self._schedule.fetching and waiting and calm < self._promised + self._tidied:
            self._scheduler.call_later(
                5.0, self._part
            )  # the spool of a deleted topic waits for a minute, and is sealed
            return
        kept = [*self._oracle.kept(sealed=self._seals)]
        deleted = any(life.gone for life in self._cluster.lives)  # an index tells how far it is stored
        if (kept and calm < self._promised + self._tidied + _LOOKED_AT) or (deleted and calm < self._promised):
            self._scheduler.call_later(5.0, self._part)
            return
        self._missing = [*self._oracle.missing(self._store, self._schedule.quiet), *kept]
        if self._seals:
            self._missing += self._oracle.unsealed(self._store)
        for process in self._agents.values():
            whole, waits = process.waits()
            if whole is not None or any(kind != "gap" for _, kind in waits):
                self._missing.append(f"all is stored and told, and /waiting of {process.name} says: {whole or waits}")
            trouble = process.components.health.trouble() if process.components else None
            if trouble is not None:
                self._missing.append(f"all is stored and told, and /-/healthy of {process.name} says: {trouble}")
        self._readers.kill()
        self._readers = SimulatedRuntime(self._scheduler, self._reader_died)
        self._readers.thread("last landings", self._land_all).start()

    def _land_all(self) -> None:
        """Land what is left, and compare."""
        while self._landings.land():
            pass
        self._missing += self._tables.end(self._landings.tables)
        self._retention.visit_old()
        if not self._schedule.compacted:
            self._missing += self._oracle.packs_left()
        self._scheduler.stop()

    def _act(self, action: Action) -> None:
        self._faults.tell(f"-> {action}")
        self._done[action.kind] += 1
        happen = getattr(self._actions, action.kind, None) or getattr(self, f"_{action.kind}")
        happen(*action.numbers, action.broker)

    def _crash(self, down: float, _number: float, broker: int) -> None:
        """Kill an agent; another one starts later."""
        self._agents[self._number(broker)].crash(down)

    def _restart(self, down: float, number: float, broker: int) -> None:
        """Ask an agent to end; another one starts later, when it must be gone."""
        self._agents[self._number(broker)].restart(down, 2 * self._settings.drain.total_seconds() * number)

    def _back_up(self, _which: float, _number: float, _broker: int) -> None:
        self._saved = self._cluster.back_up()

    def _restore(self, which: float, number: float, broker: int) -> None:
        """Restore one broker or all, their disks, the metadata or both, with the agents up or down."""
        if not self._saved:
            return
        if number < 0.5:
            for process in self._agents.values():
                process.crash(number)
        brokers = [broker] if number * 10 % 1 < 0.3 else [*BROKERS]
        what = pick(which, ["disks", "metadata", "both", "both", "both"])
        self._done[f"restored {what} of {len(brokers)}"] += 1
        self._oracle.silent = True
        self._cluster.restore(self._saved, brokers, disks=what != "metadata", metadata=what != "disks")

    def _lose_power(self, down: float, number: float, broker: int) -> None:
        """A broker's machine goes down, with the ends of its logs and its agent."""
        if broker in self._agents:
            self._agents[broker].crash(down)
        self._cluster.lose_power(broker, number)

    def _spoil(self, which: float, number: float, broker: int) -> None:
        """Damage the head of a broker, or remove it; maybe while the agent is down."""
        agent = self._number(broker)
        if number > 0.5:
            self._agents[agent].crash(number)
        key = CONTROL.head(agent)
        before = self._store.objects.get(key)
        head = json.loads(before.body) if before is not None and before.body.startswith(b"{") else {}
        damages = [
            b"",
            b"\xff\x00 no JSON",
            b'{"format": 1}',
            json.dumps(head | {"broker": agent + 5, "entries": []}).encode(),
            json.dumps(head | {"cluster": "elsewhere"}).encode(),
            json.dumps(head | {"format": 0}).encode(),
            None,
        ]
        if self._schedule.compacted:
            damages.remove(None)  # packs of compacted topics are named again only where there was a head
        self._store.spoil(key, pick(which, damages))
        self._oracle.spoiled(agent)

    def _fail_disk(self, which: float, number: float, broker: int) -> None:
        """A broker's disk, or one folder of it, cannot be read for a while, all of it or now and then."""
        disk = self._disks[broker]
        folders = sorted(path for path in disk.directories if path != disk.path)
        place = pick(which * 2 % 1, folders) if which < 0.5 and folders else disk.path
        code, share = pick(number, [*ERRORS]), pick(number * 7 % 1, [1.0, 1.0, 0.3])
        if code == errno.ENOENT and place != disk.path:
            code = errno.EIO  # of a folder it says that the topic is gone
        self._failing.fail(place, code, share)
        lasts = self._faults.felt(pick(number * 13 % 1, [1.0, 10.0, 40.0]))
        self._scheduler.call_later(lasts, partial(self._failing.heal, place))

    def _double(self, stays: float, _number: float, broker: int) -> None:
        """A second process of a slot runs for a while, with a spool and a state of its own."""
        slot = self._number(broker) - FIRST_SLOT
        if slot < 0:
            return
        twin = self._of_slot(slot, f"slot-{slot}-twin-{len(self._twins)}")
        self._twins.append(twin)
        twin.start()
        self._scheduler.call_later(self._faults.felt(1 + 30 * stays), twin.kill)

    def _lose_spool(self, down: float, _number: float, broker: int) -> None:
        """The disk of a slot is lost, and another one put in."""
        process = self._agents[self._number(broker)]
        if isinstance(process.disk, SpoolDir):
            process.crash(down)
            process.disk.lose()

    def _shorten(self, which: float, _number: float, _broker: int) -> None:
        """Read a file again that has a shorter ``tail_after``."""
        shorter = min(pick(which, [0.5, 1.0, 5.0]), self._settings.tail_after.total_seconds())
        self._changed = {"tail_after": f"{shorter}s"}
        self._settings = self._read_settings("", _ON_DISK)
        for process in self._agents.values():
            process.reload()


def run(
    seed: int,
    *,
    replicated: bool | None = None,
    compacted: bool = False,
    fetching: bool = False,
    unclean: bool = False,
    careless: bool = False,
    restored: bool = False,
) -> Result:
    """Run the schedule of ``seed``, in a directory in memory where there is one; options are those of ``draw``."""
    memory = Path("/dev/shm")  # noqa: S108 - a directory of our own is made in it
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None, prefix="tidemark-simulation-") as folder:
        schedule = draw(
            seed,
            replicated=replicated,
            compacted=compacted,
            fetching=fetching,
            unclean=unclean,
            careless=careless,
            restored=restored,
        )
        result = World(schedule, Path(folder)).run()
    gc.unfreeze()  # the agent freezes what it has at its start, which would keep every schedule's for good
    return result
