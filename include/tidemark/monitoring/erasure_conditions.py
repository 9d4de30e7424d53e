"""Conditions of requests for erasure that are near their date and not closed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, time

from tidemark.monitoring.deployment_conditions import PATIENCE
from tidemark.monitoring.incidents import Condition
from tidemark.monitoring.observer_state import OpenErasure
from tidemark.words import plural


def due(cluster: str, requests: Iterable[OpenErasure], now: datetime) -> Iterator[Condition]:
    """Conditions of the ``requests`` of a cluster that are near their date, or past it. None has a value in it."""
    for request in requests:
        days = (request.due - now.date()).days
        if now.date() < request.near_from:
            continue
        left = f"is due in {plural(days, 'day')}" if days >= 0 else f"is overdue by {plural(-days, 'day')}"
        topics = [topic.topic for topic in request.topics]
        likely, mend = _cause(request)
        yield Condition(
            kind="erasure",
            key=f"erasure/{cluster}/{request.id}",
            cluster=cluster,
            topic=topics[0] if len(topics) == 1 else None,
            since=datetime.combine(request.near_from, time(), UTC),
            title=f"{cluster}: erasure request {request.id} {left}",
            text="; ".join(f"{topic.topic}: {', '.join(filter(None, topic[1:]))}" for topic in request.topics),
            likely=likely,
            mend=mend,
            fact="" if days >= 0 else "overdue",
        )


def unreadable_requests(cluster: str, reason: str, now: datetime) -> Condition:
    """The condition of requests for erasure, or of reports on them, that cannot be read."""
    return Condition(
        kind="unreadable",
        key=f"unreadable/{cluster}/erasure",
        cluster=cluster,
        since=now,
        title=f"{cluster}: requests for erasure cannot be read",
        text=f"nobody is warned of those that are near their date: {reason}",
        likely="the object was damaged, or the role of Airflow's workers may not read it",
        mend="tidemark erase status",
        patience=PATIENCE,
    )


def _cause(request: OpenErasure) -> tuple[str, str]:
    """The likely cause, and what to do about it: of the topic that is the furthest from its end."""
    states, report = {topic.state for topic in request.topics}, f"tidemark erase report {request.id}"
    run = "start tidemark_erasure by its form, if its weekly run comes too late"
    if not request.approved:
        return "nobody else has approved it", f"tidemark erase approve {request.id} --by NAME; then {run}"
    if "refused" in states:
        rule = "an approval is final, so make another request, approve it with --records, and withdraw this one"
        return "a pass found more records than it may erase", f"{report}; {rule}"
    if "waiting" in states:
        return "the table has not landed all that the request covers", f"see the topic's other incidents; then {run}"
    if "approved" in states:
        return "the DAG tidemark_erasure is paused, or fails, or has not run since the approval", run
    cause = "packs, locks or versions keep objects of raw, or agents continue from them"
    return cause, f"{report} names each with the reason; the next pass removes what is free by then"
