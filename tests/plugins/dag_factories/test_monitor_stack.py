"""The watch on Airflow's own processes, with a real SMTP server and a real web hook at the other end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.plugins.shared_stack import SharedStack
from tests.plugins.world import CLUSTER, DATE, LONG_AGO, World, commit, entry, gap, state
from tests.support.receivers import SECRET, HookServer, SmtpServer
from tests.support.waiting import wait_until
from tidemark.formats.raw.watermark_index import IndexEntry, WatermarkIndex
from tidemark.formats.table.audit_report import AuditFinding, AuditReport, AuditVerdict
from tidemark.monitoring.incident_store import read_incidents
from tidemark.monitoring.observer_state import Sightings, TopicSighting
from tidemark.table.evidence import EvidenceRow, evidence_key, to_parquet
from tidemark.timestamps import utc_now

WATCH = "tidemark_watch"
EVERY_RUN = "~"  # to Airflow's API
ALL = {
    "gap/kafka-1/orders/0-0/100",
    "stuck/kafka-1/orders/0-1",
    "late/kafka-1/orders",
    "quarantine/kafka-1/orders",
    f"audit/kafka-1/orders/{DATE}",
    "agent_gone/kafka-1/9",
}


@pytest.fixture(scope="module")
def world(stack: SharedStack) -> Iterator[World]:
    # A topic that was never observed would have some minutes for its first rows, in which it is not late.
    known = Sightings(cluster=CLUSTER, at=LONG_AGO, topics={"orders": TopicSighting(first_at=LONG_AGO)})
    table = stack.watched.table("orders")
    table.store.put(table.keys.deployment.sightings, known.to_bytes())
    stack.client.wait_for_dag(WATCH)
    stack.client.unpause(WATCH)
    yield stack.watched
    stack.client.pause(WATCH)


def look(stack: SharedStack) -> str:
    """Have the watch look once more, from now on; its run."""
    run = stack.client.trigger(WATCH)
    assert stack.client.wait_for_run(WATCH, run) == "success", stack.client.task_instances(WATCH, run)
    return run


def provoke(world: World) -> None:
    """One of each, all of the topic ``orders``; ``idle`` has landed all that it has."""
    table = world.table("orders")
    rows = [
        EvidenceRow(0, 0, 0, 90, "landed", 90, file="landed"),
        EvidenceRow(0, 0, 90, 100, "quarantined", 10, file="refused"),
    ]
    table.store.put(evidence_key(table, 7), to_parquet(rows, configuration="c", code="c", attempt=7))
    commit(table, state(0, 100), state(1, 100), attempt=7)
    commit(world.table("idle"), state(0, 50))
    rotated = entry("orders", 1, 100).model_copy(update={"active_base_offset": 200})
    put(world, entry("orders", 0, 100, gaps=[gap(100, 150)]), rotated, entry("orders", 2, 70), entry("idle", 0, 50))
    put(world, entry("orders", 3, 0), broker=9, silent=True)
    audit(world, failed=True)


def mend(world: World) -> None:
    """All of it."""
    commit(world.table("orders"), state(0, 200), state(1, 200), state(2, 70), kind="replay")
    put(world, entry("orders", 0, 200), entry("orders", 1, 200), entry("orders", 2, 70), entry("idle", 0, 50))
    put(world, entry("orders", 3, 0), broker=9)
    audit(world, failed=False)


def put(world: World, *entries: IndexEntry, broker: int = 1, silent: bool = False) -> None:
    written_at = LONG_AGO if silent else utc_now()
    index = WatermarkIndex(cluster=CLUSTER, broker=broker, agent_version="test", written_at=written_at, entries=entries)
    world.raw.put(world.control.index(broker), index.to_bytes())


def audit(world: World, *, failed: bool) -> None:
    report = AuditReport(
        cluster=CLUSTER,
        topic="orders",
        table="orders",
        ledger_n=1,
        started_at=utc_now(),
        seconds=1,
        bytes_read=1,
        dates=(DATE,),
        findings=(AuditFinding(kind="stray_rows", dt=DATE, detail="two"),) if failed else (),
    )
    table = world.table("orders")
    verdict = AuditVerdict(cluster=CLUSTER, topic="orders", audited_at=utc_now()).after(report, "report")
    table.store.put(table.keys.deployment.verdict("orders"), verdict.to_bytes())


def test_each_incident_reaches_people_once_and_closes_by_itself(
    stack: SharedStack, world: World, smtp: SmtpServer, hook: HookServer
) -> None:
    run = look(stack)
    assert (hook.told, smtp.subjects) == ([], []), "an idle deployment raises nothing"
    assert {one["task_id"]: one["state"] for one in stack.client.task_instances(WATCH, run)} == {
        "observe": "success",
        "deliver": "skipped",
    }

    provoke(world)
    look(stack)
    look(stack)
    look(stack)
    assert Counter(hook.told) == {(key, "opened"): 1 for key in ALL}
    assert Counter(smtp.subjects) == {str(body["subject"]): 1 for body in hook.bodies}
    known = read_incidents(world.deployment, CLUSTER).incidents
    assert {one.key for one in known if one.open} == ALL
    assert {name for one in known for name in one.delivered} == {"hook", "mail"}
    lost = next(one for one in hook.bodies if one["kind"] == "gap")
    assert lost["link"] == f"{stack.url}/tidemark/?topic=kafka-1/orders&partition=0"
    assert (lost["incidents"][0]["offsets"], lost["incidents"][0]["start"]) == (50, 100)
    assert "tidemark acknowledge-gap orders 0 100 150" in next(one for one in smtp.texts if "acknowledge-gap" in one)

    mend(world)
    look(stack)
    assert Counter(hook.told) == {(key, status): 1 for key in ALL for status in ("opened", "closed")}
    assert len(smtp.subjects) == 2 * len(ALL)


def test_a_message_that_was_not_taken_is_sent_by_the_next_try_and_the_other_notifier_only_once(
    stack: SharedStack, world: World, smtp: SmtpServer, hook: HookServer
) -> None:
    before = len(hook.bodies), len(smtp.mails)
    mailing = {"task_id": "deliver", "state": "up_for_retry"}
    refused: list[str] = []

    def tried() -> bool:
        found = stack.client.task_instances(WATCH, EVERY_RUN)
        refused.extend(one["dag_run_id"] for one in found if mailing.items() <= one.items())
        return bool(refused)

    smtp.refusing = True
    try:
        put(world, entry("orders", 0, 200, gaps=[gap(200, 300)]))
        run = stack.client.trigger(WATCH)
        # By that run, or by the one of this minute, should it begin just now.
        wait_until(tried, what="the mail to be refused", interval=0.5)
    finally:
        smtp.refusing = False
    assert {stack.client.wait_for_run(WATCH, one) for one in (refused[0], run)} == {"success"}
    assert (len(hook.bodies), len(smtp.mails)) == (before[0] + 1, before[1] + 1)
    labels = {one["rendered_map_index"] for one in stack.client.task_instances(WATCH, refused[0])}
    assert "mail: opened gap/kafka-1/orders/0-0/200" in labels


def test_a_topics_file_that_does_not_load_is_told_of_and_closes_nothing(
    stack: SharedStack, world: World, hook: HookServer
) -> None:
    """Such as the gap of the test before."""
    right, before = world.topics_file.read_text(), len(hook.bodies)
    world.topics_file.write_text(f"{right}\nfreshnes: 1m\n")
    look(stack)
    world.topics_file.write_text(right)
    look(stack)

    key = "topics_file/kafka-1"
    assert hook.told[before:] == [(key, "opened"), (key, "closed")]
    assert "freshnes: is not a known key" in hook.bodies[before]["text"]


def test_no_secret_is_in_a_log_or_an_xcom(stack: SharedStack) -> None:
    logs = [path.read_text(errors="replace") for path in (stack.home / "logs").rglob("*.log")]
    assert logs
    assert not [one for one in logs if SECRET in one]
    database = b"".join(path.read_bytes() for path in stack.home.glob("airflow.db*"))  # with what is not merged yet
    assert SECRET.encode() not in database
