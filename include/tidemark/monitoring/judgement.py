"""The judgement of a topic: its state and the state's consequences. All views use it, and so cannot disagree.

A state follows from the store (ledger, watermark indexes, heads) and from the topic's open incidents, which add causes
that only repeated observations show, such as one that has lasted for too long. The badge and the filter of the
continuity page, ``tidemark status`` and ``tidemark continuity`` show it, and the commands exit with its code. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal, NamedTuple, get_args

from tidemark.monitoring.health import PartitionHealth, TopicHealth
from tidemark.words import plural

TopicState = Literal["gap", "unequal", "late", "attention", "held", "behind", "current", "complete", "unknown"]

STATES: Final[tuple[TopicState, ...]] = get_args(TopicState)
"""From the worst to the best; ``unknown`` is last."""


class StateWords(NamedTuple):
    """The words and the sign that show a state. A command exits with 1 if the state needs a person."""

    sign: str
    name: str
    meaning: str
    needs_person: bool = False


WORDS: Final[Mapping[TopicState, StateWords]] = {
    "gap": StateWords("✕", "Gap", "offsets are missing, and nobody has acknowledged the gap", needs_person=True),
    "unequal": StateWords("≠", "Unequal", "the table is not what its evidence or its audit says", needs_person=True),
    "late": StateWords("▲", "Late", "offsets have waited for longer than the topic's freshness", needs_person=True),
    "attention": StateWords("!", "Attention", "an open incident says what is wrong", needs_person=True),
    "held": StateWords("‖", "Held", "an open transaction holds a partition"),
    "behind": StateWords("→", "Behind", "offsets wait to be landed"),
    "current": StateWords("≈", "Current", "all that is stored has landed, and newer offsets are in Kafka alone"),
    "complete": StateWords("✓", "Complete", "every offset of the log has a class"),
    "unknown": StateWords("?", "Unknown", "nobody has looked yet, or no agent knows the topic"),
}

_OF_INCIDENTS: Final[Mapping[str, TopicState]] = {
    "gap": "gap",
    "audit": "unequal",
    "late": "late",
    "stuck": "late",
    "unstored": "late",
}
"""The states of open incidents; those of other kinds need attention."""


def state_of_partition(health: PartitionHealth) -> TopicState:
    """The worst state of a partition, from the store alone."""
    if health.lost:
        return "gap"
    if health.gaps:
        return "attention"
    if health.held_by:
        return "held"
    if health.waits:
        return "behind"
    return "current" if health.lag else "complete"


def state_of(health: TopicHealth, incidents: Iterable[str] = (), *, equal: bool = True) -> TopicState:
    """The topic's state; ``equal`` is false if the evidence was read and does not add up."""
    if not health.partitions and not health.ledger_n:
        return with_incidents("unknown", incidents)
    state = worst([*map(state_of_partition, health.partitions), "complete" if equal else "unequal"])
    return with_incidents(state, incidents)


def with_incidents(known: TopicState, incidents: Iterable[str]) -> TopicState:
    """The worst of ``known``, a topic's state from the store alone, and the states of its open incidents' kinds."""
    return worst([known, *(_OF_INCIDENTS.get(kind, "attention") for kind in incidents)])


def worst(states: Iterable[TopicState]) -> TopicState:
    """The worst of ``states``, in the order of :data:`STATES`."""
    return min(states, key=STATES.index)


def exit_code(state: TopicState) -> int:
    """The exit code of a command that has shown ``state``."""
    return int(WORDS[state].needs_person)


def sentence(state: TopicState, *, missing: int, lag: int, tiered: int = 0, quarantined: int = 0) -> str:
    """The state in a line of text, with the offsets that are missing, only in Kafka's own remote tier, or wait.

    Beside the state's name it tells of ``quarantined`` records, which the table lacks.
    """
    words = WORDS[state]
    counts = [f"{plural(missing, 'offset')} missing"] if missing else []
    counts += [f"{plural(tiered, 'offset')} only in Kafka's remote tier"] if tiered else []
    counts += [f"{plural(lag, 'offset')} behind"] if lag else []
    name = words.name.upper() if words.needs_person else words.name
    aside = f" ({quarantined:,} in quarantine)" if quarantined else ""
    return "; ".join([f"{name}{aside}: {words.meaning}", *counts])
