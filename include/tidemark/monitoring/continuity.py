"""Whether every offset of a topic is accounted for: the sums of its evidence, and the judgement of its partitions.

The sums reach up to what has landed. What is above that the brokers' indexes tell: a gap there is a gap, although no
ledger names it before a run has reached it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from tidemark.inspection.offset_accounting import CLASSES, accounts_of
from tidemark.intervals import Intervals
from tidemark.monitoring.health import PartitionHealth
from tidemark.monitoring.judgement import exit_code, sentence, state_of_partition, worst
from tidemark.monitoring.topic_now import outside_tables, topic_now
from tidemark.table.delta_table import TopicTable
from tidemark.table.effective_evidence import EffectiveEvidence

_END: Final = 1 << 63


def continuity_of(table: TopicTable, dates: Collection[str] = ()) -> dict[str, Any]:
    """The report, as the values of JSON.

    ``lost`` and ``corrupt`` offsets lie above a partition's ``next_offset``, and hold it there unless they are
    acknowledged; ``leaving`` ones are landed and will be cut off once the new branch is there. ``lag`` is how many
    offsets of the log have no class yet; how many of them an open transaction holds back only raw can tell, and
    ``held_by`` says from where on. ``sound`` is false if the topic's state needs a person.

    Raises:
        StoreError: a store did not answer.
        FormatError: an object does not parse.
    """
    standing = EffectiveEvidence.of(table)
    accounts = accounts_of(standing, dates)
    now = topic_now(table, standing.ledger, outside_tables(table.deployment, table.topic.cluster))
    known = {(one["incarnation"], one["partition"]): one for one in accounts["partitions"]}
    partitions = [_partition(one, known.get((one.incarnation, one.partition))) for one in now.health.partitions]
    state = now.state(equal=accounts["balanced"])
    return accounts | {
        "state": state,
        "verdict": sentence(state, missing=now.health.missing, lag=now.health.lag),
        "sound": exit_code(state) == 0,
        "lag": now.health.lag,
        "incidents": [{"kind": one.kind, "title": one.title, "since": one.since.isoformat()} for one in now.incidents],
        "partitions": partitions,
    }


def _partition(one: PartitionHealth, account: dict[str, Any] | None) -> dict[str, Any]:
    """The partition's account, or one of nothing, with what is known above it."""
    landed = one.landed or 0
    gaps = {
        name: Intervals((gap.start, gap.end) for gap in one.gaps if (gap.reason == "corrupt") is (name == "corrupt"))
        for name in ("lost", "corrupt")
    }
    found = account or _nothing_landed(one)
    state = state_of_partition(one)
    return found | {
        **{name: missing.clip(landed, _END).size for name, missing in gaps.items()},
        "leaving": gaps["lost"].clip(0, landed).size,
        "log_end": one.log_end,
        "lag": one.lag,
        "state": state if found["balanced"] else worst([state, "unequal"]),
        "gaps": [gap.model_dump(mode="json", by_alias=True) for gap in one.gaps],
    }


def _nothing_landed(one: PartitionHealth) -> dict[str, Any]:
    return {
        "incarnation": one.incarnation,
        "partition": one.partition,
        "topic_id": None,
        "start_offset": 0,
        "next_offset": 0,
        "covered": 0,
        "classes": dict.fromkeys(CLASSES, 0),
        "classed": 0,
        "balanced": True,
        "truncated": 0,
        "held_by": [],
    }
