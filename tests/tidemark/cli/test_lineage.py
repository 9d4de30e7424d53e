"""``tidemark lineage``: what is counted of raw, table and catalogs, and what is said of producers and readers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.spark.world import World
from tests.support.ports import HOST
from tests.support.receivers import Serving
from tests.tidemark.cli.test_cli import call
from tests.tidemark.kafka_log.build import simple, transactional
from tidemark.formats.table.statuses import MirrorState, MirrorStatus
from tidemark.timestamps import utc_now

DT = "2026-02-02"


READERS = [
    {"dag": "daily_orders", "task": "", "asset": "orders.final"},
    {"dag": "report", "task": "read", "asset": "orders"},
]


class Page(Serving):
    """The page's API, as Airflow mounts it; tests/plugins/web try the real one."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, str | None]] = []
        self.server = ThreadingHTTPServer((HOST, 0), _handler(self))


def _handler(server: Page) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server.asked.append((self.path, self.headers["Authorization"]))
            body = json.dumps({"readers": READERS}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    return Handler


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    monkeypatch.setenv("TIDEMARK_AIRFLOW_TOKEN", "t0ken")
    with Page() as server:
        yield server


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Two partitions, landed, in a catalog that lists an older commit and one that fails."""
    made = World(tmp_path)
    text = made.topics_file.read_text()
    names = ", ".join(
        f"{{name: {one}, kind: rest, uri: 'http://127.0.0.1:1', namespace: db}}" for one in ("ice", "lost", "new")
    )
    made.topics_file.write_text(f"catalogs: [{names}]\n{text}")
    made.raw.segment([simple(0), transactional(3, 7, 2, epoch=4)])
    made.raw.segment([simple(0)], 1)
    made.land()
    now = utc_now()
    states = (
        MirrorState(topic="orders", catalog="ice", identifier="db.orders", ledger_n=0, at=now),
        MirrorState(topic="orders", catalog="lost", identifier="db.orders", failing_since=now, error="no answer"),
    )
    status = MirrorStatus(cluster="east", at=now, tables=states)
    made.table.store.put("_tidemark/_mirrors/east.json", status.to_bytes())
    return made


def shown(world: World, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    code, output, _ = call(capsys, "lineage", "orders", "--topics", world.topics_file, "-o", "json", *more)
    assert code == 0
    found: dict[str, Any] = json.loads(output)
    return found


def test_it_counts_what_is_stored_and_what_the_table_has(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    found = shown(world, capsys)
    root = world.topics_file.parent
    logs = [path.stat().st_size for path in (root / "raw").rglob("*.log")]
    assert (found["kafka"], found["producers"], found["readers"]) == (
        {"namespace": "kafka://east", "name": "orders"},
        None,
        None,
    )
    raw, table = found["raw"], found["table"]
    assert (raw["dataset"]["namespace"], raw["dataset"]["name"]) == ("file", f"{root}/raw/east/orders")
    ends = [world.raw.partition(one).end for one in (0, 1)]
    assert (raw["partitions"], raw["segments"], raw["bytes"], raw["offsets"]) == (2, 2, sum(logs), sum(ends))
    files = [path.stat().st_size for path in (root / "lake" / "orders").rglob("*.parquet")]
    assert (table["files"], table["bytes"], table["rows"]) == (len(files), sum(files), world.ledger.rows)
    assert (table["ledger"], table["delta_version"]) == (1, 1)
    assert (table["dates"], table["first_date"], table["last_date"]) == (1, DT, DT)
    assert {"name": "kafka_offset", "kind": "long"} in table["columns"]


def test_it_says_what_each_catalog_lists(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    listed = {one["catalog"]: one for one in shown(world, capsys)["catalogs"]}
    assert (listed["ice"]["state"]["identifier"], listed["ice"]["behind"]) == ("db.orders", 1)
    assert listed["lost"]["state"]["error"] == "no answer"
    assert listed["new"] == {"catalog": "new", "state": None, "behind": 1}


def test_producers_are_ids_and_epochs_for_who_asks(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    found = shown(world, capsys, "--producers")
    assert found["producers"] == [{"incarnation": 0, "partition": 0, "producer_id": 7, "epoch": 4}]


def test_readers_are_what_airflow_says_of_the_topic(
    world: World, capsys: pytest.CaptureFixture[str], airflow: Page
) -> None:
    where = ["--airflow", f"http://{HOST}:{airflow.port}"]
    assert shown(world, capsys, *where)["readers"] == READERS
    assert airflow.asked == [("/tidemark/api/topics/east/orders/readers", "Bearer t0ken")]


def test_people_see_the_same(world: World, capsys: pytest.CaptureFixture[str], airflow: Page) -> None:
    where = ["--airflow", f"http://{HOST}:{airflow.port}", "--producers"]
    code, output, _ = call(capsys, "lineage", "orders", "--topics", world.topics_file, *where)
    assert code == 0
    for part in (
        "topic    kafka://east orders",
        "0/0: producer 7, epoch 4",
        "2 partitions: 2 segments",
        "Delta version 1, ledger 1",
        f"1 dates, {DT} to {DT}",
        "catalog  ice: db.orders, ledger 0, 1 commits behind",
        "catalog  lost: fails since",
        "catalog  new: not listed yet",
        "reader   report, task read: orders",
        "reader   daily_orders: orders.final",
    ):
        assert part in output
