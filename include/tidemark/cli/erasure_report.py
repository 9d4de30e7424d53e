"""The text of a request for erasure: its time, its approval, and the report that a data protection officer keeps."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime
from typing import Final

from tidemark.erasure.progress import RequestProgress, TopicProgress
from tidemark.erasure.reports import RequestOutcome, left
from tidemark.formats.raw.erasure import Approved, ErasureWithdrawal, NotApproved
from tidemark.words import plural

NOT_COVERED: Final = (
    "Kafka itself: its retention or compaction removes the records from the brokers",
    "exports, topics restored from raw, and whatever readers have copied",
    "backups and replicas of the buckets",
    "logs of jobs, alerts that were sent, and names of fields without a column, which results of runs count",
    "batches that cannot be decoded and values that no parser found, which are counted above",
    "what an unclean election cut off, where nothing is masked",
    "records that Kafka committed after the request",
)


def report_lines(known: RequestProgress, sha256: str, now: datetime) -> Iterator[str]:
    """The report of a request, whose object has this SHA-256."""
    request, asked = known.request, known.asked
    yield f"Erasure request {request.id} of cluster {request.cluster}, as of {_time(now)}"
    yield f"  {time_left(known, now.date())}"
    yield from ("", "ASKED")
    yield f"  reason: {request.reason}"
    yield f"  asked by {request.by} at {_time(request.at)}, as {request.written_as}"
    yield f"  SHA-256 of request.json: {sha256}"
    yield f"  {approved_by(asked)}" + (f", as {asked.approval.written_as}" if isinstance(asked, Approved) else "")
    if isinstance(asked, Approved):
        yield f"  SHA-256 of approval.json, which masks name: {asked.sha256}"
    if asked.withdrawal is not None:
        yield f"  {withdrawn_by(asked.withdrawal)}, as {asked.withdrawal.written_as}"
    yield f"  {plural(len(request.values), 'value')}, as digests under the secret {request.secret}"
    for searched in request.topics:
        ends = plural(len(request.through[searched.topic]), "partition")
        yield f"  {searched.topic}: in {searched.column}, up to the end that each of {ends} had then"
    yield from ("", "FOUND AND ERASED")
    for topic in known.topics:
        yield from _found(topic)
    yield from ("", "REMAINS")
    for topic in known.topics:
        yield f"  {topic.searched.topic}: {_remains(topic)}"
        yield from (f"    {item}" for item in topic.remaining)
    yield from ("", "NOT COVERED")
    yield from (f"  {item}" for item in NOT_COVERED)


def time_left(known: RequestProgress, today: date) -> str:
    """The date of a request, and the days left or the time at which it was closed."""
    due, days = f"due on {known.request.due_on}", known.days_left(today)
    if known.closed_at is not None:
        return f"{due}, closed at {_time(known.closed_at)}"
    if known.due_on > known.request.due_on and days >= 0:
        return f"{due}, and what remains is kept until {_time(known.kept_until)}: due again on {known.due_on}"
    left = f"{plural(days, 'day')} left" if days >= 0 else f"OVERDUE by {plural(-days, 'day')}"
    return f"{due}, {left}{' (near)' if days >= 0 and known.is_near(today) else ''}"


def approved_by(asked: Approved | NotApproved) -> str:
    """Who has approved a request."""
    if isinstance(asked, Approved):
        limit = f", up to {plural(asked.approval.records, 'record')}" if asked.approval.records else ""
        return f"approved by {asked.approval.by} at {_time(asked.approval.at)}{limit}"
    if asked.objection is not None:
        return f"the approval does not count: {asked.objection}"
    return "waits for the approval of another person"


def withdrawn_by(withdrawal: ErasureWithdrawal) -> str:
    """Who has withdrawn a request, and why."""
    return f"withdrawn by {withdrawal.by} at {_time(withdrawal.at)}: {withdrawal.reason}"


def counted(outcome: RequestOutcome) -> str:
    """The number of records that a pass found, by place."""
    return ", ".join(f"{count} in {place}" for place, count in sorted(outcome.records.items()))


def _found(topic: TopicProgress) -> Iterator[str]:
    name, outcome = topic.searched.topic, topic.outcome
    if outcome is None:
        yield f"  {name}: {topic.state}, no pass has searched it{': ' if topic.detail else ''}{topic.detail}"
        return
    last = topic.passes[-1]
    found = outcome.detail or counted(outcome) or "nothing found"
    yield f"  {name}: {outcome.status} by attempt {last.attempt} of {last.by} at {_time(last.at)}: {found}"
    yield from (f"    {dt}: {plural(rows, 'row')} of the table" for dt, rows in sorted(outcome.dates.items()))
    if last.unsearchable:
        yield f"    {last.unsearchable} batches or values could not be searched"
    if last.gone:
        yield f"    {last.gone} offsets were not in raw any more"


def _remains(topic: TopicProgress) -> str:
    if topic.state not in {"hidden", "erased"}:
        return "all of it, since it is not erased"
    return left(topic.remaining) if topic.remaining else f"nothing, since {_time(topic.closed_at)}"


def _time(at: datetime | None) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC" if at else "never"
