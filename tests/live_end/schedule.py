"""One schedule: a seed decides the configuration, who moves next, and what goes wrong."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.live_end.broker import Cluster, Topic
from tests.live_end.model import UNKNOWN, Call, Conflict, Entry, Rules, Steps, UnknownOutcome, live_until
from tests.live_end.oracle import Oracle
from tests.live_end.packing import Agent
from tests.live_end.reader import Reader
from tests.live_end.retention import Retention
from tests.live_end.store import Store, head_key, watermark_key

_STEPS = (120, 400)
_LATE = 0.3
"""The share of agents that list themselves as late as they may: those of topics without ``freshness``."""
_QUIET_ROUNDS = 400
_RETENTION = 3000
"""Calls of retention and of the reader after which each pack that may go is gone."""


class Actor:
    """A process: its generator, the call that it waits to make, and whether it is frozen."""

    def __init__(self, name: str, start: Callable[[], Steps[None]]) -> None:
        self.name = name
        self.frozen_until = 0
        self._start = start
        self.restart()

    def restart(self) -> None:
        """Kill it, and start it again."""
        self._steps = self._start()
        self.call: Call = next(self._steps)

    def deliver(self, reply: Any = None, error: Exception | None = None) -> None:
        """Give the reply to the call, and run to the next one."""
        self.call = self._steps.send(reply) if error is None else self._steps.throw(error)


@dataclass
class Result:
    """What a schedule did, and what was wrong."""

    seed: int
    wrong: list[str]
    actions: list[str] = field(default_factory=list)


class World:
    """The cluster, the store and the actors of one schedule."""

    def __init__(self, seed: int, rules: Rules, *, packs: bool | None = None, compacted: bool = False) -> None:
        rng = random.Random(seed)
        self.actions: list[str] = []
        self._rng = rng
        self._late: list[Call] = []
        self._contested = rng.random() < 0.4 and not compacted
        """Elections and frozen agents all the time, and seals of a few batches, which often have the same base."""
        self._brokers = rng.choice((2, 3) if self._contested else (1, 2, 2, 3))
        self._packs = rng.random() < (0.3 if self._contested else 0.7) if packs is None else packs
        self._compacted = compacted or (rng.random() < 0.15 and not self._contested)
        self._cluster = Cluster(
            rng,
            self._brokers,
            transactions=rng.random() < (0.8 if self._contested else 0.5),
            compacted=self._compacted,
            rises=rules("epoch rises"),
        )
        self.oracle = Oracle(self._cluster)
        self._store = Store(self.oracle.watch, etags_of_content=rng.random() < 0.5)
        self.oracle.store = self._store
        self._names = ["t0"]
        self._reader = Reader(self._store, rules, self._names, self.oracle, self._brokers)
        self._agents = [
            Agent(broker, self._cluster, self._store, rules, rng, packs=self._packs) for broker in range(self._brokers)
        ]
        for one in self._agents:
            one.most = rng.choice((1, 1, 2, 3, UNKNOWN)) if self._contested else UNKNOWN
            one.late = random.Random(f"late {seed} {one.broker}").random() < _LATE
        self._actors = [Actor(f"agent {one.broker}", one.run) for one in self._agents]
        self._actors.append(Actor("reader", self._reader.run))
        if self._packs:
            retention = Retention(self._store, rules, self._names, self._reader)
            self._actors.append(Actor("retention", retention.run))
        self._events = self._weights()
        self._faults = rng.choice((0.1, 0.2, 0.3) if self._contested else (0.0, 0.05, 0.2))
        self._moves = rng.choice((0.75, 0.85, 0.9) if self._contested else (0.6, 0.75, 0.85))
        self._note(f"{self._brokers} brokers, packs {self._packs}, compacted {self._compacted}, faults {self._faults}")

    def _weights(self) -> dict[str, float]:
        """How often each event comes, in this schedule: some not at all."""
        rng = self._rng
        weights = {"append": 8.0, "fetch": 10.0, "learn": 4.0, "index": 1.0}
        for name, weight in (
            ("hear", 1.0), ("shrink", 0.5), ("clean election", 1.0), ("unclean election", 1.0), ("power loss", 0.7),
            ("kill", 1.0), ("freeze", 2.0), ("late", 3.0), ("retention", 1.5), ("delete", 0.3),
        ):  # fmt: skip
            weights[name] = weight if rng.random() < 0.6 else 0.0
        if self._contested:
            weights |= {"unclean election": 3.0, "shrink": 4.0, "power loss": 1.0, "fetch": 4.0}
            weights |= {"freeze": 5.0, "hear": 5.0, "learn": 5.0, "late": 4.0}
        if self._compacted:  # a cleaned log does not tell where a dead branch was left: see the limits in the design
            weights |= {"compact": 3.0, "roll": 2.0, "unclean election": 0.0, "power loss": 0.0}
        return weights

    def run(self) -> list[str]:
        """Run the schedule to its end; what was wrong."""
        names, weights = list(self._events), list(self._events.values())
        for step in range(self._rng.randint(*_STEPS)):
            if self._rng.random() < self._moves:
                awake = [actor for actor in self._actors if actor.frozen_until <= step]
                if awake:
                    self._step(self._rng.choice(awake))
            else:
                self._event(self._rng.choices(names, weights)[0], step)
            if self.oracle.wrong:
                return self.oracle.wrong
        self._quiet()
        return self.oracle.wrong

    # -- actors --------------------------------------------------------------------------------------------------------

    def _step(self, actor: Actor) -> None:
        call = actor.call
        fault = self._rng.random() if call.write else 1.0
        if fault >= self._faults:
            self._answer(actor, call)
            return
        kind = self._rng.choice(("lost reply", "refused", "late", "repeated"))
        self._note(f"{actor.name}: {call.name}: {kind}")
        if kind in {"lost reply", "repeated"}:
            self._run_late(call)
        if kind in {"late", "repeated"}:
            self._late.append(call)
        actor.deliver(error=UnknownOutcome())

    def _answer(self, actor: Actor, call: Call) -> None:
        try:
            reply = call.run()
        except Conflict as error:
            self._note(f"{actor.name}: {call.name}: conflict")
            actor.deliver(error=error)
        else:
            shown = "" if call.write else f" -> {str(reply)[:160]}"
            self._note(f"{actor.name}: {call.name}{shown}")
            actor.deliver(reply)

    @staticmethod
    def _run_late(call: Call) -> None:
        try:
            call.run()
        except Conflict:
            return

    # -- events --------------------------------------------------------------------------------------------------------

    def _event(self, name: str, step: int) -> None:
        cluster, broker = self._cluster, self._rng.randrange(self._brokers)
        if cluster.topic.deleted:
            if self._rng.random() < 0.2:
                cluster.create_topic()
                self._names.append(cluster.topic.name)
                self._note("the topic is created again")
            return
        actions: dict[str, Callable[[], object]] = {
            "append": lambda: cluster.append(self._leader_or(broker)),
            "fetch": lambda: cluster.fetch(broker),
            "learn": lambda: cluster.learn(broker),
            "hear": lambda: cluster.hear(broker),
            "index": lambda: cluster.index_aborts(broker),
            "shrink": cluster.shrink,
            "clean election": lambda: cluster.elect(clean=True),
            "unclean election": lambda: cluster.elect(clean=False),
            "power loss": lambda: self._power_loss(broker),
            "kill": lambda: self._rng.choice(self._actors[: self._brokers]).restart(),
            "freeze": lambda: self._freeze(step),
            "late": self._take_effect,
            "retention": lambda: self._retain(broker),
            "delete": cluster.delete_topic,
            "roll": lambda: cluster.roll(broker),
            "compact": lambda: cluster.compact(broker),
        }
        actions[name]()
        self._note(f"{name} {self._state(cluster.topic)}")

    def _leader_or(self, broker: int) -> int:
        return self._cluster.topic.leader if self._rng.random() < 0.8 else broker

    def _power_loss(self, broker: int) -> None:
        self._cluster.power_loss(broker)
        self._actors[broker].restart()

    def _freeze(self, step: int) -> None:
        """Most often an agent that is about to change a segment or ``offset.wm``."""
        about = [one for one in self._actors if one.call.write and not one.call.name.startswith("create")]
        actor = self._rng.choice(about if about and self._rng.random() < 0.8 else self._actors)
        actor.frozen_until = step + self._rng.randint(10, 150)
        self._note(f"{actor.name} is frozen at {actor.call.name}")

    def _take_effect(self) -> None:
        if self._late:
            call = self._late.pop(self._rng.randrange(len(self._late)))
            self._note(f"late: {call.name}")
            self._run_late(call)

    def _retain(self, broker: int) -> None:
        """Retention on a broker takes what the store has on this broker's lineage, sealed or in a chain."""
        topic = self._cluster.topic
        replica = topic.replicas[broker]
        stored = self._store.objects.get(watermark_key(topic.name))
        heads = (self._store.objects.get(head_key(one)) for one in range(self._brokers))
        entries: list[Entry] = [one for head in heads if head for one in head.value if one.topic == topic.name]
        ends = [(entry.lineage, entry.tail_end) for entry in entries]
        if stored is not None:
            ends.append((stored.value.lineage, stored.value.next))
        kept = max((live_until(lineage, replica.lineage, 0, end) for lineage, end in ends), default=0)
        limit = min(kept, replica.hw)
        if replica.log and limit > replica.log_start:
            self._cluster.keep_from(broker, self._rng.randint(replica.log_start + 1, limit))

    def _state(self, topic: Topic) -> str:
        logs = "; ".join(
            f"{one.broker}{'*' if one.leads else ''} e{one.epoch} {one.log_start}-{one.end} hw {one.hw} "
            f"{one.lineage.entries}"
            for one in topic.replicas.values()
        )
        return f"[{topic.name} leader {topic.leader} epoch {topic.epoch} isr {sorted(topic.isr)}: {logs}]"

    # -- in the end ----------------------------------------------------------------------------------------------------

    def _quiet(self) -> None:
        """No more faults: late writes arrive, brokers agree, the agents and the reader come to rest."""
        self._note("quiet")
        self._rates, self._faults = self._faults or self._events["kill"], 0.0
        while self._late:
            self._take_effect()
        if not self._cluster.topic.deleted:
            self._cluster.settle()
        for agent in self._agents:
            agent.eager = True
        if not self._comes_to_rest():
            self.oracle.wrong.append("the actors do not come to rest")
            return
        if self._packs and not self._rates:
            for _ in range(_RETENTION):
                for actor in self._actors[self._brokers :]:
                    self._answer(actor, actor.call)
        self.oracle.end(self._reader.tables, compacted=self._compacted, faults=bool(self._rates))

    def _comes_to_rest(self) -> bool:
        """Let all actors go on until nothing is written or landed any more, or something is wrong."""
        rest = 0
        for _ in range(_QUIET_ROUNDS):
            before = self._written()
            for actor in self._actors:
                for _ in range(30):
                    self._answer(actor, actor.call)
            rest = rest + 1 if self._written() == before else 0
            if rest == 4 or self.oracle.wrong:
                return True
        return False

    def _written(self) -> tuple[int, tuple[int, ...]]:
        tables = tuple(table.next for table in self._reader.tables.values())
        return self._store.written, tables

    def _note(self, what: str) -> None:
        self.actions.append(what)


def run(seed: int, off: str | None = None, *, packs: bool | None = None, compacted: bool = False) -> Result:
    """Run the schedule of ``seed``, with one rule switched off if it is named; ``compacted`` makes it compact."""
    world = World(seed, Rules(frozenset({off} if off else ())), packs=packs, compacted=compacted)
    try:
        wrong = world.run()
    except AssertionError as error:
        wrong = [*world.oracle.wrong, f"{error}"]
    return Result(seed, wrong, world.actions)
