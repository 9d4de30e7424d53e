"""Each condition, and what must not raise it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import pytest

from tests.tidemark.monitoring.test_health import MINUTE, NOW, TOPIC, entry, gap, led, ledger
from tidemark.formats.raw.gaps import Gap
from tidemark.formats.raw.watermark_index import IndexEntry, LeaderEntry, WatermarkIndex
from tidemark.formats.table.audit_report import AuditFinding, AuditReport, AuditVerdict
from tidemark.formats.table.ledger import Ledger
from tidemark.formats.table.statuses import ScanStatus
from tidemark.kafka_log import OpenTransaction
from tidemark.monitoring import deployment_conditions, topic_conditions
from tidemark.monitoring.health import TopicHealth, WaitingSince, topic_health
from tidemark.monitoring.incidents import Condition
from tidemark.monitoring.observation import lasting_ones
from tidemark.monitoring.observer_state import MOST_SAMPLES, ParseSample, TopicSighting, latest

LATER = NOW + 16 * MINUTE


def mark(partition: int = 0, offset: int = 200, since: datetime = NOW) -> WaitingSince:
    return WaitingSince(incarnation=0, partition=partition, offset=offset, since=since)


def health(known: Ledger, *entries: IndexEntry, marks: Iterable[WaitingSince] = (mark(),)) -> TopicHealth:
    return topic_health(TOPIC, known, led(*entries), LATER, marks=marks)


def late(
    known: Ledger,
    *entries: IndexEntry,
    before: TopicSighting | None = None,
    scan: ScanStatus | None = None,
    waits: int = 0,
    uploaded: datetime = NOW,
    **of: Any,
) -> list[Condition]:
    landed = {key: one.next_offset for key, one in known.by_partition.items()}
    ahead = [one for one in entries if one.next_offset > landed.get((0, one.partition), 0)]
    marks = [mark(one.partition, one.next_offset, uploaded) for one in ahead]
    found = health(known, *entries, **of)
    return list(topic_conditions.late(TOPIC, found, marks, LATER, before or TopicSighting(), scan, waits))


def test_a_gap_says_what_is_missing_since_when_why_and_how_to_go_on() -> None:
    lost = Gap.model_validate({"from": 100, "to": 150, "reason": "unclean_election", "detected_at": NOW})
    [found] = topic_conditions.gaps(health(ledger(100), entry(uploaded=100, gaps=(lost,))))
    assert (found.key, found.start, found.end, found.offsets, found.since) == (
        "gap/east/orders/0-0/100",
        100,
        150,
        50,
        NOW,
    )
    assert "unclean leader election" in found.likely
    assert "tidemark acknowledge-gap orders 0 100 150 --cluster east" in found.mend
    assert not list(topic_conditions.gaps(health(ledger(100), entry(uploaded=100))))


def test_what_only_kafka_s_remote_tier_has_is_told_and_nobody_is_asked_to_give_it_up() -> None:
    tiered = gap(100, 150, "remote_tier")
    seen = health(ledger(100), entry(uploaded=100, gaps=(tiered, gap(160, 170))), entry(1, 200, gaps=(gap(200, 210),)))
    assert [found.start for found in topic_conditions.gaps(seen)] == [160, 200]
    [found] = topic_conditions.remote_tier(seen)
    assert (found.kind, found.key, found.offsets, found.start) == ("remote_tier", "remote_tier/east/orders", 50, 100)
    for text in (found.title, found.text, found.likely, found.mend):
        assert "acknowledge" not in text
        assert "LOST" not in text
    assert not [*topic_conditions.remote_tier(health(ledger(100), entry(uploaded=100, gaps=(gap(100, 150),))))]


def test_a_reason_that_a_later_version_adds_is_shown() -> None:
    lost = Gap.model_validate({"from": 100, "to": 150, "reason": "eaten_by_mice", "detected_at": NOW})
    [found] = topic_conditions.gaps(health(ledger(100), entry(uploaded=100, gaps=(lost,))))
    assert found.likely == "eaten_by_mice"


def test_a_growing_gap_is_the_same_one_with_another_fact() -> None:
    one, two = (
        next(topic_conditions.gaps(health(ledger(100), entry(uploaded=100, gaps=(gap(100, end),)))))
        for end in (120, 150)
    )
    assert one.key == two.key
    assert one.fact != two.fact


def test_very_many_gaps_of_a_topic_are_one_incident() -> None:
    entries = [entry(number, 100, gaps=(gap(100, 110),)) for number in range(topic_conditions.MOST_GAPS + 1)]
    [found] = topic_conditions.gaps(health(ledger(), *entries))
    assert (found.key, found.offsets, found.title) == ("gap/east/orders", 510, "east/orders: 51 gaps in 51 partitions")
    assert len(list(topic_conditions.gaps(health(ledger(), *entries[1:])))) == topic_conditions.MOST_GAPS


def stuck(
    one: IndexEntry, marks: Iterable[WaitingSince] = (mark(),), gone: Iterable[int] = (), now: datetime = LATER
) -> Any:
    return list(topic_conditions.stuck(TOPIC, {one.partition: LeaderEntry(3, one)}, marks, set(gone), now))


def test_a_watermark_that_stands_before_a_rotated_segment_is_stuck() -> None:
    standing = entry(uploaded=100, active=200, end=900)
    [found] = stuck(standing)
    assert (found.key, found.start, found.end, found.offsets, found.since) == (
        "stuck/east/orders/0-0",
        100,
        200,
        100,
        NOW,
    )
    assert "broker 3" in found.likely
    assert stuck(standing, now=NOW + 15 * MINUTE) == []
    assert stuck(standing, gone=[3]) == []
    assert stuck(standing.model_copy(update={"packs_known": False})) == []
    assert stuck(standing, marks=()) == []


def test_uploaded_and_not_landed_is_late() -> None:
    [found] = late(ledger(100), entry(uploaded=300))
    assert (found.key, found.start, found.end, found.offsets, found.since) == ("late/east/orders", 100, 300, 200, NOW)


@pytest.mark.parametrize(
    ("known", "entries", "marks"),
    [
        pytest.param(
            ledger(300), entry(uploaded=300, active=300, end=999), [mark()], id="idle, with an active segment"
        ),
        pytest.param(ledger(100), entry(uploaded=300), [mark(since=NOW + 2 * MINUTE)], id="not for long"),
        pytest.param(ledger(250), entry(uploaded=300), [mark()], id="the mark was reached"),
        pytest.param(ledger(100, gaps=(gap(100, 120),)), entry(uploaded=300), [mark()], id="a gap holds it"),
        pytest.param(ledger(100), entry(uploaded=100, active=300), [mark()], id="it is the agent's to upload"),
    ],
)
def test_never_late(known: Ledger, entries: IndexEntry, marks: list[WaitingSince]) -> None:
    assert late(known, entries, marks=marks) == []


def test_what_was_only_just_uploaded_is_on_its_way() -> None:
    assert late(ledger(100), entry(uploaded=300), uploaded=LATER - 5 * MINUTE) == []
    assert late(ledger(100), entry(uploaded=300), uploaded=LATER - 6 * MINUTE)


def test_the_likely_reason_of_being_late() -> None:
    ahead = entry(uploaded=300)
    held = OpenTransaction(producer_id=9, producer_epoch=0, first_offset=100)
    known = ledger(100)
    open_transaction = known.model_copy(
        update={"partitions": tuple(one.model_copy(update={"held_by": (held,)}) for one in known.partitions)}
    )
    before = known.model_copy(update={"committed_at": NOW - MINUTE})
    meanwhile = known.model_copy(update={"committed_at": LATER})

    def likely(*arguments: Any, **of: Any) -> str:
        [found] = late(*arguments, **of)
        return found.likely

    assert "the transaction of producer 9 is open since offset 100" in likely(open_transaction, ahead)
    assert "does Airflow's triggerer run?" in likely(before, ahead, scan=ScanStatus(cluster="east", at=NOW))
    scan = ScanStatus(cluster="east", at=LATER, capacity=1000)
    assert "nothing was committed: the ingest DAG is paused" in likely(before, ahead, scan=scan)
    assert likely(before, ahead, scan=scan, waits=3001).endswith(
        "; or the DAG waits for a triggerer: 3,001 DAGs wait, and one triggerer runs 1,000 triggers: "
        "raise [triggerer] capacity, or run 4 triggerers"
    )
    assert "triggerer" not in likely(before, ahead, scan=scan, waits=1000)
    assert "runs commit" in likely(meanwhile, ahead)
    failed = TopicSighting(failed_at=NOW + MINUTE, failure="parser: column id is integer in the table")
    for committed in (known, before, open_transaction):  # all before it
        quoted = likely(committed, ahead, before=failed, scan=scan)
        assert quoted.startswith("the last run failed at ")
        assert quoted.endswith(": parser: column id is integer in the table")
    assert "runs commit" in likely(meanwhile, ahead, before=failed, scan=scan), "another run has committed since"
    assert "nothing was ever committed" in likely(Ledger.genesis("east", "orders", "orders"), ahead)


def test_numbers_are_for_people() -> None:
    """Freshness in minutes would be 0.333333."""
    topic = TOPIC.model_copy(update={"freshness": MINUTE / 3})
    found = topic_health(topic, ledger(100), led(entry(uploaded=1300)), LATER, marks=[mark(offset=1300)])
    [one] = topic_conditions.late(topic, found, [mark(offset=1300)], LATER, TopicSighting())
    assert "1,200 uploaded offsets of 1 partition are not landed" in one.text
    assert "for longer than 20 s" in one.text


def quarantine(*samples: tuple[int, int, int]) -> list[Condition]:
    made = [
        ParseSample(at=NOW + minute * MINUTE, parsed=parsed, refused=refused) for minute, parsed, refused in samples
    ]
    return list(topic_conditions.quarantine(TOPIC, made, NOW + 60 * MINUTE))


def test_a_rate_of_refused_records_above_the_topics() -> None:
    [found] = quarantine((10, 1000, 0), (20, 1000, 3))
    assert (found.offsets, found.since) == (3, NOW + 20 * MINUTE)
    assert "0.15%" in found.title


@pytest.mark.parametrize(
    "samples",
    [
        pytest.param([], id="idle"),
        pytest.param([(20, 1000, 0)], id="none refused"),
        pytest.param([(20, 1000, 1)], id="just the rate"),
        pytest.param([(0, 10, 10), (20, 1000, 0)], id="an hour ago"),
    ],
)
def test_no_quarantine_above_its_rate(samples: list[tuple[int, int, int]]) -> None:
    assert quarantine(*samples) == []


def test_samples_are_added_up_and_forgotten() -> None:
    many = [ParseSample(at=NOW + number * MINUTE, parsed=10, refused=1) for number in range(3 * MOST_SAMPLES)]
    kept = latest(many, NOW + MOST_SAMPLES * MINUTE)
    assert len(kept) == MOST_SAMPLES
    assert (sum(one.parsed for one in kept), sum(one.refused for one in kept)) == (
        2 * MOST_SAMPLES * 10,
        2 * MOST_SAMPLES,
    )


def report(*findings: str, dates: tuple[str, ...] = ("2026-11-19",), minute: int = 0) -> AuditReport:
    found = tuple(
        AuditFinding(kind="missing_file", incarnation=0, partition=2, dt=dt, offsets=((5, 9),), detail="is gone")
        for dt in findings
    )
    return AuditReport(
        cluster="east",
        topic="orders",
        table="orders",
        ledger_n=4,
        started_at=NOW + minute * MINUTE,
        seconds=1,
        bytes_read=1,
        dates=dates,
        findings=found,
    )


def test_a_failed_audit_stays_until_its_date_passes() -> None:
    verdict = AuditVerdict(cluster="east", topic="orders", audited_at=NOW)
    assert not list(topic_conditions.audits(verdict.after(report(), "url")))
    verdict = verdict.after(report("2026-11-19", "2026-11-19"), "s3://lake/report")
    [found] = topic_conditions.audits(verdict.after(report(dates=("2026-11-20",), minute=1), "url"))
    assert (found.key, found.partition, found.start, found.since) == ("audit/east/orders/2026-11-19", 2, 5, NOW)
    assert "2 findings; the first: missing_file" in found.text
    assert "s3://lake/report" in found.mend
    assert not list(topic_conditions.audits(verdict.after(report(minute=2), "url")))
    assert not list(topic_conditions.audits(verdict.after(report(dates=(), minute=2), "url")))


def test_an_audit_that_could_not_be_carried_out_is_one_that_failed() -> None:
    verdict = AuditVerdict(cluster="east", topic="orders", audited_at=NOW).without(
        ["2026-11-19"], "AccessDenied: raw", NOW
    )
    [found] = topic_conditions.audits(verdict)
    assert "AccessDenied: raw" in found.text
    assert not list(topic_conditions.audits(verdict.after(report(minute=1), "url")))


def index(broker: int, *entries: IndexEntry, minute: int = 0) -> WatermarkIndex:
    return WatermarkIndex(
        cluster="east", broker=broker, agent_version="test", written_at=NOW + minute * MINUTE, entries=entries
    )


def gone(*indexes: WatermarkIndex) -> list[Condition]:
    leading: dict[int, LeaderEntry] = {}
    for one in indexes:
        leading |= {item.partition: LeaderEntry(one.broker, item) for item in one.entries}
    return list(deployment_conditions.agents_gone("east", indexes, leading.values(), NOW + 10 * MINUTE))


def test_a_silent_agent_is_gone_only_while_nobody_else_leads_its_partitions() -> None:
    [found] = gone(index(1, entry(0), entry(1)), index(2, entry(2), minute=9))
    assert (found.key, found.since) == ("agent_gone/east/1", NOW)
    assert all(name in found.mend for name in ("systemd: journalctl -u", "containers: docker logs", "kubectl logs"))
    assert "2 partitions of orders" in found.text
    assert gone(index(1, entry(0)), index(2, entry(0), minute=9)) == []
    assert gone(index(1), index(2, entry(0), minute=9)) == []
    assert gone(index(1, entry(0), minute=7)) == []


def test_a_hiccup_is_no_incident() -> None:
    trouble = deployment_conditions.unreadable("east", "orders", "it does not parse", NOW)
    lost = next(topic_conditions.gaps(health(ledger(100), entry(uploaded=100, gaps=(gap(100, 150),)))))
    found, first = lasting_ones([trouble, lost], {}, NOW)
    assert found == (lost,)
    found, first = lasting_ones([trouble], first, NOW + 2 * MINUTE)
    assert [one.since for one in found] == [NOW]
    assert lasting_ones([], first, NOW + 3 * MINUTE) == ((), {})
