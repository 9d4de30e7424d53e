"""``tidemark continuity``: the fate of every offset of a topic, and a check that the classes add up.

The report has the sums of the topic's evidence by class and the judgement of its partitions. The committed ledger and
the valid evidence are added up and compared. The evidence is streamed, so that memory grows with partitions and with
the requested dates alone. The sums reach up to the landed offsets. Gaps above them come from the brokers' indexes,
before a run reaches them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Final, get_args

import typer

from tidemark.cli.options import DEFAULT_TOPICS, As, Cluster, TopicName, Topics, iso_dates, show
from tidemark.cli.read_models import evidence_of, opened
from tidemark.formats.table.statuses import doubts
from tidemark.intervals import Intervals
from tidemark.kafka_log import OpenTransaction
from tidemark.monitoring.health import PartitionHealth
from tidemark.monitoring.incident_store import outside_tables, topic_now
from tidemark.monitoring.judgement import exit_code, sentence, state_of_partition, worst
from tidemark.table.delta_table import TopicTable
from tidemark.table.effective_evidence import EffectiveEvidence
from tidemark.table.evidence import PARSED, OffsetClass
from tidemark.table.state_table import state_status
from tidemark.terminal import columns

_BESIDE: Final = ("truncated", "remote_tier", "lost", "corrupt", "leaving", "lag")

CLASSES: Final[tuple[str, ...]] = get_args(OffsetClass)
"""The classes of the offsets below a partition's next offset."""

DATED: Final = (*PARSED, "expired")
"""The classes of offsets that have a date."""

Key = tuple[int, int]

_END: Final = 1 << 63


def continuity(
    topic: TopicName,
    dt: Annotated[
        list[str] | None, typer.Option(callback=iso_dates, help="Show the rows of this date too; may be repeated.")
    ] = None,
    topics: Topics = DEFAULT_TOPICS,
    cluster: Cluster = None,
    output: As = "text",
) -> None:
    """Show the class of every offset of a topic, its gaps, and the transactions that hold a partition.

    Reads the committed ledger, the evidence of landed offsets, the agents' reports of the rest, and the topic's open
    incidents. Exits with 1 if the topic needs a person: offsets are missing or late, the classes do not add up, or an
    incident is open.
    """
    report = continuity_of(opened(topics, topic, cluster), dt or ())
    show(report, _lines(report), output)
    raise typer.Exit(exit_code(report["state"]))


def _lines(report: dict[str, Any]) -> Iterator[str]:
    yield f"{report['topic']}: ledger {report['ledger']}, {report['rows']} rows in {report['table']}"
    yield report["verdict"]
    yield from (f"incident: {incident['title']}, since {incident['since']}" for incident in report["incidents"])
    if report["landed"] != report["rows"]:
        yield f"evidence has {report['landed']} landed rows, and the ledger {report['rows']}"
    yield from (f"evidence of attempt {attempt} is missing" for attempt in report["missing_evidence"])
    yield from _partition_table(report["partitions"])
    for partition in report["partitions"]:
        name = f"{partition['incarnation']}/{partition['partition']}"
        if not partition["balanced"]:
            yield f"{name}: {partition['covered']} offsets are covered, and {partition['classed']} have a class"
        for gap in partition["gaps"]:
            yield f"{name}: gap {gap['from']} to {gap['to']}: {gap['reason']}, since {gap['detected_at']}"
        for held in partition["held_by"]:
            yield f"{name}: held by the open transaction of producer {held['producer_id']} from {held['first_offset']}"
    if report["state_table"]:
        yield _state_line(report["state_table"])
    for date in report["dates"]:
        counts = {kind: sum(part[kind] for part in date["partitions"]) for kind in DATED}
        counted = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count or kind != "expired")
        yield f"{date['dt']}: {counted}" + ("" if date["balanced"] else f"; and the ledger says {date['rows']} rows")


def _state_line(state: dict[str, Any]) -> str:
    """A line about the state table: its commit, its doubts, and the age of its proof."""
    stopped = f"; stopped: {state['stopped']['reason']}" if state["stopped"] else ""
    proof = f"every key was audited since {state['proved_at']}" if state["proved_at"] else "not yet audited as a whole"
    name = f"{state['table']}: commit {state['n']} of ledger {state['of']}, {state['rows']} rows"
    return "; ".join([name, *doubts(state), proof]) + stopped


def _partition_table(partitions: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A table of the columns with a nonzero value."""
    names = [name for name in CLASSES if any(partition["classes"][name] for partition in partitions)]
    beside = [name for name in _BESIDE if any(partition[name] for partition in partitions)]
    rows = [["partition", "start", "next", *names, *beside, "state"]]
    for partition in partitions:
        counts = [*(partition["classes"][name] for name in names), *(partition[name] for name in beside)]
        name = f"{partition['incarnation']}/{partition['partition']}"
        rows.append(
            [name, *map(str, [partition["start_offset"], partition["next_offset"], *counts]), partition["state"]]
        )
    yield columns(rows, right=True)


def accounts_of(standing: EffectiveEvidence, dates: Collection[str] = ()) -> dict[str, Any]:
    """The sums, as the values of JSON.

    ``balanced`` is false wherever the evidence does not add up to the ledger: for a partition to its ``next_offset``,
    for the table and for each of ``dates`` to its rows. ``truncated`` offsets were landed, and cut off.
    """
    table = standing.table
    ledger = standing.ledger
    classes: dict[Key, Counter[str]] = {}
    dated: dict[str, dict[Key, Counter[str]]] = {dt: {} for dt in sorted(dates)}
    for row in standing.rows():
        key = row.key
        classes.setdefault(key, Counter())[row.offset_class] += row.rows
        if row.day in dated:
            dated[row.day].setdefault(key, Counter())[row.offset_class] += row.rows
    states = ledger.by_partition
    unknown = sorted(classes.keys() - states.keys())
    partitions = [
        _account(
            key,
            classes.get(key, Counter()),
            topic_id=state.topic_id,
            start_offset=state.start_offset,
            next_offset=state.next_offset,
            truncated=standing.truncated.get(key, 0),
            held_by=state.held_by,
        )
        for key, state in sorted(states.items())
    ]
    landed = sum(counts["landed"] for counts in classes.values())
    days = [
        _account_of_date(dt, ledger.dates[dt].rows if dt in ledger.dates else 0, parts) for dt, parts in dated.items()
    ]
    sums: dict[str, Any] = {
        "topic": f"{ledger.cluster}/{ledger.topic}",
        "table": table.url,
        "ledger": ledger.n,
        "committed_at": ledger.committed_at.isoformat(),
        "rows": ledger.rows,
        "landed": landed,
        "missing_evidence": standing.missing,
        "partitions": partitions,
        "dates": days,
    }
    balanced = landed == ledger.rows and not unknown and all(part["balanced"] for part in (*partitions, *days))
    return sums | {"balanced": balanced}


def _account(
    key: Key,
    classes: Counter[str],
    *,
    topic_id: str | None = None,
    start_offset: int = 0,
    next_offset: int = 0,
    truncated: int = 0,
    held_by: Sequence[OpenTransaction] = (),
) -> dict[str, Any]:
    """The account of a partition: by default of one of which nothing has landed."""
    classed = sum(classes.values())
    return {
        "incarnation": key[0],
        "partition": key[1],
        "topic_id": topic_id,
        "start_offset": start_offset,
        "next_offset": next_offset,
        "covered": next_offset,
        "classes": {name: classes[name] for name in CLASSES},
        "classed": classed,
        "balanced": classed == next_offset,
        "truncated": truncated,
        "held_by": [asdict(hold) for hold in held_by],
    }


def _account_of_date(dt: str, rows: int, parts: dict[Key, Counter[str]]) -> dict[str, Any]:
    landed = sum(counts["landed"] for counts in parts.values())
    return {
        "dt": dt,
        "rows": rows,
        "landed": landed,
        "balanced": landed == rows,
        "partitions": [
            {"incarnation": key[0], "partition": key[1], **{name: counts[name] for name in DATED}}
            for key, counts in sorted(parts.items())
        ],
    }


def continuity_of(table: TopicTable, dates: Collection[str] = ()) -> dict[str, Any]:
    """The report, as the values of JSON.

    ``lost`` and ``corrupt`` offsets lie above a partition's ``next_offset``, and hold it there unless they are
    acknowledged; ``leaving`` ones are landed and will be cut off once the new branch is there. ``lag`` counts the
    log's offsets that have no class yet; an open transaction may hold some of them back, and ``held_by`` has its first
    offset. ``remote_tier`` counts offsets, in gaps or below the partition's first one in the store, that only Kafka's
    own remote tier has; the latter are not counted in ``deleted_before_upload``, which is their class in the evidence.
    ``sound`` is false if the topic's state needs a person. ``state_table`` is the status of its state table.

    Raises:
        NeverSeen: nothing has landed, and no agent was ever seen that could upload the topic.
        StoreError: a store did not answer.
        FormatError: an object does not parse.
    """
    standing = evidence_of(table)
    accounts = accounts_of(standing, dates)
    now = topic_now(table, standing.ledger, *outside_tables(table.deployment, table.topic.cluster))
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
    base = account or _account((health.incarnation, health.partition), Counter())
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
