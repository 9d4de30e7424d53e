"""The result of onboarding, for people and for programs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from tidemark.onboarding.gather import Right
from tidemark.onboarding.onboard import Onboarding
from tidemark.terminal import columns


def answer(found: Onboarding, rights: Sequence[Right]) -> dict[str, Any]:
    """The result for programs; rates in bytes a second, times in seconds, money in US dollars a month."""
    sample = found.sample
    return {
        "topic": f"{found.request.cluster}/{found.request.topic}",
        "kafka": found.facts.answer() if found.facts is not None else None,
        "sample": None
        if sample is None
        else {"source": sample.source, "records": len(sample.rows), "bytes": sample.size},
        "detected": found.detected._asdict(),
        "parser": found.topic.parser.model_dump(mode="json"),
        "inferred": [column._asdict() for column in found.proposal.inferred],
        "trial": found.trial.answer(),
        "event_time": {"chosen": _chosen(found), "candidates": [candidate.answer() for candidate in found.candidates]},
        "rate": found.rate._asdict() if found.rate is not None else None,
        "load": {str(broker): found.loads[broker] for broker in sorted(found.loads)},
        "costs": [{"what": line.what, "requests": line.requests, "dollars": line.dollars} for line in found.costs],
        "freshness": found.expected.answer(),
        "rights": [right._asdict() for right in rights],
        "notes": list(found.notes),
        "patch": found.change.patch(),
    }


def lines(found: Onboarding, rights: Sequence[Right]) -> Iterator[str]:
    """The result for people, without the patch."""
    name = f"{found.request.cluster}/{found.request.topic}"
    if found.facts is not None:
        config = found.facts.answer()["config"]
        settings = ", ".join(f"{key}={value}" for key, value in config.items())
        yield f"{name}: {found.facts.partitions} partitions, {found.facts.replication_factor} replicas; {settings}"
    if found.sample is not None:
        yield f"sample: {len(found.sample.rows)} records of {found.sample.source}, {found.sample.size:,} bytes"
    shapes = ", ".join(f"{share:.1%} {shape}" for shape, share in found.detected.shares.items())
    yield f"values: {shapes or 'none'}; framing {found.detected.framing}; {found.detected.tombstones} tombstones"
    yield f"parser: {found.topic.parser.kind}; {found.trial.refused} of {found.trial.rows} records refused"
    yield from (f"  refused {count} times: {reason}" for reason, count in found.trial.reasons.items())
    if found.trial.types:
        yield columns(_columns(found))
    yield from (
        f"  {name}: {count} records have it, and no column takes it" for name, count in found.trial.unknown.items()
    )
    yield from _event_times(found)
    yield from _expected(found)
    known = ((right.what, right.role, right.outcome, right.detail) for right in rights)
    yield columns([("RIGHT", "ROLE", "?", "HOW IT IS KNOWN"), *known])
    yield from (f"note: {note}" for note in (*found.notes, *found.expected.notes))


def next_step(found: Onboarding) -> str:
    """The steps left until rows land."""
    topic = found.topic
    text = "next: Airflow lands the topic by itself once its topics file has it, unless [tidemark] starts_paused is set"
    if topic.freshness is not None:
        setting = yaml.safe_dump(
            {re.escape(topic.topic): f"{topic.freshness.total_seconds():g}s"}, default_flow_style=True
        )
        text += f"; add it to freshness in each agent's file, as {setting.strip()}, and reload the agents (SIGHUP)"
    return f"{text}; `tidemark config check --agents` names what is missing"


def _columns(found: Onboarding) -> Iterator[Sequence[object]]:
    """A table of columns: rates are of the records that are not refused, misfits and overflows of all."""
    inferred = {column.name: column for column in found.proposal.inferred}
    landed = max(1, found.trial.rows - found.trial.refused)
    yield "COLUMN", "TYPE", "NULL", "MISFIT", "OVERFLOW"
    for name, kind in found.trial.types.items():
        column = inferred.get(name)
        misfit = column.misfit if column is not None else found.trial.misfits.get(name, 0)
        rates = [found.trial.nulls[name] / landed, misfit / max(1, found.trial.rows)]
        over = column.overflow / max(1, found.trial.rows) if column is not None else None
        yield (
            name,
            column.kind if column else kind,
            *(f"{rate:.1%}" for rate in rates),
            None if over is None else f"{over:.1%}",
        )


def _event_times(found: Onboarding) -> Iterator[str]:
    chosen = _chosen(found)
    yield f"event time: {chosen or 'the record timestamp'}"
    for candidate in found.candidates:
        unit = f" ({candidate.setting.unit})" if candidate.setting.unit else ""
        median, farthest = candidate.median.total_seconds(), candidate.farthest.total_seconds()
        far = f"median distance {median:,.3f} s, farthest {farthest:,.0f} s"
        yield f"  candidate {candidate.setting.field}{unit}: {far}, filled {candidate.filled:.1%}"


def _expected(found: Onboarding) -> Iterator[str]:
    if found.rate is None:
        yield "rate: not known, so there is no estimate of costs; give --rate"
    else:
        yield f"rate: {found.rate.bytes_a_second / 1e6:,.3f} MB/s, by the {found.rate.source}"
        load = ", ".join(f"broker {broker} {_load(found.loads[broker])}" for broker in sorted(found.loads))
        yield f"load: {load or 'brokers are not known'}"
        total = sum(line.dollars for line in found.costs)
        yield f"cost: ${total:,.2f} a month at the list prices of S3 Standard, beside what agents cost anyway"
        yield from (f"  {line.what}: ${line.dollars:,.2f}" for line in found.costs)
    if found.expected.freshness is not None:
        promised = found.expected.freshness.total_seconds()
        yield f"freshness: {promised:g} s are promised; the agents need the same setting"


def _load(rate: float | None) -> str:
    return "not measured yet" if rate is None else f"{rate / 1e6:,.3f} MB/s"


def _chosen(found: Onboarding) -> str | None:
    event_time = found.topic.parser.event_time
    return event_time.field if event_time is not None else None
