"""Conditions outside the tables: agents, clocks, objects, the scan, catalogs, the topics file, erasures. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, time, timedelta
from typing import Final

from tidemark.formats.raw.cluster import of_broker, origin_of
from tidemark.formats.raw.manifest import batch_of
from tidemark.formats.raw.watermark_index import DamagedHead, LeaderEntry, OtherHistory, WatermarkIndex
from tidemark.formats.table.statuses import MirrorStatus
from tidemark.kafka_log.batch import described
from tidemark.monitoring.incidents import Condition, about, agent_log, in_utc
from tidemark.monitoring.observer_state import OpenErasure
from tidemark.store import clock
from tidemark.topics import Deployment
from tidemark.words import plural

BEGINNING: Final = timedelta(minutes=15)
"""Time that a topic may be in the topics file before it is created, or before its agents are started."""

PATIENCE: Final = timedelta(minutes=2)
"""Time that a failure must last if it may be a short one of the store."""

HEAD_TOLD: Final = timedelta(minutes=15)
"""Time for which a damaged head is reported after its agent has made it again, so that people hear of it."""

MIRROR_PATIENCE: Final = timedelta(minutes=10)
"""Time that a catalog may be away without a report: its tables lag behind, and nothing is lost."""

AGENT_GONE: Final = timedelta(minutes=3)
"""The silence after which an agent is gone: it writes its index every minute at least."""

MIRROR_SILENCE: Final = timedelta(hours=1)
"""The job runs every ten minutes at least."""

_LONGEST: Final = 86_400.0 * 365 * 100

_NAMED: Final = 5
"""Most partitions that a condition of a disk names."""


def agents_gone(
    cluster: str, indexes: Iterable[WatermarkIndex], led: Iterable[LeaderEntry], now: datetime
) -> Iterator[Condition]:
    """Conditions of brokers that have a silent agent and are the last known leaders of partitions.

    An idle agent still writes its index. A removed or dead broker leads nothing: other indexes have its partitions.
    """
    leads: dict[int, set[tuple[str, int]]] = {}
    for leader in led:
        leads.setdefault(leader.broker, set()).add((leader.entry.topic, leader.entry.partition))
    for index in indexes:
        mine = leads.get(index.broker)
        if not mine or now - index.written_at <= AGENT_GONE:
            continue
        topics = sorted({topic for topic, _ in mine})
        more = f" and {len(topics) - 5} more" if len(topics) > 5 else ""
        yield Condition(
            **about("agent_gone", cluster, None, index.broker),
            since=index.written_at,
            title=f"{cluster}: the agent of {of_broker(index.broker)} is silent",
            text=f"it has not written its watermark index since {in_utc(index.written_at)}; it was the last to lead "
            f"{plural(len(mine), 'partition')} of {', '.join(topics[:5])}{more}",
            likely="the agent is stopped, or cannot reach the store; or the broker is down and has no other replica",
            mend=f"on {of_broker(index.broker)}, start the agent if it does not run, and see {agent_log()}",
        )


def clocks_off(cluster: str, indexes: Iterable[WatermarkIndex], now: datetime) -> Iterator[Condition]:
    """Conditions of brokers with a clock more than a minute off the store's."""
    for index in indexes:
        skew = timedelta(seconds=max(-_LONGEST, min(_LONGEST, index.clock_skew)))
        if abs(skew) > clock.MOST:
            yield _clock(cluster, of_broker(index.broker), str(index.broker), skew, now)


def own_clock_off(cluster: str, skew: timedelta, now: datetime) -> Condition:
    """The condition of an observing host with a clock more than a minute off the store's."""
    return _clock(cluster, "Airflow's workers", "airflow", skew, now)


def _clock(cluster: str, owner: str, name: str, skew: timedelta, now: datetime) -> Condition:
    return Condition(
        **about("clock", cluster, None, name),
        since=now,
        title=f"{cluster}: the clock of {owner} is wrong",
        text=f"it is {clock.described(skew)}; ages and dates follow the store's clock, so nothing closes early",
        likely="the host has no NTP, or cannot reach its server",
        mend=f"on the host of {owner}: timedatectl; chronyc tracking",
        patience=PATIENCE,
    )


def heads_damaged(cluster: str, indexes: Iterable[WatermarkIndex], now: datetime) -> Iterator[Condition]:
    """Conditions of brokers with heads that something else wrote or removed, as their agents report: one a broker."""
    for index in indexes:
        heads = [head for head in index.damaged_heads if head.made_at is None or now - head.made_at < HEAD_TOLD]
        if not heads:
            continue
        waits = any(head.made_at is None for head in heads)
        yield Condition(
            **about("head", cluster, None, index.broker),
            since=min(head.found_at for head in heads),
            title=f"{cluster}: a head of {of_broker(index.broker)} was damaged",
            text="; ".join(map(_damage, heads)),
            likely="something else wrote or removed the object; or a newer agent wrote it, and an older one runs now",
            mend="find out who wrote it, by the store's access log; "
            f"on {of_broker(index.broker)}, see {agent_log('head_')}",
            fact="not made again" if waits else "made again",
        )


def _damage(head: DamagedHead) -> str:
    kept = f" (its bytes are kept at {head.kept})" if head.kept else ""
    if head.made_at is None:
        then = "its agent could not make it again yet: what it named is not read, and nothing more is packed there"
    else:
        then = f"its agent made it again at {in_utc(head.made_at)}, with all that it named and no seal holds"
    return f"{head.key}: {head.rule}{kept}; {then}"


def disks_failing(cluster: str, indexes: Iterable[WatermarkIndex]) -> Iterator[Condition]:
    """Conditions of brokers with disks or logs that their agents cannot read: one a broker."""
    for index in indexes:
        faults = index.disk_faults
        if not faults:
            continue
        disks = [f"{fault.path}: {fault.rule}" for fault in faults if fault.path is not None]
        logs = [f"{fault.topic}-{fault.partition}: {fault.rule}" for fault in faults if fault.path is None]
        more = [f"{len(logs) - _NAMED} more partitions"] if len(logs) > _NAMED else []
        yield Condition(
            **about("disk", cluster, None, index.broker),
            since=min(fault.found_at for fault in faults),
            title=f"{cluster}: {of_broker(index.broker)} has logs that its agent cannot read",
            text="; ".join([*disks, *logs[:_NAMED], *more]) + "; nothing of them is stored until they can be read",
            likely="a disk has failed or is not mounted, or rights have changed; or the agent's file names another "
            "server.properties than the broker runs with",
            mend=f"on {of_broker(index.broker)}: tidemark-agent status; see {agent_log('unreadable')}",
            fact=", ".join(fault.path for fault in faults if fault.path is not None),
        )


def other_histories(cluster: str, indexes: Iterable[WatermarkIndex]) -> Iterator[Condition]:
    """Conditions of topics with partitions whose leader's log is not the stored one: one a topic.

    Of several entries the last observed one counts: the epochs of a restored cluster may lie below those of before.
    """
    latest: dict[tuple[str, int], LeaderEntry] = {}
    for index in indexes:
        for entry in index.entries:
            known = latest.get(at := (entry.topic, entry.partition))
            if known is None or entry.observed_at > known.entry.observed_at:
                latest[at] = LeaderEntry(index.broker, entry)
    parted: dict[str, list[tuple[LeaderEntry, OtherHistory]]] = {}
    for (topic, _), leader in sorted(latest.items()):
        if leader.entry.other_history is not None:
            parted.setdefault(topic, []).append((leader, leader.entry.other_history))
    for topic, found in parted.items():
        (first, history), only = found[0], len(found) == 1
        more = (
            "" if only else f"; and of partitions {', '.join(str(leader.entry.partition) for leader, _ in found[1:6])}"
        )
        more += f" and {len(found) - 6} more" if len(found) > 6 else ""
        place = f"on {of_broker(first.broker)}"
        yield Condition(
            **about("history", cluster, topic),
            partition=first.entry.partition if only else None,
            start=history.at if only else None,
            end=history.stored_end if only else None,
            since=min(other.found_at for _, other in found),
            title=f"{cluster}/{topic}: a broker has another history than the store",
            text=f"partition {first.entry.partition} {place}: {_parting(history)}{more}; nothing more of it is stored",
            likely="brokers or the cluster's metadata were restored from a backup, and Kafka gave offsets again",
            mend=_go_on(first, topic),
            fact=" ".join(f"{leader.entry.partition}:{other.at}" for leader, other in found),
        )


def _go_on(leader: LeaderEntry, topic: str) -> str:
    """The remedy. A slot's spool begins where the histories part, or above: it cannot find out where."""
    if origin_of(leader.broker) == "fetch":
        return "make the topic again, under another id, or run an agent beside its brokers, which can go on"
    branch = f"tidemark-agent branch {topic} {leader.entry.partition}"
    return f"on {of_broker(leader.broker)}: {branch} shows both, and what goes on"


def _parting(history: OtherHistory) -> str:
    """Where two histories part, and the first batch of each that differs."""
    stored, local = (described(batch_of(text) if text else None) for text in (history.stored, history.local))
    ours = f"the disk has {local}, and ends at {history.log_end}"
    return f"from offset {history.at} on, the store has {stored}, and ends at {history.stored_end}; {ours}"


def unreadable(cluster: str, topic: str, reason: str, now: datetime) -> Condition:
    """The condition of a topic that cannot be observed, as a whole or in part."""
    return Condition(
        **about("unreadable", cluster, topic),
        since=now,
        title=f"{cluster}/{topic}: cannot be looked at",
        text=reason,
        likely="an object was damaged or removed, or the role of Airflow's workers may not read it",
        mend=f"tidemark status {topic} --cluster {cluster}",
        patience=PATIENCE,
    )


def unseen(cluster: str, topic: str, reason: str, now: datetime) -> Condition:
    """The condition of a topic that no agent ever reported: its empty table means nothing."""
    return Condition(
        **about("unseen", cluster, topic),
        since=now,
        title=f"{cluster}/{topic}: no agent was ever seen",
        text=reason,
        likely="its name, its cluster, the bucket or the prefix is wrong; or the agents do not run, or leave it out",
        mend="correct the topics file, and see tidemark config check --agents; or start the agents",
        patience=BEGINNING,
    )


def unreadable_index(cluster: str, reason: str, now: datetime, key: str) -> Condition:
    """The condition of a watermark index that cannot be read: its broker's partitions are unknown."""
    return Condition(
        **about("unreadable", cluster, None, key),
        since=now,
        title=f"{cluster}: a watermark index cannot be read",
        text=f"nothing is known of what its broker leads: {reason}",
        likely="something else wrote the object, or a newer agent, or this role may not read it",
        mend="have the broker's agent write it again by a restart (systemd: systemctl restart tidemark-agent; "
        "containers: docker restart CONTAINER; Kubernetes: kubectl delete pod POD); if there is no such broker, "
        f"remove {key}",
        patience=PATIENCE,
    )


def waiting_triggers(deployment: Deployment) -> int:
    """The most triggers that wait in Airflow for a deployment's watermarks: one for each DAG that lands."""
    return len(deployment.topics) + sum(bool(deployment.live_topics(cluster)) for cluster in deployment.clusters)


def scan_failing(cluster: str, since: datetime, reason: str) -> Condition:
    """The condition of a triggerer that cannot read the watermark indexes."""
    return Condition(
        **about("scan", cluster),
        since=since,
        title=f"{cluster}: the watermark indexes cannot be read",
        text=f"no topic of {cluster} is woken: {reason}",
        likely="the store does not answer, or the triggerer's role may not read it",
        mend="see the log of Airflow's triggerer",
        patience=PATIENCE,
    )


def mirrors_failing(status: MirrorStatus, now: datetime) -> Iterator[Condition]:
    """Conditions of tables that a catalog does not list as they are, and of a job that no longer runs."""
    for table in status.tables:
        if table.failing_since is not None:
            yield Condition(
                **about("mirror", status.cluster, table.topic, table.catalog, *(["state"] if table.state else [])),
                since=table.failing_since,
                title=f"{status.cluster}/{table.topic}: catalog {table.catalog} lags behind",
                text=f"{table.identifier} lists ledger {table.ledger_n}, since "
                f"{in_utc(table.at) if table.at else 'never'}: {table.error}",
                likely="the catalog does not answer or refuses, or somebody changed its table; the table lands on",
                mend=f"spark-submit spark/jobs/mirror.py --topics FILE --cluster {status.cluster} "
                f"--topic {table.topic}",
                patience=MIRROR_PATIENCE,
            )
    if now - status.at > MIRROR_SILENCE:
        yield Condition(
            **about("mirror", status.cluster),
            since=status.at,
            title=f"{status.cluster}: catalogs are not brought up to date",
            text=f"the mirror job of {status.cluster} last ended at {in_utc(status.at)}",
            likely="the DAG tidemark_catalogs is paused, or its task hangs or dies",
            mend="unpause tidemark_catalogs; see the log of its last task",
        )


def topics_file_wrong(cluster: str, file: str, problem: str, since: datetime) -> Condition:
    """The condition of a wrong topics file; ``cluster`` is the deployment's first."""
    return Condition(
        **about("topics_file", cluster),
        since=since,
        title=f"{file} is wrong",
        text=f"its DAGs do not run, or run as they were before: {problem}",
        likely="a mistake in the file",
        mend=f"correct {file}; tidemark config check",
        fact=problem,
    )


def erasures_due(cluster: str, requests: Iterable[OpenErasure], now: datetime) -> Iterator[Condition]:
    """Conditions of the ``requests`` of a cluster that are near their date, or past it. None has a value in it."""
    for request in requests:
        days = (request.due - now.date()).days
        if now.date() < request.near_from:
            continue
        left = f"is due in {plural(days, 'day')}" if days >= 0 else f"is overdue by {plural(-days, 'day')}"
        topics = [topic.topic for topic in request.topics]
        likely, mend = _erasure_cause(request)
        subject = about("erasure", cluster, None, request.id)
        subject["topic"] = topics[0] if len(topics) == 1 else None
        yield Condition(
            **subject,
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
        **about("unreadable", cluster, None, "erasure"),
        since=now,
        title=f"{cluster}: requests for erasure cannot be read",
        text=f"nobody is warned of those that are near their date: {reason}",
        likely="the object was damaged, or the role of Airflow's workers may not read it",
        mend="tidemark erase status",
        patience=PATIENCE,
    )


def _erasure_cause(request: OpenErasure) -> tuple[str, str]:
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
