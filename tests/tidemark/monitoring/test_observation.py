"""A look at a deployment in a directory: what it finds, what it reads for that, and what it must not hide."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.plugins.world import CLUSTER, DATE, World, commit, entry, gap, state
from tests.support.requests import Requests
from tests.tidemark.erasure.asked import approve, asked, tell
from tests.tidemark.kafka_log.build import simple
from tidemark.erasure.reports import RawReport, Remaining
from tidemark.erasure.requests import ErasureFolder, read_request
from tidemark.formats.raw.cluster import FIRST_SLOT
from tidemark.formats.raw.erasure import ErasureRequest, SearchedTopic
from tidemark.formats.raw.manifest import last_batch_of
from tidemark.formats.raw.watermark_index import DamagedHead, DiskFault, OtherHistory
from tidemark.formats.table.audit_report import AuditFinding, AuditReport, AuditVerdict
from tidemark.formats.table.ledger import Ledger
from tidemark.formats.table.statuses import MirrorState, MirrorStatus, ScanStatus
from tidemark.kafka_log import scan_batches
from tidemark.monitoring import deployment_conditions
from tidemark.monitoring.incident_store import read_incidents, read_sightings, record, watch
from tidemark.monitoring.incidents import Incident
from tidemark.monitoring.observation import ClusterLook, look
from tidemark.monitoring.overview import Overview, TopicSummary
from tidemark.table.delta_table import TopicTable
from tidemark.table.evidence import EvidenceRow, evidence_key, to_parquet
from tidemark.timestamps import utc_now

NOW = utc_now()


@pytest.fixture(autouse=True)
def _from_now_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Indexes are written at the time that it is: looks are counted from each test's start, not from the first's."""
    monkeypatch.setattr(sys.modules[__name__], "NOW", utc_now())


MINUTE = timedelta(minutes=1)


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path / "world", "orders", "clicks")
    for topic in ("orders", "clicks"):
        seen(world, topic)
    return world


def seen(world: World, topic: str) -> None:
    """An agent has told of the topic."""
    world.raw.put(world.control.incarnations(topic), b"{}")


def looked(world: World, minute: int = 0) -> list[Incident]:
    """The open incidents after a look."""
    found = watch(world.deployment, CLUSTER, NOW + minute * MINUTE)
    return [one for one in found.incidents if one.open]


def keys(world: World, minute: int = 0) -> list[str]:
    return [one.key for one in looked(world, minute)]


def copy(table: TopicTable, ledger: Ledger) -> None:
    """What the driver leaves after a commit."""
    table.store.put(table.keys.deployment.committed_ledger(table.topic.topic), ledger.to_bytes())


def landed(world: World, topic: str = "orders", end: int = 100, **of: Any) -> Ledger:
    table = world.table(topic)
    ledger = commit(table, state(0, end, **of))
    copy(table, ledger)
    return ledger


def test_an_idle_deployment_raises_nothing_however_long(world: World) -> None:
    landed(world)
    world.put_index(entry("orders", 0, 100))
    for minute in (0, 1, 2, 60, 61, 600):
        world.put_index(entry("orders", 0, 100))
        found = look(world.deployment, CLUSTER, read_sightings(world.deployment, CLUSTER), utc_now() + minute * MINUTE)
        assert [one for one in found.conditions if one.kind != "agent_gone"] == []


def test_a_gap_of_the_agent_opens_and_closes_by_itself(world: World) -> None:
    world.put_index(entry("orders", 0, 100, gaps=[gap(100, 150)]))
    assert keys(world) == ["gap/kafka-1/orders/0-0/100"]
    world.put_index(entry("orders", 0, 200))
    assert keys(world, 1) == []


def test_a_gap_that_only_the_ledger_knows_stays_until_a_run_passes_it(world: World) -> None:
    landed(world, gaps=[gap(100, 150)])
    world.put_index(entry("orders", 0, 200))
    assert keys(world) == keys(world, 1) == ["gap/kafka-1/orders/0-0/100"]
    landed(world, end=200)
    assert keys(world, 2) == []


def test_a_topic_is_late_by_the_tables_own_log_and_never_by_a_copy(world: World) -> None:
    old = landed(world, end=50)
    world.put_index(entry("orders", 0, 100))
    assert keys(world) == []
    landed(world, end=100)
    copy(world.table(), old)  # a driver that was killed after its commit leaves the last one's
    assert keys(world, 20) == ["agent_gone/kafka-1/1"]
    world.put_index(entry("orders", 0, 300))
    look_again = [one for minute in (21, 40) for one in keys(world, minute)]
    assert "late/kafka-1/orders" in look_again


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Lets agents be silent for so many minutes before they are gone."""
    return lambda minutes: monkeypatch.setattr(deployment_conditions, "AGENT_GONE", minutes * MINUTE)


def test_a_new_topic_has_five_minutes_for_its_first_rows(world: World, silent: Callable[[int], None]) -> None:
    topics = [{**topic, "freshness": "20s"} for topic in _topics(world)["topics"]]
    world.write_topics(**{**_topics(world), "topics": topics})
    silent(120)
    waits = entry("orders", 0, 0, log_end=100).model_copy(update={"oldest_unstored": 400.0})
    world.put_index(waits)
    assert keys(world) == keys(world, 4) == []
    assert keys(world, 6) == ["unstored/kafka-1/orders"]


def test_a_topic_that_has_landed_has_its_promise_at_once(world: World) -> None:
    topics = [{**topic, "freshness": "20s"} for topic in _topics(world)["topics"]]
    world.write_topics(**{**_topics(world), "topics": topics})
    landed(world, end=50)
    world.put_index(entry("orders", 0, 50, log_end=100).model_copy(update={"oldest_unstored": 400.0}))
    assert keys(world) == ["unstored/kafka-1/orders"]


def test_what_is_only_packed_is_seen_to_wait(world: World) -> None:
    """Its watermark does not move: the seals come hours later."""
    landed(world, end=100)
    packed = entry("orders", 0, 0).model_copy(update={"tail_end": 100, "log_end_offset": 100})
    world.put_index(packed)
    assert keys(world) == []
    more = packed.model_copy(update={"tail_end": 300, "log_end_offset": 300})
    world.put_index(more)
    assert keys(world, 1) == []
    assert "late/kafka-1/orders" in keys(world, 20)


def test_a_rotated_segment_that_is_not_uploaded_is_stuck(world: World, silent: Callable[[int], None]) -> None:
    landed(world)
    held = entry("orders", 0, 100).model_copy(update={"active_base_offset": 200, "log_end_offset": 300})

    def at(minute: int, one: Any) -> list[str]:
        world.put_index(one)
        found = look(world.deployment, CLUSTER, read_sightings(world.deployment, CLUSTER), datetime_of(minute))
        record(world.deployment, CLUSTER, found)
        return [item.key for item in found.conditions if item.kind != "agent_gone"]

    def datetime_of(minute: int) -> datetime:
        return utc_now() + minute * MINUTE

    silent(120)
    assert at(0, held) == []
    assert at(16, held) == ["stuck/kafka-1/orders/0-0"]
    assert at(17, entry("orders", 0, 200).model_copy(update={"active_base_offset": 200})) == []


def test_what_a_silent_agent_has_stuck_stays_open(world: World, silent: Callable[[int], None]) -> None:
    landed(world)
    held = entry("orders", 0, 100).model_copy(update={"active_base_offset": 200, "log_end_offset": 300})
    silent(20)
    world.put_index(held)
    assert [keys(world, minute) for minute in (0, 16)] == [[], ["stuck/kafka-1/orders/0-0"]]
    assert keys(world, 21) == ["agent_gone/kafka-1/1", "stuck/kafka-1/orders/0-0"]


def _topics(world: World) -> dict[str, Any]:
    import yaml

    found: dict[str, Any] = yaml.safe_load(world.topics_file.read_text())
    return found


def test_refused_records_are_counted_by_the_evidence_of_new_runs(world: World) -> None:
    world.put_index(entry("orders", 0, 100))
    table = world.table()
    attempts = iter(range(1, 10))

    def run(landed_rows: int, refused: int, kind: str = "ingest") -> None:
        attempt = next(attempts)
        rows = [
            EvidenceRow(0, 0, 0, landed_rows, "landed", landed_rows, file=f"{attempt}-landed"),
            EvidenceRow(0, 0, 0, refused, "quarantined", refused, file=f"{attempt}-refused"),
        ]
        body = to_parquet(rows, configuration="c", code="c", attempt=attempt)
        table.store.put(evidence_key(table, attempt), body)
        ledger = commit(table, state(0, 100), attempt=attempt, kind=kind)
        copy(table, ledger)

    run(1000, 0)
    assert keys(world) == []
    run(1000, 0)
    run(990, 10)
    [found] = looked(world, 1)
    assert (found.key, found.offsets) == ("quarantine/kafka-1/orders", 10)
    run(10, 0, kind="replay")
    assert keys(world, 2) == []


def test_a_failed_audit_by_its_verdict(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    keys_of = world.table().keys.deployment
    verdict = AuditVerdict(cluster=CLUSTER, topic="orders", audited_at=NOW)
    report = AuditReport(
        cluster=CLUSTER,
        topic="orders",
        table="orders",
        ledger_n=1,
        started_at=NOW,
        seconds=1,
        bytes_read=1,
        dates=(DATE,),
    )
    failed = report.model_copy(update={"findings": (AuditFinding(kind="stray_rows", dt=DATE, detail="two"),)})
    world.table().store.put(keys_of.verdict("orders"), verdict.after(failed, "url").to_bytes())
    assert keys(world) == [f"audit/kafka-1/orders/{DATE}"]
    world.table().store.put(keys_of.verdict("orders"), verdict.after(report, "url").to_bytes())
    assert keys(world, 1) == []
    requests = Requests(monkeypatch)
    assert keys(world, 2) == []
    assert keys_of.verdict("orders") not in requests.gets


def test_a_silent_agent_is_gone_until_it_writes_again(world: World, silent: Callable[[int], None]) -> None:
    world.put_index(entry("orders", 0, 100), broker=4)
    landed(world)
    assert keys(world, 2) == []
    assert keys(world, 4) == ["agent_gone/kafka-1/4"]
    world.put_index(entry("orders", 0, 100, epoch=1), broker=5)
    assert keys(world, 5) == ["agent_gone/kafka-1/5"]  # who leads it now, and is as silent
    silent(60)
    assert keys(world, 6) == []


def test_a_damaged_head_is_told_of_until_some_time_after_its_agent_has_made_it_again(
    world: World, silent: Callable[[int], None]
) -> None:
    key, kept = "s3://raw/_heads/kafka-1/4.json", "_damaged/kafka-1/4/0123.head"
    damaged = DamagedHead(key=key, rule="object: Invalid JSON", found_at=NOW - MINUTE)
    landed(world)
    served = entry("orders", 0, 100)
    world.put_index(served, broker=4, damaged_heads=[damaged])
    [found] = looked(world)
    assert (found.key, found.since) == ("head/kafka-1/4", NOW - MINUTE)
    assert found.text.startswith(f"{key}: object: Invalid JSON; its agent could not make it again yet")
    made = damaged.model_copy(update={"kept": kept, "made_at": NOW})
    world.put_index(served, broker=4, damaged_heads=[made])
    [found] = looked(world, 1)
    assert kept in found.text
    assert "its agent made it again" in found.text
    assert found.revision == 2, "people hear of it"
    world.raw.put(world.control.index(4), b"not an index")
    assert "head/kafka-1/4" in keys(world, 2), "nobody knows"
    silent(60)
    world.put_index(served, broker=4, damaged_heads=[made])
    assert keys(world, 14) == ["head/kafka-1/4"]
    assert keys(world, 15) == []


def test_a_disk_that_an_agent_cannot_read_is_told_of_until_it_can(world: World) -> None:
    """Also while the agent that told so is silent: it may have had no other disk."""
    landed(world)
    away = DiskFault(path="/data-2", rule="No such file", found_at=NOW - MINUTE)
    logs = [DiskFault(topic="orders", partition=one, rule="none has it", found_at=NOW) for one in range(7)]
    world.put_index(broker=4, disk_faults=[away, *logs])
    [found] = looked(world)
    assert (found.key, found.kind, found.since) == ("disk/kafka-1/4", "disk", NOW - MINUTE)
    assert found.text.startswith("/data-2: No such file; orders-0: none has it; ")
    assert "2 more partitions" in found.text
    assert "disk/kafka-1/4" in keys(world, 30)
    world.raw.put(world.control.index(4), b"not an index")
    assert "disk/kafka-1/4" in keys(world, 32), "nobody knows"
    world.put_index(broker=4)
    assert "disk/kafka-1/4" not in keys(world, 33)


def test_another_history_on_a_broker_names_both_and_what_to_do(world: World) -> None:
    """The index of a former leader, under a later epoch, is from before the restore."""
    landed(world)
    batches = [last_batch_of(header) for header in scan_batches([simple(40, 5) + simple(45, 5)], "log", 40)]
    other = OtherHistory(
        at=40, stored_end=100, log_start=0, log_end=70, stored=batches[0], local=batches[1], found_at=NOW - MINUTE
    )
    world.put_index(entry("orders", 0, 100, epoch=7), broker=5)
    parted = entry("orders", 0, 100).model_copy(update={"other_history": other, "observed_at": NOW + MINUTE})
    world.put_index(parted, broker=4)
    [found] = looked(world)
    assert (found.key, found.partition, found.start, found.end) == ("history/kafka-1/orders", 0, 40, 100)
    assert "the store has a batch from 40 to 44 under epoch 3 of 2026-" in found.text
    assert "and ends at 100; the disk has a batch from 45 to 49 under epoch 3" in found.text
    assert found.mend.startswith("on broker 4: tidemark-agent branch orders 0")
    seen = {"other_history": other.model_copy(update={"at": 41}), "observed_at": NOW + 2 * MINUTE}
    world.put_index(parted.model_copy(update=seen), broker=FIRST_SLOT + 1)
    [of_slot] = looked(world, 1)
    assert "on slot 1" in of_slot.text
    assert "run an agent beside its brokers" in of_slot.mend
    world.raw.delete(world.control.index(FIRST_SLOT + 1))
    world.raw.put(world.control.index(4), b"not an index")
    assert "history/kafka-1/orders" in keys(world, 2), "nobody knows"
    world.put_index(parted.model_copy(update={"other_history": None}), broker=4)
    assert keys(world, 3) == []


def test_nothing_is_told_of_a_broker_that_was_removed(world: World) -> None:
    """Its last index stays in the store."""
    landed(world)
    damaged = DamagedHead(key="s3://raw/_heads/kafka-1/4.json", rule="no JSON", found_at=NOW)
    world.put_index(entry("orders", 0, 100), broker=4, damaged_heads=[damaged], clock_skew=120)
    assert keys(world) == ["head/kafka-1/4"]
    assert keys(world, 2) == ["clock/kafka-1/4", "head/kafka-1/4"]
    world.put_index(entry("orders", 0, 100, epoch=1), broker=5)
    assert keys(world, 3) == ["clock/kafka-1/4", "head/kafka-1/4"], "not silent for long enough"
    assert keys(world, 5) == ["agent_gone/kafka-1/5"], "which leads, and is as silent in this test"


def test_a_scan_that_fails_for_a_while(world: World) -> None:
    key, store = world.table().keys.deployment.scan, world.table().store
    failing = ScanStatus(cluster=CLUSTER, at=NOW, failing_since=NOW, error="AccessDenied", failures=3)
    store.put(key, failing.to_bytes())
    assert keys(world) == []
    [found] = looked(world, 2)
    assert (found.kind, "AccessDenied" in found.text) == ("scan", True)
    store.put(key, failing.model_copy(update={"failing_since": None}).to_bytes())
    assert keys(world, 3) == []
    store.put(key, b"damaged")
    world.put_index(entry("orders", 0, 100, gaps=[gap(100, 150)]))
    assert "gap/kafka-1/orders/0-0/100" in keys(world, 4)


def test_what_cannot_be_read_is_told_of_and_hides_nothing_else(world: World) -> None:
    world.put_index(entry("orders", 0, 100, gaps=[gap(100, 150)]), entry("clicks", 0, 7, gaps=[gap(7, 9)]))
    assert len(keys(world)) == 2
    table = world.table("orders")
    ledger = landed(world, gaps=[gap(100, 150)])
    table.store.put(table.keys.ledger(ledger.n, ledger.attempt), b"{}")
    table.store.put(table.keys.deployment.committed_ledger("orders"), b"{}")
    assert keys(world, 1) == ["gap/kafka-1/clicks/0-0/7", "gap/kafka-1/orders/0-0/100"]
    found = looked(world, 3)
    assert [one.key for one in found if one.kind == "unreadable"] == ["unreadable/kafka-1/orders"]
    assert {"gap/kafka-1/clicks/0-0/7", "gap/kafka-1/orders/0-0/100"} < {one.key for one in found}


@pytest.mark.parametrize("damaged", ["log", "evidence", "verdict"])
def test_a_damaged_object_of_one_topic_is_told_of(world: World, damaged: str) -> None:
    table = world.table()
    ledger = landed(world)
    key = {
        "log": f"{table.keys.root}/_delta_log/00000000000000000001.json",
        "evidence": evidence_key(table, ledger.attempt),
        "verdict": table.keys.deployment.verdict("orders"),
    }[damaged]
    table.store.put(key, b"{ this is nothing")
    world.put_index(entry("orders", 0, 100), entry("clicks", 0, 7, gaps=[gap(7, 9)]))
    keys(world)
    assert keys(world, 2) == ["gap/kafka-1/clicks/0-0/7", "unreadable/kafka-1/orders"]


def test_an_index_that_does_not_parse_closes_nothing(world: World) -> None:
    world.put_index(entry("orders", 0, 100, gaps=[gap(100, 150)]))
    assert keys(world) == ["gap/kafka-1/orders/0-0/100"]
    world.raw.put(world.control.index(1), b"not an index")
    assert keys(world, 1) == ["gap/kafka-1/orders/0-0/100"]
    assert [one.kind for one in looked(world, 4)] == ["gap", "unreadable"]


def test_an_idle_topic_costs_no_request_and_an_active_one_a_single_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for topic in ("orders", "clicks"):
        landed(world, topic)
    world.put_index(entry("orders", 0, 100), entry("clicks", 0, 100))
    look_once = keys(world)
    requests = Requests(monkeypatch)
    assert (look_once, keys(world, 1)) == ([], [])
    # The index, the scan's status, sightings and incidents; four folders listed; three objects written.
    assert requests.counts == {"get": 4, "list": 4, "put": 3}
    landed(world, "clicks", 200)
    world.put_index(entry("orders", 0, 100), entry("clicks", 0, 200))
    requests.clear()
    assert keys(world, 2) == []
    assert [key for key in requests.gets if "_committed" in key] == ["_tidemark/_committed/kafka-1/clicks.json"]


def test_a_look_leaves_an_overview_that_follows_the_log_without_the_ledger(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    landed(world, "orders")
    world.put_index(entry("orders", 0, 100, log_end=130))
    assert keys(world) == []
    assert [(one.state, one.lag) for one in topics(world)] == [("unknown", 0), ("current", 30)]
    world.put_index(entry("orders", 0, 100, log_end=150))
    requests = Requests(monkeypatch)
    assert keys(world, 1) == []
    assert [one.lag for one in topics(world)] == [0, 50]
    assert not [key for key in requests.gets if "orders" in key]


def topics(world: World) -> tuple[TopicSummary, ...]:
    """The overview's topics, by name: clicks, orders."""
    found = Overview.load_or_none(world.table().store, world.deployment.deployment_keys(CLUSTER).overview)
    assert found is not None
    return found.topics


def test_two_who_look_at_once_make_one_incident(world: World) -> None:
    world.put_index(entry("orders", 0, 100, gaps=[gap(100, 150)]))
    found = [look(world.deployment, CLUSTER, read_sightings(world.deployment, CLUSTER), utc_now()) for _ in range(8)]
    barrier = threading.Barrier(len(found))

    def write(one: ClusterLook) -> None:
        barrier.wait()
        record(world.deployment, CLUSTER, one)

    threads = [threading.Thread(target=write, args=(one,)) for one in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [incident] = read_incidents(world.deployment, CLUSTER).incidents
    assert incident.revision == 1


def test_an_older_look_changes_nothing(world: World) -> None:
    world.put_index(entry("orders", 0, 100, gaps=[gap(100, 150)]))
    early = look(world.deployment, CLUSTER, read_sightings(world.deployment, CLUSTER), NOW)
    world.put_index(entry("orders", 0, 100))
    assert keys(world, 1) == []
    record(world.deployment, CLUSTER, early)
    assert read_incidents(world.deployment, CLUSTER).incidents == ()


def test_a_topic_of_which_no_agent_ever_told(world: World) -> None:
    """Its empty table is no comfort; people have a quarter of an hour to make the topic, or to start the agents."""
    world.raw.delete(world.control.incarnations("clicks"))
    seen(world, "click-stream")
    world.put_index(entry("orders", 0, 100))
    assert [unseen(world, minute) for minute in (0, 14)] == [[], []]
    [found] = unseen(world, 16)
    assert found.key == "unseen/kafka-1/clicks"
    assert "no agent of cluster kafka-1 has ever seen this topic" in found.text
    seen(world, "clicks")
    assert unseen(world, 17) == []


def unseen(world: World, minute: int) -> list[Incident]:
    return [one for one in looked(world, minute) if one.kind == "unseen"]


def test_a_topic_that_an_agent_leads_and_that_has_no_segment_yet_is_waited_for(world: World) -> None:
    world.raw.delete(world.control.incarnations("clicks"))
    world.put_index(entry("orders", 0, 100), entry("clicks", 0, 0))
    assert [unseen(world, minute) for minute in (0, 20)] == [[], []]


def test_a_catalog_that_lags_behind_is_told_once_it_lasts(tmp_path: Path) -> None:
    world = World(tmp_path / "world", "orders")
    seen(world, "orders")
    catalogs = [{"name": "main", "kind": "glue", "namespace": "kafka"}]
    world.write_topics(**yaml.safe_load(world.topics_file.read_text()), catalogs=catalogs)
    landed(world)
    where = world.deployment.deployment_keys(CLUSTER).mirrors
    assert keys(world) == []

    def status(since: datetime | None, at: datetime) -> None:
        one = MirrorState(
            topic="orders", catalog="main", identifier="kafka.orders", failing_since=since, error="no answer"
        )
        world.table("orders").store.put(where, MirrorStatus(cluster=CLUSTER, at=at, tables=(one,)).to_bytes())

    status(NOW, NOW)
    assert keys(world) == []
    status(NOW, NOW + 11 * MINUTE)
    assert keys(world, 11) == [f"mirror/{CLUSTER}/orders/main"]
    world.table("orders").store.put(where, b"{")
    assert keys(world, 12) == [f"mirror/{CLUSTER}/orders/main"], "not known is not mended"
    status(None, NOW + 13 * MINUTE)
    assert keys(world, 13) == []
    assert keys(world, 75) == [f"mirror/{CLUSTER}"], "the job does not run any more"


DAY = 24 * 60


def erasure(world: World, number: int = 1, *topics: str) -> ErasureRequest:
    """A request of now, due in 30 days."""
    names = topics or ("orders",)
    named = {"cluster": CLUSTER, "topics": tuple(SearchedTopic(topic=name) for name in names)}
    request = asked([b"ada@example.com"], number=number).model_copy(
        update={**named, "through": dict.fromkeys(names, ()), "at": NOW}
    )
    world.raw.put(world.control.erasure(request.id, "request"), request.to_bytes())
    return request


def test_a_request_for_erasure_opens_an_incident_before_it_is_missed(world: World) -> None:
    request = erasure(world)
    key = f"erasure/kafka-1/{request.id}"
    assert keys(world) == keys(world, 20 * DAY - 24 * 60) == []
    [found] = looked(world, 20 * DAY)
    assert (found.key, found.topic, found.revision) == (key, "orders", 1)
    assert found.title == f"kafka-1: erasure request {request.id} is due in 10 days"
    assert (found.text, found.likely) == ("orders: waiting", "nobody else has approved it")
    assert found.mend.startswith(f"tidemark erase approve {request.id} --by NAME; then start tidemark_erasure")
    told = f"{found.title} {found.text} {found.likely} {found.mend} {found.fact}"
    assert request.reason not in told, "which may say too much"
    approve(world.raw, request)
    [found] = looked(world, 25 * DAY)
    assert (found.title.rpartition("is ")[2], found.revision) == ("due in 5 days", 1), "people are told once"
    assert found.likely.startswith("the DAG tidemark_erasure is paused")
    tell(world.table(), 1, request.id, "refused", NOW + 25 * DAY * MINUTE, detail="too many")
    [found] = looked(world, 26 * DAY)
    assert (found.text, found.likely) == ("orders: refused, too many", "a pass found more records than it may erase")
    tell(world.table(), 2, request.id, "erased", NOW + 26 * DAY * MINUTE, "orders/0/7.log")
    [found] = looked(world, 31 * DAY)
    assert found.text == "orders: hidden, 1 object left: see the report"
    assert (found.title.rpartition("is ")[2], found.revision) == ("overdue by 1 day", 2), "and once more"
    assert f"tidemark erase report {request.id} names each" in found.mend
    tell(world.table(), 3, "", "erased", NOW + 31 * DAY * MINUTE)
    assert keys(world, 32 * DAY) == []


def test_a_request_that_only_a_lock_holds_open_is_due_again_after_its_date(world: World) -> None:
    request = erasure(world)
    approve(world.raw, request)
    until = NOW + 60 * DAY * MINUTE
    lock = Remaining(key="orders/0/7.log", version="3Lg", why="is kept by Object Lock in compliance mode", until=until)
    tell(world.table(), 1, request.id, "erased", NOW, raw=RawReport(remaining=(lock,)))
    assert keys(world, 29 * DAY) == keys(world, 66 * DAY) == []
    [found] = looked(world, 68 * DAY)
    assert found.title.rpartition("is ")[2] == "overdue by 1 day"
    assert found.text == f"orders: hidden, 1 object left, some until {until:%Y-%m-%d %H:%M} UTC: see the report"
    tell(world.table(), 2, "", "erased", NOW + 68 * DAY * MINUTE)
    assert keys(world, 69 * DAY) == []


def test_a_withdrawn_request_closes_its_incident(world: World) -> None:
    request = erasure(world)
    assert keys(world, 29 * DAY) == [f"erasure/kafka-1/{request.id}"]
    folder = ErasureFolder.of(world.deployment, CLUSTER)
    folder.withdraw(read_request(folder.cluster, request.id), "ada", "asked twice")
    assert keys(world, 30 * DAY) == []


def test_an_incident_of_a_request_about_several_topics_belongs_to_none(world: World) -> None:
    request = erasure(world, 1, "orders", "clicks", "gone")
    approve(world.raw, request)
    tell(world.table(), 1, request.id, "erased", NOW)
    tell(world.table("clicks"), 1, request.id, "waiting", NOW, detail="partition 0 has landed up to 7")
    [found] = looked(world, 29 * DAY)
    gone = "gone: approved, the topics file does not have it, so no pass searches it"
    assert found.topic is None
    assert found.text == f"orders: erased; clicks: waiting, partition 0 has landed up to 7; {gone}"
    assert found.likely == "the table has not landed all that the request covers"


def test_requests_for_erasure_are_read_once_an_hour_and_closed_ones_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, late = erasure(world, 1), erasure(world, 2)
    approve(world.raw, done)
    tell(world.table(), 1, done.id, "erased", NOW)
    open_key, done_key = (world.control.erasure(each.id, "request") for each in (late, done))
    requests = Requests(monkeypatch)

    def read(minute: int) -> list[str]:
        requests.clear()
        assert keys(world, minute) == [f"erasure/kafka-1/{late.id}"]
        return [key for key in requests.gets if key in {open_key, done_key}]

    assert read(30 * DAY) == [done_key, open_key]
    assert read(30 * DAY + 59) == []
    assert read(30 * DAY + 60) == [open_key]


def test_a_request_that_cannot_be_read_is_told_of_and_closes_nothing(world: World) -> None:
    request = erasure(world)
    assert keys(world, 30 * DAY) == [f"erasure/kafka-1/{request.id}"]
    other = world.control.erasure(f"{2:016x}", "request")
    world.raw.put(other, b"{}")
    assert keys(world, 30 * DAY + 60) == [f"erasure/kafka-1/{request.id}"], "perhaps not for long"
    assert keys(world, 30 * DAY + 62) == [f"erasure/kafka-1/{request.id}", "unreadable/kafka-1/erasure"]
    table = world.table()
    table.store.delete(table.keys.deployment.sightings)
    assert keys(world, 30 * DAY + 63) == [f"erasure/kafka-1/{request.id}"], "nor does a lost state"
    world.raw.delete(other)
    assert keys(world, 30 * DAY + 66) == [f"erasure/kafka-1/{request.id}"]
