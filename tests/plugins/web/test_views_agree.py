"""Every view says the same of a topic: list and page, `status`, `continuity` and `incidents`, and their exit codes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from tests.plugins.web.page_server import ANN, PageServer
from tests.plugins.world import CLUSTER, DATE, TOPIC_ID, World, commit, entry, gap, state
from tidemark.cli.app import app
from tidemark.formats.raw.gaps import Gap
from tidemark.formats.raw.incarnations import TopicIncarnations
from tidemark.formats.raw.watermark_index import IndexEntry
from tidemark.formats.table.audit_report import AuditFinding, AuditReport, AuditVerdict
from tidemark.formats.table.ledger import DateState
from tidemark.kafka_log import OpenTransaction
from tidemark.monitoring.incident_store import watch
from tidemark.monitoring.judgement import WORDS, TopicState, exit_code
from tidemark.table.delta_table import committed_ledger
from tidemark.table.evidence import EvidenceRow, OffsetClass, evidence_key
from tidemark.timestamps import utc_now
from tidemark_airflow.web.reader import reader

PLANTED: dict[str, TopicState] = {
    "all-landed": "complete",
    "no-records": "complete",
    "nothing-landed": "behind",
    "rest-in-kafka": "current",
    "waiting": "behind",
    "unread-by-a-new-leader": "complete",
    "open-transaction": "held",
    "gap-above-the-ledger": "gap",
    "gap-of-the-ledger": "gap",
    "gap-at-the-start": "gap",
    "gap-acknowledged": "complete",
    "final-dates": "complete",
    "late": "late",
    "stuck": "late",
    "refused": "attention",
    "tampered": "unequal",
    "evidence-gone": "unequal",
}
MISSING = {"gap-above-the-ledger": 100, "gap-of-the-ledger": 50, "gap-at-the-start": 40}
DAYS = {"2026-03-01": DateState(state="final", rows=0), "2026-03-02": DateState(state="final_incomplete", rows=0)}


class Planted(World):
    """A topic of one partition for each of :data:`PLANTED`."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, *PLANTED)
        self.now = utc_now()
        self._brokers = iter(range(1, 100))
        for topic in PLANTED:
            lives = TopicIncarnations(topic=topic).with_topic_id(TOPIC_ID, self.now)
            self.raw.put(self.control.incarnations(topic), lives.to_bytes())
        self._land("late", 100)
        self._tell(entry("late", 0, 200, observed_at=self.now))
        self._land("stuck", 100)
        self._tell(
            entry("stuck", 0, 100, log_end=400, observed_at=self.now).model_copy(update={"active_base_offset": 300})
        )
        watch(self.deployment, CLUSTER, self.now - timedelta(minutes=27))
        self._plant()
        watch(self.deployment, CLUSTER, self.now)

    def _plant(self) -> None:
        for topic in ("all-landed", "unread-by-a-new-leader", "refused", "tampered", "evidence-gone", "final-dates"):
            refused = 30 if topic == "refused" else 0
            self._land(topic, 100, refused=refused, days=DAYS if topic == "final-dates" else {})
        for topic in ("all-landed", "refused", "tampered", "evidence-gone", "final-dates"):
            self._tell(entry(topic, 0, 100, observed_at=self.now))
        unread = entry("unread-by-a-new-leader", 0, 0, log_end=100, observed_at=self.now)
        self._tell(unread.model_copy(update={"packs_known": False}))
        self._tell(entry("no-records", 0, 0, observed_at=self.now))
        self._tell(entry("nothing-landed", 0, 1500, observed_at=self.now))
        self._land("rest-in-kafka", 100)
        self._tell(entry("rest-in-kafka", 0, 100, log_end=300, observed_at=self.now))
        self._land("waiting", 100)
        self._tell(entry("waiting", 0, 200, observed_at=self.now))
        self._land("open-transaction", 100, held=True)
        self._tell(entry("open-transaction", 0, 200, observed_at=self.now))
        self._land("gap-above-the-ledger", 100)
        self._tell(entry("gap-above-the-ledger", 0, 300, gaps=[gap(300, 400)], uploaded_end=500, observed_at=self.now))
        self._land("gap-of-the-ledger", 100, gaps=[gap(100, 150)])
        self._tell(entry("gap-of-the-ledger", 0, 500, observed_at=self.now))
        self._tell(
            entry("gap-at-the-start", 0, 0, gaps=[gap(0, 40)], uploaded_end=100, log_end=100, observed_at=self.now)
        )
        self._land("gap-acknowledged", 400, acknowledged=100)
        self._tell(entry("gap-acknowledged", 0, 400, observed_at=self.now))
        for topic in ("tampered", "evidence-gone"):
            self._fail_audit(topic)
        table = self.table("evidence-gone")
        table.store.delete(evidence_key(table, committed_ledger(table).attempt))

    def _tell(self, one: IndexEntry) -> None:
        self.put_index(one, broker=next(self._brokers))

    def _land(
        self,
        topic: str,
        end: int,
        *,
        refused: int = 0,
        acknowledged: int = 0,
        gaps: Iterable[Gap] = (),
        held: bool = False,
        days: dict[str, DateState] | None = None,
    ) -> None:
        """Offsets up to ``end``, the last of which were refused or given up."""
        rows = end - refused - acknowledged
        classes: list[tuple[OffsetClass, int]] = [
            ("landed", rows),
            ("quarantined", refused),
            ("acknowledged", acknowledged),
        ]
        first, evidence = 0, []
        for name, count in classes:
            if count:
                day = date.fromisoformat(DATE) if name != "acknowledged" else None
                file = f"dt={DATE}/part-{name}.parquet" if day else None
                evidence.append(EvidenceRow(0, 0, first, first + count, name, count, day, file=file))
            first += count
        opened = [OpenTransaction(producer_id=9, producer_epoch=0, first_offset=end)] if held else []
        states = {DATE: DateState(rows=rows), **(days or {})}
        commit(self.table(topic), state(0, end, gaps=gaps, held_by=opened), states=states, evidence=evidence)

    def _fail_audit(self, topic: str) -> None:
        finding = AuditFinding(kind="stray_rows", dt=DATE, detail="two")
        found = AuditReport(
            cluster=CLUSTER,
            topic=topic,
            table=topic,
            ledger_n=1,
            started_at=self.now,
            seconds=1,
            bytes_read=1,
            dates=(DATE,),
            findings=(finding,),
        )
        verdict = AuditVerdict(cluster=CLUSTER, topic=topic, audited_at=self.now).after(found, "url")
        table = self.table(topic)
        table.store.put(table.keys.deployment.verdict(topic), verdict.to_bytes())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    home = tmp_path_factory.mktemp("views")
    with PageServer(Planted(home / "world"), home) as running:
        yield running


@pytest.fixture
def ann(server: PageServer) -> Iterator[httpx.Client]:
    with server.client(ANN) as client:
        yield client


def get(client: httpx.Client, path: str) -> Any:
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


def told(server: PageServer, command: str, *topic: str) -> tuple[int, Any]:
    """(exit code, the answer) of a command."""
    asked = [command, *topic, "--topics", str(server.world.topics_file), "--output", "json"]
    found = CliRunner().invoke(app, asked)
    return found.exit_code, json.loads(found.stdout)


def test_every_state_is_planted_but_the_one_that_nobody_can_see() -> None:
    assert {*PLANTED.values(), "unknown"} == {*WORDS}


@pytest.mark.parametrize("topic", PLANTED)
def test_all_views_agree(server: PageServer, ann: httpx.Client, topic: str) -> None:
    expected = PLANTED[topic]
    [listed] = [one for one in get(ann, "api/topics")["topics"] if one["topic"] == topic]
    page = get(ann, f"api/topics/{CLUSTER}/{topic}")
    [strip] = get(ann, f"api/topics/{CLUSTER}/{topic}/partitions")["partitions"]
    code, status = told(server, "status", topic)
    continuity_code, continuity = told(server, "continuity", topic)
    _, [cluster] = told(server, "incidents")

    states = {listed["state"], page["state"], status["state"], continuity["state"]}
    assert states == {expected}
    assert {code, continuity_code} == {exit_code(expected)}
    assert continuity["sound"] is (exit_code(expected) == 0)

    [of_status], [of_continuity] = status["partitions"], continuity["partitions"]
    assert strip["state"] == of_status["state"]
    assert of_continuity["state"] == ("unequal" if topic == "evidence-gone" else of_status["state"])
    assert (strip["landed"] or 0) == of_status["next_offset"] == of_continuity["next_offset"]
    assert page["missing"] == listed["missing"] == MISSING.get(topic, 0)
    assert of_continuity["lost"] + of_continuity["corrupt"] == page["missing"]
    assert [one["from"] for one in of_status["gaps"]] == [one["start"] for one in strip["gaps"]]
    assert of_status["gaps"] == of_continuity["gaps"]
    assert listed["lag"] == page["lag"] == continuity["lag"] == strip["lag"]

    open_ones = [one["title"] for one in cluster["incidents"] if one["topic"] == topic and one["closed_at"] is None]
    assert open_ones == [one["title"] for one in page["incidents"]] == status["incidents"]
    assert open_ones == [one["title"] for one in continuity["incidents"]]
    assert len(open_ones) == listed["incidents"]
    assert bool(open_ones) is WORDS[expected].needs_person, "who is told is also shown"


def test_dates_are_the_same_everywhere(server: PageServer, ann: httpx.Client) -> None:
    [listed] = [one for one in get(ann, "api/topics")["topics"] if one["topic"] == "final-dates"]
    shown = {one["dt"]: one["state"] for one in get(ann, f"api/topics/{CLUSTER}/final-dates/dates")["dates"]}
    _, status = told(server, "status", "final-dates")
    assert shown == {dt: one["state"] for dt, one in status["dates"].items()}
    assert (listed["final_to"], listed["incomplete"]) == ("2026-03-02", 1)


def test_a_new_gap_is_in_each_view_before_anybody_has_looked(server: PageServer, ann: httpx.Client) -> None:
    """The watch looks each minute; the store knows before."""
    before = server.world.raw.get(key := _index_of(server.world, "all-landed")).body
    try:
        one = entry("all-landed", 0, 100, gaps=[gap(100, 130)], uploaded_end=200, observed_at=utc_now())
        server.world.put_index(one, broker=int(key.rpartition("/")[2].removesuffix(".json")))
        reader.cache_clear()  # which keeps an answer for five seconds
        page = get(ann, f"api/topics/{CLUSTER}/all-landed")
        status, continuity = told(server, "status", "all-landed"), told(server, "continuity", "all-landed")
    finally:
        server.world.raw.put(key, before)
        reader.cache_clear()
    assert (status[0], continuity[0]) == (1, 1)
    assert (page["state"], status[1]["state"], continuity[1]["state"]) == ("gap", "gap", "gap")


def _index_of(world: World, topic: str) -> str:
    [key] = [
        one.key for one in world.raw.list(world.control.indexes) if f'"{topic}"'.encode() in world.raw.get(one.key).body
    ]
    return key
