"""The continuity report of a topic: sums of its evidence by class, and the judgement of its partitions.

The sums reach up to the landed offsets. Gaps above them come from the brokers' indexes, before a run reaches them.
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
from tidemark.table.state_table import state_status

_END: Final = 1 << 63


def continuity_of(table: TopicTable, dates: Collection[str] = ()) -> dict[str, Any]:
    """The report, as the values of JSON.

    ``lost`` and ``corrupt`` offsets lie above a partition's ``next_offset``, and hold it there unless they are
    acknowledged; ``leaving`` ones are landed and will be cut off once the new branch is there. ``lag`` counts the
    log's offsets that have no class yet; an open transaction may hold some of them back, and ``held_by`` has its first
    offset. ``remote_tier`` counts offsets, in gaps or below the partition's first one in the store, that only Kafka's
    own remote tier has; the latter are not counted in ``deleted_before_upload``, which is their class in the evidence.
    ``sound`` is false if the topic's state needs a person. ``state_table`` is the status of its state table.

    Raises:
        StoreError: a store did not answer.
        FormatError: an object does not parse.
    """
    standing = EffectiveEvidence.of(table)
    accounts = accounts_of(standing, dates)
    now = topic_now(table, standing.ledger, outside_tables(table.deployment, table.topic.cluster))
    known = {(account["incarnation"], account["partition"]): account for account in accounts["partitions"]}
    partitions = [_partition(part, known.get((part.incarnation, part.partition))) for part in now.health.partitions]
    state = now.state(equal=accounts["balanced"])
    return accounts | {
        "state": state,
        "verdict": sentence(
            state,
            missing=now.health.missing,
            lag=now.health.lag,
            tiered=now.health.tiered,
            quarantined=sum(account["classes"]["quarantined"] for account in accounts["partitions"]),
        ),
        "sound": exit_code(state) == 0,
        "lag": now.health.lag,
        "incidents": [
            {"kind": incident.kind, "title": incident.title, "since": incident.since.isoformat()}
            for incident in now.incidents
        ],
        "partitions": partitions,
        "state_table": _state_table(table),
    }


def _state_table(table: TopicTable) -> dict[str, Any] | None:
    status = state_status(table)
    if status is None:
        return None
    proved = status.proved_at
    known = status.model_dump(mode="json", exclude={"format", "cluster", "topic", "former", "audits"})
    return known | {"proved_at": proved.isoformat() if proved else None}


def _partition(health: PartitionHealth, account: dict[str, Any] | None) -> dict[str, Any]:
    """The partition's account (an empty one if nothing landed), with the gaps and the lag above it."""
    landed = health.landed or 0
    gaps = {
        name: Intervals.of(gap for gap in health.lost if (gap.reason == "corrupt") is (name == "corrupt"))
        for name in ("lost", "corrupt")
    }
    base = account or _nothing_landed(health)
    below = Intervals(health.remote_tier).clip(0, base["start_offset"]).size
    classes = base["classes"]
    state = state_of_partition(health)
    return base | {
        **{name: missing.clip(landed, _END).size for name, missing in gaps.items()},
        "leaving": gaps["lost"].clip(0, landed).size,
        "classes": classes | {"deleted_before_upload": max(0, classes["deleted_before_upload"] - below)},
        "remote_tier": health.tiered.size,
        "log_end": health.log_end,
        "lag": health.lag,
        "state": state if base["balanced"] else worst([state, "unequal"]),
        "gaps": [gap.model_dump(mode="json", by_alias=True) for gap in health.gaps],
    }


def _nothing_landed(health: PartitionHealth) -> dict[str, Any]:
    return {
        "incarnation": health.incarnation,
        "partition": health.partition,
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
