"""Protobuf's records are read as the schema that wrote them means them, whatever the versions between did.

The truth of a record is what Google's library reads of it by its own schema.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.message_factory import GetMessageClass

from tests.support.protobuf_java import JavaProtobuf
from tests.tidemark.parsers.support import rows_of
from tests.tidemark.schemas.test_protobuf_merge import add, file, merge, written
from tidemark.parsers.protobuf import parser as protobuf_parser
from tidemark.parsers.protobuf.descriptors import message_in, registered_files
from tidemark.parsers.protobuf.parser import ProtobufColumns
from tidemark.parsers.schema_registry import Unreadable, Written
from tidemark.parsers.settings import Misfits, ProtobufParser, Registry, SettingsFile

F = FieldDescriptorProto
Row = dict[str, Any]


class _Known:
    """A registry's schemas by number."""

    def __init__(self, schemas: Mapping[int, Written]) -> None:
        self._schemas = schemas

    def find(self, numbers: Sequence[int]) -> Mapping[int, Written | Unreadable]:
        return {number: self._schemas.get(number, Unreadable("is unknown")) for number in numbers}


class Versions:
    """A table that has followed ``files``, the versions of a subject; each is an own file or several."""

    def __init__(self, *files: FileDescriptorProto | tuple[FileDescriptorProto, ...], widen: bool = False) -> None:
        texts = [written(*(one if isinstance(one, tuple) else (one,))) for one in files]
        self.written = dict(enumerate(texts))
        self.definition, self.changes = merge(*(self.written[n] for n in self.written), widen=widen)

    def message(self, number: int) -> Any:
        """The class of the message in a version."""
        return GetMessageClass(message_in(registered_files(self.written[number]), "shop.Order", "the test"))

    def record(self, number: int, **values: Any) -> bytes:
        """A record that a version has written."""
        data: bytes = self.message(number)(**values).SerializeToString()
        return bytes(1) + number.to_bytes(4, "big") + bytes(1) + data

    def read(
        self, monkeypatch: pytest.MonkeyPatch, *records: bytes, misfits: Misfits = "quarantine", loop: bool = True
    ) -> list[Row | str]:
        """The rows that land, or the reason why one does not."""
        monkeypatch.setattr(protobuf_parser, "SchemaRegistry", lambda *_: _Known(self.written))
        settings = ProtobufParser(
            kind="protobuf",
            descriptors=SettingsFile("x", self.definition),
            message="shop.Order",
            framing="confluent",
            misfits=misfits,
            registry=Registry(url="http://registry.example.com"),
        )
        parsed = ProtobufColumns(settings).parse(rows_of(records), vectorised=loop)
        rows: list[Row] = parsed.columns.to_pylist()
        return [parsed.refused.get(n, row) for n, row in enumerate(rows)]

    def both(
        self, monkeypatch: pytest.MonkeyPatch, *records: bytes, misfits: Misfits = "quarantine"
    ) -> list[Row | str]:
        """As :meth:`read`, checked to be the same from the compiled loop, which takes rows of eight or more."""
        many = [record for record in records for _ in range(8)]
        looped = self.read(monkeypatch, *many, misfits=misfits)
        alone = self.read(monkeypatch, *records, misfits=misfits, loop=False)
        assert looped == [row for row in alone for _ in range(8)]
        return alone


CARD = file(("id", 1, F.TYPE_INT32), ("card", 2, F.TYPE_INT64))
OPTIONAL = file(("id", 1, F.TYPE_INT32), ("card", 2, (F.TYPE_INT64,)))


def test_a_field_that_is_not_set_means_what_its_writer_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for versions, presence in ((Versions(CARD, OPTIONAL), [0, None]), (Versions(OPTIONAL, CARD), [None, 0])):
        assert versions.changes == []
        found = versions.both(monkeypatch, versions.record(0, id=1), versions.record(1, id=1))
        assert [row["card"] for row in found if isinstance(row, dict)] == presence
        zero = versions.both(monkeypatch, *(versions.record(number, id=1, card=0) for number in (0, 1)))
        assert [row["card"] for row in zero if isinstance(row, dict)] == [0, 0]


def test_the_same_within_messages_lists_and_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(zip_code: Any) -> FileDescriptorProto:
        made: FileDescriptorProto = file(
            ("to", 1, ".shop.Address"), ("more", 2, [".shop.Address"]), address=(("zip", 1, zip_code),)
        )
        entry = made.message_type[0].nested_type.add(name="ByNameEntry")
        entry.options.map_entry = True
        add(entry, "key", 1, F.TYPE_STRING)
        add(entry, "value", 2, ".shop.Address")
        add(made.message_type[0], "by_name", 3, [".shop.Order.ByNameEntry"])
        return made

    versions = Versions(version(F.TYPE_INT32), version((F.TYPE_INT32,)))
    records = [versions.record(n, to={}, more=[{}, {"zip": 5}], by_name={"a": {}}) for n in (0, 1)]
    assert versions.both(monkeypatch, *records) == [
        {
            "to": {"zip": unset},
            "more": [{"zip": unset}, {"zip": 5}],
            "by_name": [{"key": "a", "value": {"zip": unset}}],
        }
        for unset in (0, None)
    ]


def test_a_field_that_the_writer_lacks_is_null(monkeypatch: pytest.MonkeyPatch) -> None:
    newer = file(("id", 1, F.TYPE_INT32), ("vip", 3, F.TYPE_BOOL), ("state", 4, ".shop.State"))
    versions = Versions(CARD, newer)
    assert [(path, kind) for path, kind, _ in versions.changes] == [
        ("card", "removed"),
        ("vip", "added"),
        ("state", "added"),
    ]
    assert versions.both(monkeypatch, versions.record(0), versions.record(1)) == [
        {"id": 0, "card": 0, "vip": None, "state": None},
        {"id": 0, "card": None, "vip": False, "state": "NEW"},
    ]


@pytest.mark.parametrize(
    ("newer", "values", "told", "column"),
    [
        (
            file(("id", 1, F.TYPE_INT32), ("card", 4, F.TYPE_INT64)),
            {"card": 5},
            ("card", "misfit", "is field 4 now, and was 2"),
            "card",
        ),
        (
            file(("id", 2, F.TYPE_INT64), ("card", 1, F.TYPE_INT32)),
            {"card": 5, "id": 7},
            ("id", "misfit", "field 1 is named card now"),
            "id",
        ),
        (
            file(("id", 1, F.TYPE_INT32), ("card", 2, F.TYPE_STRING)),
            {"card": "5"},
            ("card", "misfit", "int64 becomes string"),
            "card",
        ),
        (
            file(("id", 1, F.TYPE_INT64), ("card", 2, F.TYPE_INT64)),
            {"id": 1 << 40},
            ("id", "wider", "int32 becomes int64"),
            "id",
        ),
    ],
)
def test_what_a_record_means_otherwise_is_told_and_refused_or_null(
    monkeypatch: pytest.MonkeyPatch, newer: FileDescriptorProto, values: Row, told: tuple[str, str, str], column: str
) -> None:
    versions = Versions(CARD, newer)
    assert told in versions.changes
    record = versions.record(1, **values)
    [reason] = versions.both(monkeypatch, record)
    assert reason == f"names schema 1, which differs from the table's in {told[0]}: {told[2]}"
    [row] = versions.both(monkeypatch, record, misfits="land")
    assert isinstance(row, dict)
    assert row[column] is None


@pytest.mark.parametrize(
    ("after", "detail"),
    [
        ("NEW SETTLED", "1 is SETTLED now, and was PAID"),
        ("PAID NEW", "0 is PAID now, and was NEW"),
        ("NEW GONE PAID", "1 is GONE now, and was PAID"),
    ],
)
def test_names_of_an_enum_that_change_are_told(monkeypatch: pytest.MonkeyPatch, after: str, detail: str) -> None:
    fields = (("id", 1, F.TYPE_INT32), ("state", 4, ".shop.State"))
    versions = Versions(file(*fields), file(*fields, states=after))
    assert versions.changes == [("state", "misfit", detail)]
    [reason] = versions.both(monkeypatch, versions.record(1, state=1))
    assert reason == f"names schema 1, which differs from the table's in state: {detail}"


def test_a_symbol_that_changes_with_a_new_field_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table has the enum of the field before, which is gone."""
    before = file(("id", 1, F.TYPE_INT32), ("state", 4, ".shop.State"))
    after = file(("id", 1, F.TYPE_INT32), ("phase", 5, ".shop.State"), states="NEW SETTLED")
    versions = Versions(before, after)
    assert [change for change in versions.changes if change[0] == "phase"] == [
        ("phase", "added", "State"),
        ("phase", "misfit", "1 is SETTLED now, and was PAID"),
    ]
    assert isinstance(versions.both(monkeypatch, versions.record(1, phase=1))[0], str)


def test_a_symbol_that_moved_to_a_new_number_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = (("id", 1, F.TYPE_INT32), ("state", 4, ".shop.State"))
    moved = file(*fields)
    moved.enum_type[0].value[1].number = 7
    versions = Versions(file(*fields), moved)
    assert versions.changes == [("state", "misfit", "PAID is 7 now, and was 1")]
    assert isinstance(versions.both(monkeypatch, versions.record(1, state=7))[0], str)


def test_of_two_names_for_one_number_the_first_lands(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = (("id", 1, F.TYPE_INT32), ("state", 4, ".shop.State"))

    def aliased(*names: tuple[str, int]) -> FileDescriptorProto:
        made: FileDescriptorProto = file(*fields)
        del made.enum_type[0].value[:]
        made.enum_type[0].options.allow_alias = True
        for name, number in names:
            made.enum_type[0].value.add(name=name, number=number)
        return made

    first = aliased(("NEW", 0), ("FRESH", 0), ("PAID", 1), ("SETTLED", 1))
    versions = Versions(first, aliased(("NEW", 0), ("SETTLED", 1), ("PAID", 1), ("SENT", 2), ("SHIPPED", 2)))
    assert versions.changes == []
    records = [versions.record(number, state=state) for number in (0, 1) for state in (0, 1)]
    found = versions.both(monkeypatch, *records, versions.record(1, state=2))
    assert [row["state"] for row in found if isinstance(row, dict)] == ["NEW", "PAID", "NEW", "PAID", "SENT"]
    later = Versions(file(*fields), first)
    assert later.both(monkeypatch, later.record(1, state=1))[0]["state"] == "PAID"  # type: ignore[index]


def test_imports_that_need_no_reference_and_those_that_only_options_need(monkeypatch: pytest.MonkeyPatch) -> None:
    made = file(
        ("id", 1, F.TYPE_INT32),
        ("price", 2, ".confluent.type.Decimal"),
        ("due", 3, ".google.type.Date"),
        ("paths", 4, ".google.protobuf.FieldMask"),
    )
    imports = ("confluent/meta", "confluent/type/decimal", "google/type/date", "google/protobuf/field_mask")
    made.dependency.extend(f"{name}.proto" for name in (*imports, "buf/validate/validate"))
    versions = Versions(made)
    [row] = versions.both(monkeypatch, versions.record(0, price={"value": b"\x05", "scale": 2}, due={"year": 2026}))
    assert row == {
        "id": 0,
        "price": {"value": b"\x05", "precision": 0, "scale": 2},
        "due": {"year": 2026, "month": 0, "day": 0},
        "paths": None,
    }
    lacking = file(("id", 1, F.TYPE_INT32), ("rules", 2, ".buf.validate.Rule"))
    lacking.dependency.append("buf/validate/validate.proto")
    with pytest.raises(ValueError, match=r"lacks an import, perhaps buf/validate/validate\.proto"):
        Versions(lacking)


def test_a_definition_may_move_to_another_file(monkeypatch: pytest.MonkeyPatch) -> None:
    before = file(("id", 1, F.TYPE_INT32), ("to", 2, ".shop.Address"), ("state", 3, ".shop.State"))
    types = FileDescriptorProto(name="types.proto", package="shop", syntax="proto3")
    types.message_type.add().CopyFrom(before.message_type[1])
    types.enum_type.add().CopyFrom(before.enum_type[0])
    line = types.message_type.add(name="Line")
    add(line, "to", 1, ".shop.Address")
    after = file(("id", 1, F.TYPE_INT32), ("to", 2, ".shop.Address"), ("state", 3, ".shop.State"))
    add(after.message_type[0], "line", 4, ".shop.Line")
    del after.message_type[1:], after.enum_type[:]
    after.dependency.append("types.proto")
    for versions, names in ((Versions(before, (types, after)), ["line"]), (Versions((types, after), before), [])):
        assert [path for path, kind, _ in versions.changes if kind != "removed"] == names
        found = versions.both(monkeypatch, *(versions.record(n, to={"city": "Wien"}, state="PAID") for n in (0, 1)))
        assert [(row["to"], row["state"]) for row in found if isinstance(row, dict)] == [({"city": "Wien"}, "PAID")] * 2


def test_a_message_may_get_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    after = file(("id", 1, F.TYPE_INT32), ("to", 2, ".shop.Place"))
    after.message_type[1].name = "Place"
    add(after.message_type[1], "zip", 2, F.TYPE_INT32)
    versions = Versions(file(("id", 1, F.TYPE_INT32), ("to", 2, ".shop.Address")), after)
    assert [(path, kind) for path, kind, _ in versions.changes] == [("to.zip", "wider")]
    assert versions.both(monkeypatch, versions.record(1, to={"city": "Wien"}))[0]["to"] == {"city": "Wien"}  # type: ignore[index]


def test_fields_that_leave_a_oneof_may_both_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    choice = file(("a", 1, F.TYPE_INT32), ("b", 2, F.TYPE_INT32))
    choice.message_type[0].oneof_decl.add(name="either")
    for field in choice.message_type[0].field:
        field.oneof_index = 0
    apart = file(("a", 1, F.TYPE_INT32), ("b", 2, F.TYPE_INT32))
    versions = Versions(choice, apart)
    assert versions.both(monkeypatch, versions.record(0, b=0), versions.record(1, a=1, b=2)) == [
        {"a": None, "b": 0},
        {"a": 1, "b": 2},
    ]


SCALARS = (F.TYPE_INT32, F.TYPE_INT64, F.TYPE_SINT32, F.TYPE_BOOL, F.TYPE_STRING, F.TYPE_BYTES, F.TYPE_DOUBLE)


def _random_version(rng: random.Random, before: FileDescriptorProto | None) -> FileDescriptorProto:
    """A version of shop.Order, some steps from the one ``before``."""
    made = FileDescriptorProto()
    made.CopyFrom(before or file(("id", 1, F.TYPE_INT32)))
    for _ in range(rng.randint(1, 4)):
        message = rng.choice(made.message_type)
        step = rng.choice((_add, _add, _drop, _change_presence, _change_number, _change_name, _change_type, _symbol))
        step(rng, made, message, rng.choice(message.field))
    return made


def _add(rng: random.Random, _: Any, message: Any, __: Any) -> None:
    number = max(other.number for other in message.field) + rng.randint(1, 3)
    kinds: list[Any] = [*SCALARS, ".shop.State", (rng.choice(SCALARS),), [rng.choice(SCALARS)]]
    kinds += [".shop.Address", [".shop.Address"]] if message.name == "Order" else []
    add(message, f"f{rng.randint(0, 30)}_{number}", number, rng.choice(kinds))


def _drop(_: Any, __: Any, message: Any, field: Any) -> None:
    if field.name != "id" and len(message.field) > 1:
        _without(message, field)


def _change_presence(_: Any, __: Any, message: Any, field: Any) -> None:
    if field.label != F.LABEL_REPEATED and field.type not in {F.TYPE_MESSAGE, F.TYPE_ENUM}:
        kind, name, number = (field.type if field.proto3_optional else (field.type,)), field.name, field.number
        _without(message, field)
        add(message, name, number, kind)


def _change_number(_: Any, __: Any, message: Any, field: Any) -> None:
    field.number = max(other.number for other in message.field) + 1


def _change_name(rng: random.Random, _: Any, message: Any, field: Any) -> None:
    if field.name != "id":
        field.name = f"n{rng.randint(0, 99)}_{field.number}"
        if field.proto3_optional and rng.random() < 0.9:  # protoc names it after the field, and nothing asks for that
            message.oneof_decl[field.oneof_index].name = f"_{field.name}"


def _change_type(rng: random.Random, _: Any, __: Any, field: Any) -> None:
    if rng.random() < 0.3 and not field.HasField("oneof_index"):
        field.label = F.LABEL_REPEATED if field.label == F.LABEL_OPTIONAL else F.LABEL_OPTIONAL
    elif not field.type_name:
        field.type = rng.choice(SCALARS)


def _symbol(rng: random.Random, made: FileDescriptorProto, _: Any, __: Any) -> None:
    values = made.enum_type[0].value
    if rng.random() < 0.5:
        values.add(name=f"S{rng.randint(0, 99)}_{len(values)}", number=len(values))
    else:
        name = f"R{rng.randint(0, 99)}_{len(values)}"
        if name not in {value.name for value in values}:
            rng.choice(values).name = name


def _without(message: Any, field: Any) -> None:
    kept = [other for other in message.field if other.number != field.number]
    optional = [other.name for other in kept if other.proto3_optional]
    copies = [FieldDescriptorProto.FromString(other.SerializeToString()) for other in kept]
    del message.field[:], message.oneof_decl[:]
    for name in optional:
        message.oneof_decl.add(name=f"_{name}")
    for copy in copies:
        if copy.proto3_optional:
            copy.oneof_index = optional.index(copy.name)
    message.field.extend(copies)


def _random_values(rng: random.Random, descriptor: Any) -> Row:
    values: Row = {}
    for field in descriptor.fields:
        if rng.random() < 0.3:
            continue
        many = range(rng.randint(0, 3)) if field.is_repeated else range(1)
        made = [_random_value(rng, field) for _ in many]
        values[field.name] = made if field.is_repeated else made[0]
    return values


def _random_value(rng: random.Random, field: Any) -> Any:
    if field.message_type is not None:
        return _random_values(rng, field.message_type)
    if field.enum_type is not None:
        return rng.choice([*field.enum_type.values_by_number, 1000])
    edges = {
        F.TYPE_INT32: (0, 1, -1, (1 << 31) - 1, -(1 << 31)),
        F.TYPE_SINT32: (0, 1, -1, (1 << 31) - 1, -(1 << 31)),
        F.TYPE_INT64: (0, 1, -1, (1 << 63) - 1, -(1 << 63)),
        F.TYPE_BOOL: (False, True),
        F.TYPE_STRING: ("", "x", "ß\0"),
        F.TYPE_BYTES: (b"", b"\0\xff"),
        F.TYPE_DOUBLE: (0.0, -0.0, 1.5, float("inf")),
    }
    return rng.choice(edges[field.type])


def _truth(message: Any) -> Row:
    """What a message says by its own schema: null for a field with presence that is not set."""
    row: Row = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.is_repeated:
            row[field.name] = [_of(field, each) for each in value]
        elif field.has_presence and not message.HasField(field.name):
            row[field.name] = None
        else:
            row[field.name] = _of(field, value)
    return row


def _of(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return _truth(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known else str(value)
    return value


def _as_in_table(truth: Any, landed: Any) -> Any:
    """``truth`` with the fields of ``landed`` alone; one that it lacks is null, or an empty list."""
    if truth is None and landed == []:
        return []
    if isinstance(landed, dict) and isinstance(truth, dict):
        return {name: _as_in_table(truth.get(name), value) for name, value in landed.items()}
    if isinstance(landed, list) and isinstance(truth, list):
        return [_as_in_table(*both) for both in zip(truth, landed, strict=True)]
    return truth


class _Drawn:
    """Random histories of shop.Order: what lands of each record is compared with what its own schema says."""

    def __init__(self, rng: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
        self._rng = rng
        self._monkeypatch = monkeypatch
        self.counts: Counter[str] = Counter()

    def compare(self, also: Callable[[FileDescriptorProto, bytes, Row], None] = lambda *_: None) -> None:
        """Compare a history; ``also`` gets each record's schema, its bytes and what Google's library reads of it."""
        rng = self._rng
        files = [_random_version(rng, None)]
        for _ in range(rng.randint(1, 3)):
            files.append(_random_version(rng, files[-1]))
        versions = Versions(*files, widen=rng.random() < 0.5)
        messages = [
            (number, versions.message(number)(**_random_values(rng, versions.message(number).DESCRIPTOR)))
            for number in range(len(files))
            for _ in range(3)
        ]
        records = [bytes(1) + n.to_bytes(4, "big") + bytes(1) + message.SerializeToString() for n, message in messages]
        refusing = set()
        for (number, message), row in zip(messages, versions.both(self._monkeypatch, *records), strict=True):
            truth = _truth(message)
            also(files[number], message.SerializeToString(), truth)
            if isinstance(row, str):
                refusing.add(number)
                self.counts["refused"] += 1
            else:
                self.counts["equal"] += 1
                assert repr(row) == repr(_as_in_table(truth, row)), (files, number)
        if len(files) - 1 in refusing:
            assert any(kind in {"misfit", "wider"} for _, kind, _ in versions.changes), "refused without a word"
        self.counts["pairs"] += len(files)


def test_random_versions_land_what_their_own_schema_says(rng: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = _Drawn(rng, monkeypatch)
    for _ in range(40):
        drawn.compare()
    assert drawn.counts["equal"] > drawn.counts["refused"] / 4 > 0


@pytest.mark.full
def test_what_googles_library_says_is_what_javas_says(
    starts_other: None, rng: random.Random, monkeypatch: pytest.MonkeyPatch, tried: Callable[[str, int], None]
) -> None:
    drawn = _Drawn(rng, monkeypatch)
    with JavaProtobuf() as java:

        def also(file: FileDescriptorProto, data: bytes, truth: Row) -> None:
            assert repr(java.read(java.message(file, "Order"), data)) == repr(truth), file

        for _ in range(300):
            drawn.compare(also)
    for _ in range(2000):
        drawn.compare()
    for what, count in drawn.counts.items():
        tried(f"Protobuf: {what}", count)
