"""A table follows its subject: what can be adopted is, in a commit of its own, and the rest waits for a person."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.spark.audit.test_audit import audited
from tests.spark.inline import Inline
from tests.spark.mirror import catalogs
from tests.spark.world import World, in_process
from tests.tidemark.kafka_log.build import Record, batch
from tests.tidemark.parsers.registry_server import Registry, serving
from tests.tidemark.parsers.test_avro import encoded, framed
from tests.tidemark.schemas import test_protobuf_merge as proto
from tidemark.concurrency import Lru
from tidemark.errors import ConfigError, RegistryUnavailable
from tidemark.formats.table.plan import RunPlan, RunResult
from tidemark.formats.table.schema_state import SchemaChange, SchemaState, SchemaStep
from tidemark.parsers import schema_registry
from tidemark.planning import plan_ingest, write_plan
from tidemark.planning.schema_following import accept, dismiss, proposed, revert
from tidemark.schemas.merge import read_state
from tidemark.table.delta_table import open_delta, open_topic_table
from tidemark_spark.jobs.running import run_job
from tidemark_spark.model import CarriedOut
from tidemark_spark.rebuild.affected_dates import planned
from tidemark_spark.run import followed_schema
from tidemark_spark.run.driver import run
from tidemark_spark.run.followed_schema import followed

DAY = 86_400_000


def record(*fields: tuple[str, Any] | tuple[str, Any, Any]) -> dict[str, Any]:
    """A record schema; a third part of a field is its default."""
    made = [{"name": one[0], "type": one[1], **({"default": one[2]} if len(one) > 2 else {})} for one in fields]
    return {"type": "record", "name": "Order", "fields": made}


V1 = record(("id", "int"), ("note", "string"))
V2 = record(("id", "int"), ("vip", "boolean"), ("currency", "string", "EUR"))
V3 = record(("id", "long"), ("note", "string"))
V4 = record(("id", "string"), ("vip", "boolean"), ("city", "string"))


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_registry, "PAUSES_SECONDS", (0.0,) * len(schema_registry.PAUSES_SECONDS))
    monkeypatch.setattr(schema_registry, "_kept", Lru(1000))


@pytest.fixture
def registry() -> Iterator[Registry]:
    with serving(Registry()) as found:
        yield found


class Followed(World):
    """A topic that follows ``orders-value``."""

    def __init__(
        self, root: Path, registry: Registry, kind: str = "avro", *more: str, settings: Sequence[str] = ()
    ) -> None:
        self.registry = registry
        self.number = 0
        source = "schema: {registry: main, subject: orders-value}"
        framing = [] if any(one.startswith("framing") for one in more) else ["framing: confluent"]
        parser = ", ".join([f"kind: {kind}", source, *framing, *more])
        file = [f"registries: {{main: {{url: '{registry.url}'}}}}"]
        super().__init__(root, *settings, f"parser: {{{parser}}}", file=file)

    def register(self, schema: Any, kind: str = "AVRO") -> None:
        """The newest version; numbers are those of versions and 10."""
        self.number += 1
        text = schema if isinstance(schema, str) else json.dumps(schema)
        self.registry.register("orders-value", 10 + self.number, self.number, text, kind)

    def upload(self, *records: tuple[int, Any, Any]) -> None:
        """A segment of records, each with the version that wrote it, its schema and its value."""
        self.upload_values(*(framed(10 + version, encoded(schema, value)) for version, schema, value in records))

    def upload_values(self, *values: bytes) -> None:
        """A segment of records with these values."""
        made = [Record(place, value=value) for place, value in enumerate(values)]
        self.raw.segment([batch(self.raw.partition().end, made)])

    def land(self, **options: Any) -> RunResult:
        """As an ingest job does it."""
        self.table = followed(self.reopened())
        return super().land(**options)

    def reopened(self) -> Any:
        """The table, as any job opens it."""
        deployment = self.table.deployment
        return open_topic_table(deployment, deployment.topic("orders"))

    @property
    def state(self) -> SchemaState:
        found = read_state(self.table.store, self.table.keys)
        assert found is not None
        return found.value

    @property
    def columns(self) -> dict[str, str]:
        """The table's own, with their types."""
        delta = open_delta(self.table)
        assert delta is not None
        return {
            one.name: str(json.loads(one.to_json())["type"])
            for one in delta.schema().fields
            if not one.name.startswith("kafka_") and one.name != "dt"
        }

    def values(self) -> list[dict[str, Any]]:
        """The parsed columns of all rows, in the order of their offsets."""
        rows = sorted(self.rows(), key=lambda row: row["kafka_offset"])
        return [{name: row.get(name) for name in self.columns} for row in rows]


def planned_rebuild(world: Followed, version: int) -> RunPlan:
    """The stored plan of a rebuild of the whole table that accepts the version."""
    plan = planned(proposed(world.reopened(), version), None, CarriedOut(), extend=False).plan
    write_plan(world.table, plan)
    assert plan.accepts == version
    return plan


def rebuild(world: Followed, version: int) -> RunResult:
    """Rebuild the whole table, as its job does."""
    result = run(proposed(world.reopened(), version), planned_rebuild(world, version), in_process)
    accept(world.table, version)
    world.table = world.reopened()
    world.check()
    return result


def changes(world: Followed) -> list[tuple[str, str]]:
    """What waits, by path and kind."""
    proposal = world.state.proposal
    return [(one.path, one.kind) for one in proposal.changes] if proposal else []


def dismissed(world: Followed) -> int | None:
    """The version of which a person wants no more alerts."""
    return world.state.dismissed


def test_a_table_begins_with_its_subjects_newest_schema_and_follows_it(tmp_path: Path, registry: Registry) -> None:
    world = Followed(tmp_path, registry)
    world.register(V1)
    world.upload((1, V1, {"id": 1, "note": "a"}))
    world.land()
    assert world.columns == {"id": "integer", "note": "string"}
    assert [one.kind for one in ledgers(world)] == ["ingest"]

    world.register(V2)
    world.upload((1, V1, {"id": 2, "note": "b"}), (2, V2, {"id": 3, "vip": True, "currency": "USD"}))
    world.land()
    assert world.columns == {"id": "integer", "note": "string", "vip": "boolean", "currency": "string"}
    assert world.values() == [
        {"id": 1, "note": "a", "vip": None, "currency": None},
        {"id": 2, "note": "b", "vip": None, "currency": "EUR"},
        {"id": 3, "note": None, "vip": True, "currency": "USD"},
    ]
    assert [one.kind for one in ledgers(world)] == ["ingest", "schema", "ingest"]
    assert world.state.proposal is None
    last = world.state.history[-1]
    assert [(one.path, one.kind) for one in last.changes] == [
        ("note", "removed"),
        ("vip", "added"),
        ("currency", "added"),
    ]
    world.check()


def ledgers(world: Followed) -> list[Any]:
    """All ledgers, in their order."""
    found = [world.ledger]
    while found[0].parent is not None:
        parent = found[0].parent
        found.insert(0, type(found[0]).load(world.table.store, world.table.keys.ledger(parent.n, parent.attempt)))
    return found


def test_what_is_gone_is_told_once_and_keeps_its_column(tmp_path: Path, registry: Registry) -> None:
    world = Followed(tmp_path, registry)
    for schema in (V1, record(("id", "int")), record(("id", "int"), ("x", "int"))):
        world.register(schema)
        world.upload((world.number, schema, {"id": 1, "note": "n", "x": 5}))
        world.land()
    told = [[(one.path, one.kind) for one in step.changes] for step in world.state.history]
    assert told == [[("id", "added"), ("note", "added")], [("note", "removed")], [("x", "added")]]
    assert [row["note"] for row in world.values()] == ["n", None, None]


def test_a_longer_number_waits_for_a_rebuild_of_all_that_accepts_it(tmp_path: Path, registry: Registry) -> None:
    world = Followed(tmp_path, registry)
    world.register(V1)
    world.upload((1, V1, {"id": 1, "note": "a"}))
    world.land()
    world.register(V3)
    world.upload((2, V3, {"id": 1 << 40, "note": "b"}), (1, V1, {"id": 2, "note": "c"}))
    world.land()
    assert changes(world) == [("id", "wider")]
    assert world.columns["id"] == "integer"
    [reason] = [row["reason"] for row in world.quarantine()]
    assert "Avro schema" in reason

    with pytest.raises(ConfigError, match="version 7 does not wait to be accepted, version 2 does"):
        proposed(world.reopened(), 7)
    assert rebuild(world, 2).status == "landed"
    assert world.columns["id"] == "long"
    assert [row["id"] for row in world.values()] == [1, 1 << 40, 2]
    assert changes(world) == []
    assert world.state.adopted.version == 2
    world.upload((2, V3, {"id": 1 << 41, "note": "d"}))
    world.land()
    assert world.values()[-1]["id"] == 1 << 41


def test_a_rebuild_that_was_killed_before_it_said_so_is_found(tmp_path: Path, registry: Registry) -> None:
    world = Followed(tmp_path, registry)
    world.register(V1)
    world.upload((1, V1, {"id": 1, "note": "a"}))
    world.land()
    world.register(V3)
    world.upload((2, V3, {"id": 1 << 40, "note": "b"}))
    world.land()
    run(proposed(world.reopened(), 2), planned_rebuild(world, 2), in_process)  # and no accept
    assert changes(world) == [("id", "wider")]
    world.upload((2, V3, {"id": 3, "note": "c"}))
    world.land()
    assert changes(world) == []
    assert [row["id"] for row in world.values()] == [1, 1 << 40, 3]


def test_what_no_rebuild_can_make_is_told_and_the_rest_is_adopted(tmp_path: Path, registry: Registry) -> None:
    world = Followed(tmp_path, registry)
    world.register(V1)
    world.upload((1, V1, {"id": 1, "note": "a"}))
    world.land()
    world.register(V4)
    world.upload((1, V1, {"id": 2, "note": "b"}), (2, V4, {"id": "x", "vip": True, "city": "Wien"}))
    world.land()
    assert changes(world) == [("id", "misfit")]
    assert set(world.columns) == {"id", "note", "vip", "city"}
    assert [row["id"] for row in world.values()] == [1, 2]
    assert len(world.quarantine()) == 1
    with pytest.raises(ConfigError, match="no rebuild can make"):
        proposed(world.reopened(), 2)
    assert dismissed(world) is None
    assert dismiss(world.reopened(), 2).dismissed == 2
    with pytest.raises(ConfigError, match="does not wait"):
        dismiss(world.reopened(), 3)
    more = {**V4, "fields": [*V4["fields"], {"name": "zip", "type": "int"}]}
    world.register(more)
    followed(world.reopened())
    assert changes(world) == [("id", "misfit")]
    assert dismissed(world) == 3, "a person has seen it"
    world.register({**more, "fields": [*more["fields"][:-1], {"name": "zip", "type": "string"}]})
    followed(world.reopened())
    assert changes(world) == [("id", "misfit"), ("zip", "misfit")]
    assert dismissed(world) == 3, "and not this version"


def test_a_registry_that_does_not_answer_changes_nothing(tmp_path: Path, registry: Registry) -> None:
    world = Followed(tmp_path, registry)
    registry.failures = 100
    with pytest.raises(RegistryUnavailable):
        followed(world.reopened())
    registry.failures = 0
    with pytest.raises(ConfigError, match="orders-value: its newest schema is unknown"):
        followed(world.reopened())
    world.register(V1)
    world.upload((1, V1, {"id": 1, "note": "a"}))
    world.land()
    registry.failures = 100
    registry.asked.clear()
    assert followed(world.reopened()).topic == world.table.topic
    assert len(registry.asked) == 1, "nobody waits for it"
    since = world.state.unanswered_since
    assert since is not None
    assert "503" in world.state.reason
    followed(world.reopened())
    assert world.state.unanswered_since == since
    registry.failures = 0
    followed(world.reopened())
    assert world.state.unanswered_since is None


def test_nothing_is_asked_twice_or_written_twice_while_nothing_changes(tmp_path: Path, registry: Registry) -> None:
    world = Followed(tmp_path, registry)
    world.register(V1)
    followed(world.reopened())
    [before] = [world.table.store.head(world.table.keys.schema)]
    registry.asked.clear()
    followed(world.reopened())
    assert registry.asked == ["/subjects/orders-value/versions/latest"]
    assert world.table.store.head(world.table.keys.schema) == before


def test_a_kill_between_adopting_and_the_commit_leaves_the_columns_to_the_next_run(
    tmp_path: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Followed(tmp_path, registry)
    world.register(V1)
    world.upload((1, V1, {"id": 1, "note": "a"}))
    world.land()
    world.register(V2)
    with monkeypatch.context() as patch:
        patch.setattr(followed_schema, "_add_columns", _killed)
        with pytest.raises(KeyboardInterrupt):
            followed(world.reopened())
    assert set(world.columns) == {"id", "note"}
    world.upload((2, V2, {"id": 2, "vip": True, "currency": "USD"}))
    world.land()
    assert world.values()[-1] == {"id": 2, "note": None, "vip": True, "currency": "USD"}


def _killed(_table: Any) -> None:
    raise KeyboardInterrupt


def test_a_plan_of_the_schema_before_is_stale(tmp_path: Path, registry: Registry) -> None:
    world = Followed(tmp_path, registry)
    world.register(V1)
    world.upload((1, V1, {"id": 1, "note": "a"}))
    world.raw.publish()
    world.table = followed(world.reopened())
    plan: RunPlan = plan_ingest(world.table)
    write_plan(world.table, plan)
    world.register(V2)
    assert run(followed(world.reopened()), plan, in_process).status == "stale"
    world.land()
    assert world.values() == [{"id": 1, "note": "a", "vip": None, "currency": "EUR"}]


def test_two_jobs_that_see_a_newer_schema_adopt_it_once(tmp_path: Path, registry: Registry) -> None:
    world = Followed(tmp_path, registry)
    world.register(V1)
    world.upload((1, V1, {"id": 1, "note": "a"}))
    world.land()
    world.register(V2)
    first, second = followed(world.reopened()), followed(world.reopened())
    assert first.topic == second.topic
    assert [one.kind for one in ledgers(world)] == ["ingest", "schema"]
    assert len(world.state.history) == 2


def test_a_field_more_within_a_struct_comes_with_a_rebuild(tmp_path: Path, registry: Registry) -> None:
    def order(*fields: tuple[str, Any]) -> dict[str, Any]:
        return record(("id", "int"), ("to", {**record(*fields), "name": "Address"}))

    old, new = order(("city", "string")), order(("city", "string"), ("zip", "int"))
    world = Followed(tmp_path, registry)
    world.register(old)
    world.upload((1, old, {"id": 1, "to": {"city": "Wien"}}))
    world.land()
    world.register(new)
    world.upload((2, new, {"id": 2, "to": {"city": "Graz", "zip": 8010}}))
    world.land()
    assert changes(world) == [("to.zip", "wider")]
    assert [row["to"] for row in world.values()] == [{"city": "Wien"}, {"city": "Graz"}]
    before = world.ledger.field_ids
    rebuild(world, 2)
    assert [row["to"] for row in world.values()] == [{"city": "Wien", "zip": None}, {"city": "Graz", "zip": 8010}]
    after = world.ledger.field_ids
    assert after == {**before, "to.zip": max(before.values()) + 1}
    world.upload((2, new, {"id": 3, "to": {"city": "Linz", "zip": 4020}}))
    world.land()
    assert world.values()[-1]["to"] == {"city": "Linz", "zip": 4020}


def protobuf_frame(number: int, data: bytes, index: int = 0) -> bytes:
    """Confluent's frame of a message that is at ``index`` in its file."""
    return framed(number, (b"\0" if index == 0 else bytes([2, 2 * index])) + data)


def test_protobuf_follows_and_does_not_read_by_a_schema_that_means_something_else(
    tmp_path: Path, registry: Registry
) -> None:
    world = Followed(tmp_path, registry, "protobuf", "message: shop.Order")
    first = proto.file(("id", 1, proto.F.TYPE_INT32), ("note", 2, proto.F.TYPE_STRING))
    world.register(proto.written(first).texts[0], "PROTOBUF")
    world.upload_values(protobuf_frame(11, proto.encoded(first, id=1, note="a")))
    world.land()
    assert world.columns == {"id": "integer", "note": "string"}

    second = proto.file(("id", 1, proto.F.TYPE_INT64), ("vip", 3, proto.F.TYPE_BOOL))
    second.message_type.insert(0, second.message_type.pop(1))  # Order is the second message of its file now
    world.register(proto.written(second).texts[0], "PROTOBUF")
    large = [protobuf_frame(12, proto.encoded(second, id=n << 40, vip=True), 1) for n in range(1, 21)]
    world.upload_values(*large, protobuf_frame(11, proto.encoded(first, id=2, note="b")))
    world.land()
    assert changes(world) == [("id", "wider")]
    assert set(world.columns) == {"id", "note", "vip"}
    assert [row["id"] for row in world.values()] == [1, 2], "and no number without its upper half"
    reasons = {row["reason"] for row in world.quarantine()}
    assert reasons == {"names schema 12, which differs from the table's in id: int32 becomes int64"}

    rebuild(world, 2)
    assert [row["id"] for row in world.values()] == [1, *(n << 40 for n in range(1, 21)), 2]
    third = proto.file(("number", 1, proto.F.TYPE_INT64))
    world.register(proto.written(third).texts[0], "PROTOBUF")
    world.upload_values(protobuf_frame(13, proto.encoded(third, number=5)))
    world.land()
    assert ("id", "misfit") in changes(world)
    assert {row["reason"] for row in world.quarantine()} == {
        "names schema 13, which differs from the table's in id: field 1 is named number now"
    }


@pytest.mark.parametrize("framing", ["confluent", "none"])
def test_json_follows_in_both_framings(tmp_path: Path, registry: Registry, framing: str) -> None:
    def sent(number: int, value: Any) -> bytes:
        data = json.dumps(value).encode()
        return framed(number, data) if framing == "confluent" else data

    integer, text = {"type": "integer"}, {"type": "string"}
    world = Followed(tmp_path, registry, "json", f"framing: {framing}")
    world.register({"type": "object", "properties": {"id": integer, "to": {"properties": {"city": text}}}}, "JSON")
    world.upload_values(sent(11, {"id": 1, "to": {"city": "Wien"}}))
    world.land()
    assert world.columns == {"id": "long", "to_city": "string"}
    world.register({"type": "object", "properties": {"id": text, "vip": {"type": "boolean"}}}, "JSON")
    bad = [b"", b"{}", b"\0\0\0\0"] if framing == "confluent" else [b"["]
    world.upload_values(sent(11, {"id": 2}), sent(12, {"id": 3, "vip": True}), sent(12, {"id": "x"}), *bad)
    world.land()
    assert changes(world) == [("id", "misfit")]
    assert world.values() == [
        {"id": 1, "to_city": "Wien", "vip": None},
        {"id": 2, "to_city": None, "vip": None},
        {"id": 3, "to_city": None, "vip": True},
    ]
    assert len(world.quarantine()) == 1 + len(bad)


def job(world: Followed, name: str, *options: str) -> int:
    """The exit code of a job, which runs here."""
    code = run_job(name, ["--topics", str(world.topics_file), "--topic", "orders", *options], Inline())
    world.table = world.reopened()
    return code


def test_the_jobs_follow_show_what_waits_and_accept_it(tmp_path: Path, registry: Registry, capsys: Any) -> None:
    world = Followed(tmp_path, registry)
    world.register(V1)
    world.upload((1, V1, {"id": 1, "note": "a"}))
    world.raw.publish()
    assert job(world, "ingest", "--dry-run") == 0
    assert read_state(world.table.store, world.table.keys) is None
    assert job(world, "ingest") == 0
    world.register(V3)
    world.upload((2, V3, {"id": 1 << 40, "note": "b"}))
    world.raw.publish()
    assert job(world, "ingest") == 0
    assert changes(world) == [("id", "wider")]

    assert job(world, "rebuild", "--from", "2026-01-01", "--to", "2026-01-02", "--schema", "2") == 2
    assert "--schema: needs --all" in capsys.readouterr().err
    assert job(world, "rebuild", "--all", "--schema", "2", "--compare") == 1
    assert "quarantined" in capsys.readouterr().out
    assert changes(world) == [("id", "wider")], "a comparison accepts nothing"
    assert job(world, "rebuild", "--all", "--schema", "2", "--report", "0123456789abcdef") == 0
    preview = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert job(world, "run_plan", "--plan", preview["plan"]) == 0
    assert changes(world) == []
    assert [row["id"] for row in world.values()] == [1, 1 << 40]
    assert job(world, "run_plan", "--plan", preview["plan"]) == 0, "again, after it has landed"
    world.check()


@pytest.mark.parametrize("listed_before", [True, False])
def test_a_catalog_has_the_fields_that_a_struct_has_got(
    tmp_path: Path, registry: Registry, *, listed_before: bool
) -> None:
    def order(*fields: tuple[str, Any], more: tuple[Any, ...] = ()) -> dict[str, Any]:
        address = {**record(*fields), "name": "Address"}
        return record(("id", "int"), ("to", address), ("last", "int"), *more)

    place = {**record(("lat", "double"), ("lon", "double")), "name": "Place"}
    versions = [
        order(("city", "string")),
        order(("city", "string"), ("zip", "int"), ("at", place), more=(("vip", "boolean"),)),
    ]
    values = [
        {"id": 1, "last": 1, "to": {"city": "Wien"}},
        {"id": 2, "last": 2, "vip": True, "to": {"city": "Graz", "zip": 8010, "at": {"lat": 47.1, "lon": 15.4}}},
    ]
    world = Followed(tmp_path, registry)
    for number, (schema, value) in enumerate(zip(versions, values, strict=True), 1):
        world.register(schema)
        world.upload((number, schema, value))
        world.land()
        if listed_before:
            catalogs.listed(world)
    rebuild(world, 2)
    catalogs.listed(world)
    assert world.values()[1]["to"] == {"city": "Graz", "zip": 8010, "at": {"lat": 47.1, "lon": 15.4}}


def test_misfits_land_by_setting(tmp_path: Path, registry: Registry) -> None:
    world = Followed(tmp_path, registry, "avro", "misfits: land")
    world.register(V1)
    world.upload((1, V1, {"id": 1, "note": "a"}))
    world.land()
    world.register(V4)
    world.upload(*((2, V4, {"id": "x", "vip": True, "city": "Wien"}),) * 20, (1, V1, {"id": 2, "note": "b"}))
    result = world.land()
    assert changes(world) == [("id", "misfit")]
    assert world.quarantine() == []
    assert [row["id"] for row in world.values()] == [1, *[None] * 20, 2]
    assert world.values()[1] == {"id": None, "note": None, "vip": True, "city": "Wien"}
    assert result.unknown == {"id": 20}


def test_protobufs_misfits_land_by_setting(tmp_path: Path, registry: Registry) -> None:
    world = Followed(tmp_path, registry, "protobuf", "message: shop.Order", "misfits: land")
    first = proto.file(("id", 1, proto.F.TYPE_INT32), ("note", 2, proto.F.TYPE_STRING))
    second = proto.file(("id", 1, proto.F.TYPE_SINT32), ("note", 2, proto.F.TYPE_STRING))
    for file in (first, second):
        world.register(proto.written(file).texts[0], "PROTOBUF")
    world.upload_values(
        protobuf_frame(11, proto.encoded(first, id=5, note="a")),
        *(protobuf_frame(12, proto.encoded(second, id=5, note="b")) for _ in range(20)),
    )
    world.number = 1
    world.register(proto.written(first).texts[0], "PROTOBUF")
    registry.register("orders-value", 12, 1, proto.written(second).texts[0], "PROTOBUF")
    registry.register("orders-value", 11, 2, proto.written(first).texts[0], "PROTOBUF")
    result = world.land()
    assert [row["id"] for row in world.values()] == [5, *[None] * 20]
    assert {row["note"] for row in world.values()} == {"a", "b"}
    assert result.unknown == {"id": 20}
    assert world.quarantine() == []


def test_jsons_misfits_land_by_setting(tmp_path: Path, registry: Registry) -> None:
    world = Followed(tmp_path, registry, "json", "framing: none", "misfits: land")
    integer, text = {"type": "integer"}, {"type": "string", "format": "date"}
    world.register({"type": "object", "properties": {"id": integer, "to": {"properties": {"day": text}}}}, "JSON")
    good = [json.dumps({"id": n, "to": {"day": "2026-01-01"}}).encode() for n in range(30)]
    bad = [b'{"id":"x","to":{"day":"2026-01-02"}}', b'{"id":99,"to":{"day":"soon"}}', b'{"id":7,"to":5}', b"{"]
    world.upload_values(*good, *bad)
    result = world.land()
    assert [(row["id"], str(row["to_day"])) for row in world.values()[30:]] == [
        (None, "2026-01-02"),
        (99, "None"),
        (7, "None"),
    ]
    assert result.unknown == {"id": 1, "to.day": 2}
    assert len(world.quarantine()) == 1


def test_columns_of_partitions_follow_and_a_version_that_takes_their_names_waits(
    tmp_path: Path, registry: Registry
) -> None:
    by = "partition_by: [dt, hour, {column: id, values: [1, 2]}]"
    world = Followed(tmp_path, registry, settings=[by])
    world.register(V1)
    world.upload((1, V1, {"id": 1, "note": "a"}), (1, V1, {"id": 2, "note": "b"}), (1, V1, {"id": 3, "note": "c"}))
    assert (world.land().rows, len(world.quarantine())) == (2, 1)
    catalogs.listed(world)
    with_hour = record(("id", "int"), ("note", "string"), ("hour", "string"))
    world.register(with_hour)
    world.upload((2, with_hour, {"id": 1, "note": "d", "hour": "x"}))
    assert world.land().rows == 1
    assert world.state.proposal is not None
    [change] = world.state.proposal.changes
    assert (change.kind, "the parser has a column hour" in change.detail) == ("misfit", True)
    world.register(V3)
    world.upload((3, V3, {"id": 2, "note": "e"}))
    world.land()
    assert rebuild(world, 3).status == "landed"
    assert world.columns == {"id": "long", "note": "string", "hour": "integer"}
    assert [row["id"] for row in world.values()] == [1, 2, 1, 2]
    catalogs.listed(world)
    assert audited(world).findings == ()


def test_what_was_adopted_is_taken_back_before_the_table_has_it(tmp_path: Path, registry: Registry) -> None:
    """A version whose columns no table can have was adopted by an earlier release: each of its runs failed."""
    world = Followed(tmp_path, registry)
    world.register(V1)
    world.upload((1, V1, {"id": 1, "note": "a"}))
    world.land()
    user = {"type": "record", "name": "User", "fields": [{"name": one, "type": "int"} for one in ("userid", "userId")]}
    bad = record(("id", "int"), ("note", "string"), ("user", user))
    world.register(bad)
    state, keys = world.state, world.table.keys
    definition = base64.b64encode(json.dumps(bad).encode()).decode()
    step = state.adopted.model_copy(update={"number": 12, "version": 2, "definition": definition})
    newest = state.newest.model_copy(update={"number": 12, "version": 2})
    history = (*state.history, SchemaStep(number=12, version=2, at=step.at))
    adopted = state.model_copy(update={"adopted": step, "newest": newest, "history": history})
    world.table.store.put(keys.schema, adopted.to_bytes())
    world.upload((1, V1, {"id": 2, "note": "b"}))
    with pytest.raises(ConfigError, match="field 'userId': appears twice"):
        world.land()

    with pytest.raises(ConfigError, match="version 2 was not adopted earlier, but 1"):
        revert(world.table, 2)
    revert(world.table, 1)
    assert (world.state.adopted.data, world.state.history) == (state.adopted.data, state.history)
    assert (world.state.dismissed, changes(world)) == (2, [("orders-value", "misfit")])
    world.land()
    assert [row["id"] for row in world.values()] == [1, 2]
    assert world.state.adopted.version == 1
    world.register(record(("id", "int"), ("note", "string"), ("vip", "boolean")))
    world.land()
    assert world.columns == {"id": "integer", "note": "string", "vip": "boolean"}
    assert changes(world) == []
    with pytest.raises(ConfigError, match="the table has the columns vip by now"):
        revert(world.table, 1)


def test_a_struct_with_names_that_differ_by_case_is_left_out_and_the_rest_lands(
    tmp_path: Path, registry: Registry
) -> None:
    world = Followed(tmp_path, registry)
    world.register(V1)
    world.upload((1, V1, {"id": 1, "note": "a"}))
    world.land()
    user = {"type": "record", "name": "User", "fields": [{"name": one, "type": "int"} for one in ("userid", "userId")]}
    second = record(("id", "int"), ("note", "string"), ("user", user), ("vip", "boolean"))
    world.register(second)
    world.upload((2, second, {"id": 2, "note": "b", "user": {"userid": 1, "userId": 2}, "vip": True}))
    world.land()
    assert world.values()[-1] == {"id": 2, "note": "b", "vip": True}
    assert changes(world) == [("user", "misfit")]
    assert world.quarantine() == []


def test_a_version_is_judged_again_by_a_newer_release(tmp_path: Path, registry: Registry) -> None:
    """An earlier one found no column for a decimal of 64 digits, and passed over a field within the items of a list."""

    def lines(*names: str) -> Any:
        item = {"type": "record", "name": "Line", "fields": [{"name": name, "type": "int"} for name in names]}
        return {"type": "array", "items": item}

    first = record(("id", "int"), ("lines", lines("n")))
    price = {"type": "bytes", "logicalType": "decimal", "precision": 64, "scale": 2}
    second = record(("id", "int"), ("lines", lines("n", "m")), ("price", price))
    world = Followed(tmp_path, registry)
    world.register(first)
    world.upload((1, first, {"id": 1, "lines": [{"n": 1}]}))
    world.land()
    world.register(second)
    misfit = SchemaChange(path="price", kind="misfit", detail="has 64 digits")
    newest = world.state.newest.model_copy(update={"number": 12, "version": 2})
    proposal = world.state.adopted.model_copy(update={"number": 12, "version": 2, "changes": (misfit,)})
    earlier = world.state.model_copy(update={"newest": newest, "proposal": proposal})
    world.table.store.put(world.table.keys.schema, earlier.to_bytes())
    world.upload((2, second, {"id": 2, "lines": [], "price": Decimal("1.25")}))
    world.land()
    assert world.columns["price"] == "decimal(38,2)"
    assert world.values()[-1]["price"] == Decimal("1.25")
    assert changes(world) == [("lines[].m", "wider")]
    state = world.state
    world.upload((2, second, {"id": 3, "lines": [], "price": Decimal(2)}))
    world.land()
    assert world.state == state
