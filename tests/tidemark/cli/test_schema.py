from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tidemark.cli.app import app
from tidemark.formats.table.schema_state import Definition, SchemaChange, SchemaState, SchemaStep, SchemaVersion
from tidemark.monitoring import topic_conditions
from tidemark.monitoring.observation import look
from tidemark.monitoring.observer_state import Sightings
from tidemark.table.delta_table import TopicTable, configured_table
from tidemark.topics import load_topics

AT = datetime(2026, 11, 20, 8, tzinfo=UTC)
TOPICS = """
raw: {url: 'file://ROOT/raw'}
lake: 'file://ROOT/lake'
cluster: east
registries: {main: {url: 'http://127.0.0.1:1'}}
topics:
  - topic: orders
    parser:
      kind: avro
      framing: confluent
      schema: {registry: main, subject: orders-value}
  - topic: plain
"""
ADDED = SchemaChange(path="vip", kind="added", detail="boolean")
WIDER = SchemaChange(path="id", kind="wider", detail="int becomes long")
MISFIT = SchemaChange(path="note", kind="misfit", detail="string becomes int")


@pytest.fixture
def table(tmp_path: Path) -> TopicTable:
    for name in ("raw", "lake"):
        (tmp_path / name).mkdir()
    file = tmp_path / "topics.yaml"
    file.write_text(TOPICS.replace("ROOT", str(tmp_path)))
    deployment = load_topics(file)
    return configured_table(deployment, deployment.topic("orders"))


def state(*waiting: SchemaChange, **more: object) -> SchemaState:
    definition = base64.b64encode(b'{"type":"record"}').decode()
    proposal = Definition(number=17, version=7, at=AT, changes=waiting, definition=definition) if waiting else None
    return SchemaState(
        kind="avro",
        subject="orders-value",
        adopted=Definition(number=16, version=6, at=AT, changes=(ADDED,), definition=definition),
        history=(SchemaStep(number=16, version=6, at=AT, changes=(ADDED,)),),
        newest=SchemaVersion(number=17, version=7, at=AT),
        proposal=proposal,
    ).model_copy(update=more)


def command(tmp_path: Path, *arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["schema", *arguments, "--topics", str(tmp_path / "topics.yaml")])
    return done.exit_code, done.output or str(done.exception)


def test_what_was_adopted_and_what_waits_is_shown(table: TopicTable, tmp_path: Path) -> None:
    assert command(tmp_path, "show", "orders") == (0, "orders: nothing was adopted yet; its next run does it\n")
    table.store.put(table.keys.schema, state().to_bytes())
    code, text = command(tmp_path, "show", "orders")
    assert code == 0
    assert "orders: orders-value, version 6, adopted 2026-11-20 08:00:00 UTC" in text
    assert "version 6, 2026-11-20 08:00:00 UTC: vip added (boolean)" in text
    table.store.put(table.keys.schema, state(WIDER, unanswered_since=AT, reason="answered 503").to_bytes())
    code, text = command(tmp_path, "show", "orders")
    assert code == 1
    assert "version 7 waits: id wider (int becomes long)" in text
    assert "has not answered since 2026-11-20 08:00:00 UTC: answered 503" in text
    code, text = command(tmp_path, "show", "orders", "--output", "json")
    answer = json.loads(text)
    assert (code, answer["definition"], answer["proposal"]["version"]) == (1, {"type": "record"}, 7)
    assert "definition" not in answer["proposal"]


def test_what_is_dismissed_is_no_incident_any_more(table: TopicTable, tmp_path: Path) -> None:
    table.store.put(table.keys.schema, state(MISFIT).to_bytes())
    assert "version 8 does not wait" in command(tmp_path, "dismiss", "orders", "--version", "8")[1]
    assert conditions(table) == ["schema/east/orders"]
    assert command(tmp_path, "dismiss", "orders", "--version", "7")[0] == 0
    assert command(tmp_path, "show", "orders")[0] == 0
    assert conditions(table) == []


def test_a_topic_that_follows_nothing_is_an_error(table: TopicTable, tmp_path: Path) -> None:
    del table
    assert "east/plain follows no registry" in command(tmp_path, "show", "plain")[1]


def conditions(table: TopicTable) -> list[str]:
    """The keys of the conditions about schemas that an observation of the cluster finds, patience aside."""
    found = look(table.deployment, "east", Sightings(cluster="east", at=AT), AT)
    return [one.key for one in found.conditions if one.kind == "schema"]


def test_an_incident_names_the_change_and_the_command(table: TopicTable) -> None:
    [wider] = topic_conditions.followed_schema(table.topic, state(WIDER, MISFIT))
    assert wider.text == "id: int becomes long; note: string becomes int"
    assert "rebuild.py --topics FILE --cluster east --topic orders --all --schema 7" in wider.mend
    assert "tidemark schema dismiss orders --version 7" in wider.mend
    [misfit] = topic_conditions.followed_schema(table.topic, state(MISFIT))
    assert "rebuild.py" not in misfit.mend
    assert list(topic_conditions.followed_schema(table.topic, state(MISFIT, dismissed=7))) == []
    [silent] = topic_conditions.followed_schema(table.topic, state(unanswered_since=AT, reason="answered 503"))
    assert (silent.key, silent.patience) == ("schema/east/orders/registry", topic_conditions.REGISTRY_PATIENCE)
    assert "answered 503" in silent.text


def test_a_state_that_cannot_be_read_hides_nothing_else(table: TopicTable) -> None:
    table.store.put(table.keys.schema, b"{")
    found = look(table.deployment, "east", Sightings(cluster="east", at=AT), AT)
    assert "schema" in {kind for one in found.unknown for kind in one.kinds}
    assert any(key.startswith("unreadable/east/orders") for key in found.sightings.first)
