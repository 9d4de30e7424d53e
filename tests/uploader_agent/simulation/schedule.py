"""A schedule: settings, topics and what happens to them when, all from one seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, NamedTuple

Kind = Literal[
    "append",
    "roll",
    "compact",
    "retire",
    "elect",
    "elect_unclean",
    "shrink",
    "diverge",
    "lose_power",
    "delete",
    "create",
    "crash",
    "restart",
    "shorten",
    "spoil",
    "delete_records",
    "double",
    "lose_spool",
    "fail_disk",
    "back_up",
    "restore",
]

_WEIGHTS: dict[Kind, int] = {
    "append": 60,
    "roll": 16,
    "retire": 4,
    "elect": 8,
    "shrink": 2,
    "delete": 1,
    "create": 2,
    "crash": 1,
    "restart": 1,
    "shorten": 1,
}


_UNCLEAN: dict[Kind, int] = {"elect_unclean": 4, "shrink": 6, "diverge": 8, "lose_power": 2}
"""What is added where logs may lose what was committed."""


_FETCHING: dict[Kind, int] = {"delete_records": 3, "double": 2, "lose_spool": 2}
"""What is added where agents fetch."""


_REMOVING: frozenset[Kind] = frozenset({"retire", "delete", "create"})
"""What is left out where brokers are restored: whatever a log has then must be stored, or told."""


class Fetching(NamedTuple):
    """How slots fetch: how many there are, and sizes in bytes."""

    slots: int
    segment: int
    spool_max: int
    answer: int


class Action(NamedTuple):
    """Something that happens at ``moment``; ``numbers`` and ``broker`` are its particulars."""

    moment: float
    kind: Kind
    numbers: tuple[float, float]
    broker: int

    def __str__(self) -> str:
        return f"{self.moment:9.3f} {self.kind} {self.numbers[0]:.3f} {self.numbers[1]:.3f} at broker {self.broker}"


@dataclass(frozen=True)
class Schedule:
    """What is drawn before anything runs. Nothing happens, and nothing goes wrong any more, after ``quiet``."""

    seed: int
    settings: dict[str, Any]
    topics: dict[str, int]
    """Partitions of each topic that there is at the start."""
    replicated: bool
    """Whether each partition has a replica on the second broker, which has an agent of its own."""
    unclean: bool
    """Whether logs lose what was committed: unclean elections and losses of power."""
    careful: bool
    """Whether retention on the brokers takes only what is stored, so that nothing is ever lost."""
    transactional: bool
    compacted: bool
    fetching: Fetching | None
    """None if all agents have brokers' disks."""
    actions: list[Action]
    quiet: float
    unsealed: timedelta
    """For so long a range may be packed before it is sealed."""
    late: float | None
    """Which damage the head gets once all is stored, a number in [0, 1); None for none."""
    meanwhile: Literal["runs", "is down", "is down, and retention empties the disk"]
    """What the agent does then."""
    restored: bool = False
    """Whether brokers are restored from a backup: then Kafka gives an offset and an epoch to two batches."""

    def __str__(self) -> str:
        happens = "\n".join(f"    {action}" for action in self.actions)
        marks = [
            mark for mark in ("replicated", "unclean", "careful", "transactional", "compacted") if getattr(self, mark)
        ]
        return f"""seed {self.seed}
  settings {self.settings}
  topics {self.topics} {marks}
  fetching {self.fetching}
  sealed {self.unsealed} after it was packed
  head damaged at the end: {self.late}; the agent {self.meanwhile}
  quiet from {self.quiet:.3f} s on; before that:
{happens}"""


def draw(
    seed: int,
    *,
    compacted: bool = False,
    fetching: bool = False,
    replicated: bool | None = None,
    unclean: bool = False,
    careless: bool = False,
    restored: bool = False,
) -> Schedule:
    """The schedule of ``seed``; ``replicated`` overrides its own, the other options have it so in any case."""
    rng = random.Random(f"schedule {seed}")
    quiet = rng.choice([5.0, 20.0, 60.0])
    settings = {
        "tail_after": f"{rng.choice([1, 2, 10, 40])}s",
        "scan_interval": f"{rng.choice([5, 30])}s",
        "metadata_interval": f"{rng.choice([2, 10])}s",
        "upload": {"concurrency": rng.choice([1, 2, 3])},
        "retry_cap": "5s",
        "index_interval": f"{rng.choice([1, 10])}s",
        "index_idle_interval": f"{rng.choice([10, 60])}s",
        "fill": {"enabled": False},
        "freshness": random.Random(f"freshness {seed}").choice([{}, {".*": "3s"}, {".*": "15s"}, {"orders": "6s"}]),
    }
    topics = {name: rng.choice([1, 2]) for name in ["orders", "payments"][: rng.choice([1, 1, 2])]}
    replicas = random.Random(f"replicas {seed}")
    drawn = replicas.random() < 0.7
    replicated = drawn if replicated is None else replicated
    compaction = random.Random(f"compaction {seed}")
    compacted = (compaction.random() < 0.3 and not unclean) or compacted
    unclean = (
        replicas.random() < 0.5 or unclean
    ) and not compacted  # a cleaned log may not tell where an election cut it
    weights = _WEIGHTS | (_UNCLEAN if unclean else {})
    if restored:
        compacted, weights = False, {kind: weights[kind] for kind in weights if kind not in _REMOVING}
    careful, transactional = replicas.random() < 0.5 and not careless, replicas.random() < 0.4
    cleanings = _cleanings(compaction, quiet) if compacted else ()
    slots = random.Random(f"fetching {seed}")
    fetched = _fetching(slots) if fetching else None
    if fetched:
        weights = weights | _FETCHING
    actions = sorted([*_actions(rng, weights, quiet), *cleanings])
    if restored:
        actions = sorted([*actions, *_restores(random.Random(f"restores {seed}"), quiet)])
    else:
        actions = sorted([*actions, *_spoils(random.Random(f"spoils {seed}"), actions, quiet)])
    if not fetched:
        actions = sorted([*actions, *_failing_disks(random.Random(f"disks {seed}"), actions, quiet)])
    if not replicated:
        actions = [action._replace(broker=1) for action in actions]
    unsealed = random.Random(f"unsealed {seed}").choice(
        [timedelta(days=1), timedelta(seconds=3), timedelta(seconds=20)]
    )
    late = random.Random(f"late {seed}")
    return Schedule(
        seed,
        settings,
        topics,
        replicated,
        unclean,
        careful,
        transactional,
        compacted,
        fetched,
        actions,
        quiet,
        unsealed,
        late.choice([None, late.random()]),
        late.choice(["runs", "runs", "is down", "is down, and retention empties the disk"]),
        restored,
    )


def _actions(rng: random.Random, weights: dict[Kind, int], quiet: float) -> Iterator[Action]:
    """Actions, in bursts: what a race needs lies close together."""
    bursts = [rng.uniform(0.0, quiet) for _ in range(rng.randint(1, 6))]
    for _ in range(rng.randint(3, 40)):
        [kind] = rng.choices(list(weights), list(weights.values()))
        near = rng.choice(bursts) + rng.expovariate(1.0)
        moment = near if rng.random() < 0.7 and near < quiet else rng.uniform(0.9 * quiet, quiet)
        yield Action(moment, kind, (rng.random(), rng.random()), rng.choice([1, 2]))


def _cleanings(rng: random.Random, quiet: float) -> Iterator[Action]:
    """The times at which the log cleaner comes by."""
    for _ in range(rng.randint(1, 12)):
        yield Action(rng.uniform(0.0, quiet), "compact", (rng.random(), rng.random()), rng.choice([1, 2]))


def _fetching(rng: random.Random) -> Fetching:
    spool_max = rng.choice([1 << 20, 1 << 20, 1 << 20, 2000])
    return Fetching(rng.choice([1, 2]), rng.choice([150, 400, 2000]), spool_max, rng.choice([200, 1000, 5000]))


def _restores(rng: random.Random, quiet: float) -> Iterator[Action]:
    """A backup, and a restore of it after some more batches, once or twice; appends follow at once, or later."""
    for _ in range(rng.choice([1, 1, 2])):
        saved = rng.uniform(0.0, 0.6 * quiet)
        back = rng.uniform(saved, 0.9 * quiet)
        broker = rng.choice([1, 2])
        yield Action(saved, "back_up", (rng.random(), rng.random()), broker)
        yield Action(back, "restore", (rng.random(), rng.random()), broker)
        for kind, count in (("append", rng.randint(0, 12)), ("roll", rng.randint(0, 3))):
            for _ in range(count):
                moment = rng.choice([rng.uniform(saved, back), back + rng.expovariate(0.3), rng.uniform(back, quiet)])
                yield Action(min(moment, quiet), kind, (rng.random(), rng.random()), broker)  # type: ignore[arg-type]


def _spoils(rng: random.Random, actions: list[Action], quiet: float) -> Iterator[Action]:
    """Damages of the head: before the first start, at any time, and where something else happens."""
    if rng.random() < 0.1:
        yield Action(0.0, "spoil", (rng.random(), 0.0), rng.choice([1, 2]))
    for _ in range(rng.choice([0, 0, 1, 2, 4])):
        near = rng.choice(actions).moment + rng.expovariate(2.0)
        moment = near if rng.random() < 0.6 and near < quiet else rng.uniform(0.0, quiet)
        yield Action(moment, "spoil", (rng.random(), rng.random()), rng.choice([1, 2]))


def _failing_disks(rng: random.Random, actions: list[Action], quiet: float) -> Iterator[Action]:
    """Disks, or single folders of them, that cannot be read for a while: at any time, and where something happens."""
    for _ in range(rng.choice([0, 0, 1, 2, 4])):
        near = rng.choice(actions).moment - rng.expovariate(1.0)
        moment = near if rng.random() < 0.6 and near > 0 else rng.uniform(0.0, quiet)
        yield Action(moment, "fail_disk", (rng.random(), rng.random()), rng.choice([1, 2]))


def pick(number: float, items: list[Any]) -> Any:
    """One of ``items`` by a number in [0, 1)."""
    return items[int(number * len(items))]
