"""Jobs that nobody's scheduler started tell OpenLineage what they read and wrote, by its own client over HTTP."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.spark.audit.test_audit import file_of
from tests.spark.compaction import of_few_files
from tests.spark.convert.test_parsers import json_parser, records
from tests.spark.inline import Inline
from tests.spark.live.live_world import LiveWorld
from tests.spark.world import World
from tests.support.lineage import LineageServer, names, runs
from tests.tidemark.kafka_log.build import T0, batch, simple
from tidemark.openlineage import hand_over
from tidemark.planning import plan_ingest, write_plan
from tidemark_spark.jobs.running import run_job

DT = "2026-02-02"
SHOWN = [b'{"id": 1}', b'{"id": 2}', b"no JSON"]
"""One of the three is refused."""


@pytest.fixture(autouse=True)
def _environment() -> Iterator[None]:
    """OpenLineage's client writes its settings into the environment, under names of its own: not for other tests."""
    with patch.dict(os.environ):
        yield


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[LineageServer]:
    """The receiver that the client's environment names; every event must be as the schemas want it."""
    with LineageServer() as running:
        monkeypatch.setenv("OPENLINEAGE_URL", running.url)
        yield running
    assert running.wrong == []


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A segment of three records, uploaded and not landed."""
    made = World(tmp_path, json_parser("{name: id, type: int64}"))
    text = made.topics_file.read_text()
    catalog = "{name: ice, kind: rest, uri: 'http://127.0.0.1:1/', namespace: db}"
    made.topics_file.write_text(f"bootstrap: {{east: 'kafka.east:9092'}}\ncatalogs: [{catalog}]\n{text}")
    made.raw.segment([batch(0, records(*SHOWN, at=[T0] * 3))])
    made.raw.publish()
    return made


def job(world: World, name: str, *options: str) -> int:
    """The exit code of the job of that name."""
    command = ["--topics", str(world.topics_file), "--topic", "orders", *options]
    return of_few_files.main(command, Inline()) if name == "compact" else run_job(name, command, Inline())


def places(world: World) -> dict[str, tuple[str, str]]:
    root = world.topics_file.parent
    return {
        "kafka": ("kafka://kafka.east:9092", "orders"),
        "raw": ("file", f"{root}/raw/east/orders"),
        "table": ("file", f"{root}/lake/orders"),
        "quarantine": ("file", f"{root}/lake/orders__quarantine"),
    }


def test_a_landing_tells_of_topic_raw_table_and_what_was_refused(world: World, server: LineageServer) -> None:
    assert job(world, "ingest") == 0

    began, ended = server.events
    at = places(world)
    assert [one["eventType"] for one in server.events] == ["START", "COMPLETE"]
    assert began["run"]["runId"] == ended["run"]["runId"]
    assert began["job"]["name"] == "tidemark_ingest.orders"
    assert names(began, "inputs") == names(ended, "inputs") == sorted([at["kafka"], at["raw"]])
    assert names(ended, "outputs") == sorted([at["table"], at["quarantine"]])
    [table] = [one for one in ended["outputs"] if one["name"] == at["table"][1]]
    assert table["outputFacets"]["outputStatistics"]["rowCount"] == 2
    [file] = (Path(at["table"][1]) / f"dt={DT}").glob("*.parquet")
    assert table["outputFacets"]["outputStatistics"]["size"] == file.stat().st_size
    assert table["outputFacets"]["outputStatistics"]["fileCount"] == 1
    assert table["facets"]["version"]["datasetVersion"] == "1"
    columns = {one["name"]: one for one in table["facets"]["schema"]["fields"]}
    assert columns["id"]["type"] == "long"
    assert columns["dt"]["type"] == "date"
    assert [one["name"] for one in columns["kafka_headers"]["fields"]] == ["key", "value"]
    [link] = table["facets"]["symlinks"]["identifiers"]
    assert link == {"namespace": "http://127.0.0.1:1", "name": "db.orders", "type": "TABLE"}
    [run] = runs(ended)
    assert run["offsets"] == [{"incarnation": 0, "partition": 0, "from": 0, "to": 3}]
    told = (run["kind"], run["status"], run["ledger"], run["dates"], run["rows"], run["quarantined"])
    assert told == ("ingest", "landed", 1, [DT], 2, 1)


def test_the_same_attempt_again_is_the_same_run_with_the_same_facets(world: World, server: LineageServer) -> None:
    """Also where its result was lost; then only the size of what it wrote is not known."""
    assert job(world, "ingest", "--attempt", "42") == job(world, "ingest", "--attempt", "42") == 0
    world.table.store.delete(world.table.keys.result(42))
    assert job(world, "ingest", "--attempt", "42") == 0

    first, again, lost = server.of("COMPLETE", "ingest")
    assert first["run"] == again["run"]
    assert first["outputs"] == again["outputs"]
    assert lost["run"]["runId"] == first["run"]["runId"]
    assert runs(lost)[0]["offsets"] == runs(first)[0]["offsets"]
    assert runs(lost)[0]["attempt"] == "42"
    [statistics] = [one["outputFacets"]["outputStatistics"] for one in lost["outputs"] if one["outputFacets"]]
    assert (statistics["rowCount"], statistics.get("size")) == (2, None)


def test_a_job_that_fails_tells_what_it_was_to_do_and_why(world: World, server: LineageServer) -> None:
    plan = plan_ingest(world.table)
    key = write_plan(world.table, plan)
    world.table.store.put(key, b"{", if_match=world.table.store.head(key).etag)
    assert job(world, "run_plan", "--plan", key) == 1

    began, ended = server.events
    assert ended["eventType"] == "FAIL"
    assert began["run"]["runId"] == ended["run"]["runId"]
    assert "FormatError" in ended["run"]["facets"]["errorMessage"]["message"]
    assert names(ended, "outputs") == [places(world)["table"]]
    assert "outputFacets" not in ended["outputs"][0] or not ended["outputs"][0]["outputFacets"]


def test_rebuilds_replays_and_compactions_read_what_they_read(world: World, server: LineageServer) -> None:
    at = places(world)
    assert job(world, "ingest") == 0
    assert job(world, "rebuild", "--from", DT, "--to", DT) == 0
    [rebuilt] = server.of("COMPLETE", "rebuild")
    assert names(rebuilt, "inputs") == [at["raw"]]
    assert runs(rebuilt)[0]["filesRemoved"] == 1
    assert runs(rebuilt)[0]["offsets"] == [{"incarnation": 0, "partition": 0, "from": 0, "to": 3}]

    assert job(world, "replay") == 0
    [replayed] = server.of("COMPLETE", "replay")
    assert names(replayed, "inputs") == [at["quarantine"]]
    assert runs(replayed)[0]["status"] == "empty", "it is still no JSON"
    assert names(replayed, "outputs") == []

    for offset in (3, 4):
        world.raw.segment([batch(offset, records(b'{"id": 4}'))])
        world.raw.publish()
        assert job(world, "ingest") == 0
    assert job(world, "compact", "--dt", DT) == 0
    [merged] = server.of("COMPLETE", "compact")
    assert names(merged, "inputs") == names(merged, "outputs") == [at["table"]]
    assert merged["outputs"][0]["outputFacets"]["outputStatistics"]["fileCount"] == 1


def test_an_audits_findings_are_failed_assertions(world: World, server: LineageServer) -> None:
    assert job(world, "ingest") == 0
    assert job(world, "audit", "--dt", DT) == 0
    Path(places(world)["table"][1], file_of(world, DT).path).unlink()
    assert job(world, "audit", "--dt", DT) == 1

    [passed], [failed] = server.of("COMPLETE", "audit"), server.of("FAIL", "audit")
    assert names(passed, "inputs") == sorted([places(world)["raw"], places(world)["table"]])
    assert failures(passed) == []
    assert "missing_file" in failures(failed)
    assert runs(failed)[0]["findings"] >= 1
    assert names(failed, "outputs") == []


def failures(event: dict[str, Any]) -> list[str]:
    """The assertions that did not hold."""
    [found] = [one["inputFacets"]["dataQualityAssertions"] for one in event["inputs"] if one.get("inputFacets")]
    return [one["assertion"] for one in found["assertions"] if not one["success"]]


def test_what_removes_nothing_writes_no_dataset(world: World, server: LineageServer) -> None:
    assert job(world, "ingest") == 0
    topics = ["--topics", str(world.topics_file)]
    assert run_job("retain", [*topics, "--topic", "orders"]) == 0
    assert run_job("retain_packs", [*topics, "--cluster", "east"]) == 0
    assert run_job("vacuum", [*topics, "--topic", "orders"]) == 0
    kinds = [
        one["kind"] for name in ("retain", "vacuum") for event in server.of("COMPLETE", name) for one in runs(event)
    ]
    assert kinds == ["retention of table", "retention of raw", "retention of packs", "vacuum"]
    assert [names(one, "outputs") for name in ("retain", "vacuum") for one in server.of("COMPLETE", name)] == [[]] * 3


def test_an_export_tells_where_its_files_are(world: World, server: LineageServer) -> None:
    out = world.topics_file.parent / "out"
    assert job(world, "export", "--to", f"file://{out}") == 0
    [ended] = server.of("COMPLETE", "export")
    assert names(ended, "inputs") == [places(world)["raw"]]
    assert names(ended, "outputs") == [("file", str(out))]
    assert ended["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 3


@pytest.mark.parametrize(
    ("name", "options"),
    [("ingest", ["--dry-run"]), ("ingest", ["--lineage", "off"]), ("compact", ["--dry-run"])],
    ids=["a dry run", "switched off", "a dry compaction"],
)
def test_no_event_without_reason(world: World, server: LineageServer, name: str, options: list[str]) -> None:
    assert job(world, name, *options) == 0
    assert server.events == []


def test_the_clients_own_switch_holds(world: World, server: LineageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENLINEAGE_DISABLED", "true")
    assert job(world, "ingest") == 0
    assert server.events == []


def test_without_a_receiver_nothing_is_loaded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [one for one in sys.modules if one.partition(".")[0] == "openlineage"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "openlineage", None)
    assert job(world, "ingest") == 0


def test_a_receiver_that_refuses_fails_no_job_and_is_told(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config: dict[str, Any] = {"type": "http", "url": "http://127.0.0.1:1", "retry": {"total": 0}}
    for name, value in config.items():
        text = json.dumps(value) if isinstance(value, dict) else value
        monkeypatch.setenv(f"OPENLINEAGE__TRANSPORT__{name.upper()}", text)
    assert job(world, "ingest") == 0
    assert "lineage: not reported" in capsys.readouterr().err
    assert world.ledger.rows == 2


def test_a_client_that_is_missing_fails_no_job_and_is_told(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENLINEAGE_URL", "http://127.0.0.1:1")
    for name in [one for one in sys.modules if one.partition(".")[0] == "openlineage"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "openlineage", None)
    assert job(world, "ingest") == 0
    assert "is not installed, so no event is sent" in capsys.readouterr().err


@pytest.mark.parametrize("cluster", [(), ("--cluster", "east")], ids=["of the topic", "named"])
def test_where_a_task_waits_for_it_lineage_is_handed_over_and_not_sent(
    world: World, server: LineageServer, cluster: tuple[str, ...]
) -> None:
    place = hand_over.new_place()
    assert job(world, "ingest", *cluster, "--lineage", place) == 0
    assert server.events == []

    found = hand_over.read(world.table.deployment, "east", place)
    assert found is not None
    assert [one.key for one in found.inputs] == [places(world)["kafka"], places(world)["raw"]]
    assert found.run["tidemark_runs"]["runs"]
    assert hand_over.read(world.table.deployment, "east", hand_over.new_place()) is None
    hand_over.remove(world.table.deployment, "east", place)
    assert hand_over.read(world.table.deployment, "east", place) is None


def test_lineage_of_topics_of_two_clusters_has_no_place(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    path = world.topics_file
    path.write_text(f"{path.read_text()}\n  - {{topic: orders, cluster: west, table: others}}\n")
    run_job("retain", ["--topics", str(path), "--lineage", hand_over.new_place()])
    assert "lineage: not reported: retain.py: --cluster: must be the cluster" in capsys.readouterr().err
    assert not (world.topics_file.parent / "lake" / "_tidemark" / "_lineage").exists()


def test_a_live_landing_tells_of_each_topic_and_so_does_its_compaction(tmp_path: Path, server: LineageServer) -> None:
    live = LiveWorld(tmp_path, "orders", "clicks")
    command = ["--topics", str(live.topics_file), "--cluster", "east"]
    for _ in range(4):
        for topic in live.topics.values():
            raw = topic.raw
            raw.segment([simple(raw.partition().end)])
        live.due()
        assert run_job("land_live", command, Inline()) == 0
    assert run_job("compact_live", command, Inline()) == 0

    began, ended = server.events[:2]
    tables = [("file", f"{tmp_path}/lake/{name}") for name in ("clicks", "orders")]
    assert names(began, "outputs") == names(ended, "outputs") == tables
    assert {run["topic"]: run["offsets"][0]["from"] for run in runs(ended)} == {"clicks": 0, "orders": 0}
    [merged] = server.of("COMPLETE", "compact_live")
    assert merged["job"]["name"] == "tidemark_compact_live.east"
    assert names(merged, "inputs") == names(merged, "outputs") == tables
    assert {(run["kind"], run["status"]) for run in runs(merged)} == {("compact", "landed")}
