"""The audit: nothing to find in a sound table, and each planted fault found and named."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable
from deltalake.transaction import AddAction

from tests.spark.convert.test_parsers import function_parser
from tests.spark.inline import Inline
from tests.spark.run.test_runs import rebuild, spread
from tests.spark.world import World, in_process
from tests.support.live_end import Packer
from tests.support.raw_builder import EPOCH
from tests.tidemark.kafka_log.build import T0, Record, batch, marker, simple, with_records
from tidemark.errors import StoreError
from tidemark.formats.keys import SegmentName
from tidemark.formats.raw.cluster import FIRST_SLOT
from tidemark.formats.table.audit_report import AuditFinding, AuditReport, AuditVerdict
from tidemark.monitoring import topic_conditions
from tidemark.planning import plan_replay, write_plan
from tidemark.table.delta_table import LiveFile, live_files, open_delta
from tidemark.table.evidence import evidence_key
from tidemark_spark.audit.run import audit
from tidemark_spark.cli import audit as command
from tidemark_spark.run.driver import run

DAYS = ("2026-02-02", "2026-02-03", "2026-02-04")


def audited(world: World, *dates: str) -> AuditReport:
    """The report on the world's table."""
    return audit(world.table, in_process, dates)


def found(world: World, *dates: str) -> list[AuditFinding]:
    """What an audit finds."""
    return list(audited(world, *dates).findings)


@pytest.fixture
def landed(world: World) -> World:
    """Two partitions with rows of three dates, an aborted transaction and quarantined rows."""
    spread(world)
    world.land()
    return world


def file_of(world: World, dt: str, partition: int = 0) -> LiveFile:
    """The file of a date and partition."""
    delta = open_delta(world.table)
    assert delta is not None
    return next(one for one in live_files(delta) if one.dt == dt and f"_{partition}_" in one.path)


def key_of(world: World, file: LiveFile) -> str:
    """Its key."""
    return f"{world.table.keys.root}/{file.path}"


def rewrite(world: World, file: LiveFile, change: Callable[[pa.Table], pa.Table]) -> None:
    """Replace a file by one with other rows."""
    rows = world.read(file.path)
    sink = io.BytesIO()
    pq.write_table(change(rows).cast(rows.schema), sink)
    world.table.store.put(key_of(world, file), sink.getvalue())


def rewrite_evidence(world: World, change: Callable[[list[dict[str, Any]]], None]) -> None:
    """Change the rows of the only attempt's evidence."""
    key = evidence_key(world.table, world.ledger.landed[0])
    table = pq.ParquetFile(io.BytesIO(world.table.store.get(key).body)).read()
    rows = table.to_pylist()
    change(rows)
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), sink)
    world.table.store.put(key, sink.getvalue())


def test_a_sound_table_is_proved_by_raw(landed: World) -> None:
    report = audited(landed)
    assert report.passed, report.text()
    assert [(one.partition, one.offsets, one.rows, one.by_raw) for one in report.partitions] == [
        (0, 22, 17, 22),
        (1, 22, 17, 22),
    ]
    assert all(not one.by_evidence for one in report.partitions)
    assert report.bytes_read > 0


def test_a_table_that_nothing_landed_in_is_sound(world: World) -> None:
    world.raw.publish()
    report = audited(world)
    assert (report.passed, report.partitions, report.ledger_n) == (True, (), 0)


def test_the_report_states_how_agents_got_the_log(world: World) -> None:
    """A seal of a disk agent, one of a slot, and what that slot has packed since."""
    world.raw.segment([simple(0)])
    world.raw.origin = "fetch"
    world.raw.segment([simple(3)])
    Packer(world.raw, FIRST_SLOT + 1).pack([simple(6)])
    world.land()
    report = audited(world)
    [part] = report.partitions
    assert (part.by_raw, part.fetched) == (9, 6)
    assert "9 compared with raw (origin disk: 3, fetch: 6)" in report.text()


def test_a_rebuilt_and_a_replayed_table_are_proved_by_raw(tmp_path: Path) -> None:
    strict = World(tmp_path, function_parser("sizes"))
    values = [b"", b"abc", b"abcd", None, b"xyz", b"12345"]
    strict.raw.segment([batch(0, [Record(i, T0, b"k", value) for i, value in enumerate(values)])])
    strict.land()
    report = audited(strict)
    assert report.passed, report.text()
    rebuild(strict, DAYS[0])
    assert audited(strict).passed
    plan = plan_replay(strict.table)
    write_plan(strict.table, plan)
    run(strict.table, plan, in_process)
    assert audited(strict).passed


def test_refused_batches_holes_and_topics_that_keep_less_are_no_difference(tmp_path: Path) -> None:
    world = World(tmp_path, "keep: [value, timestamp]")
    world.raw.segment([simple(0), with_records(simple(3), b"\xff" * 40), simple(6)])
    known = world.raw.partition(1)
    known.start_offset, known.end, known.remote_tier = 100, 100, ((40, 100),)
    world.raw.segment([simple(100), simple(105)], 1)
    for _ in range(2):
        world.raw.publish()
        run(world.table, world.plan(), in_process)
        world.raw.acknowledge(103, 105, 1)
    report = audited(world)
    assert report.passed, report.text()
    assert [(one.offsets, one.rows, one.without_segment) for one in report.partitions] == [(9, 6, 0), (108, 6, 102)]
    assert [one.remote_tier for one in report.partitions] == [0, 60]
    assert "102 that no segment held, of which 60 are only in Kafka's remote tier" in report.text()
    file = file_of(world, DAYS[0])
    rewrite(world, file, lambda rows: rows.set_column(4, "kafka_value", pa.array([b"other"] * 6)))
    assert {one.kind for one in found(world)} == {"rows_differ"}


def test_rows_that_landed_with_other_settings_are_compared_as_records(tmp_path: Path) -> None:
    world = World(tmp_path)
    spread(world)
    world.land()
    changed = World(tmp_path, "time_zone: Asia/Tokyo")
    changed.raw = world.raw
    report = audited(changed)
    assert report.passed, report.text()
    assert [one.other_settings for one in report.partitions] == [22, 22]
    file = file_of(world, DAYS[0])
    rewrite(world, file, lambda rows: rows.slice(1))
    assert "rows_differ" in {one.kind for one in found(changed)}


def test_a_branch_that_was_left_is_neither_missed_nor_counted(world: World) -> None:
    """Files above the cut are gone, one across it was written again, and offsets have another class than before."""
    world.raw.segment([simple(0, 4), batch(4, [Record(0, T0), Record(1, 0), Record(2, T0)])])
    world.raw.segment([simple(7, 3), marker(10, 7, commit=True)])
    world.land()
    known = world.raw.partition()
    known.lineage, known.leader_epoch = ((EPOCH, 0), (5, 6)), 5
    world.raw.segment([simple(6, 8, leader_epoch=5)], base=6)
    world.land()
    assert [row["rows"] for row in world.evidence() if row["class"] == "truncated"] == [5]
    assert found(world) == []
    file = max(live_files(DeltaTable(world.table.url)), key=lambda one: one.path.split("_")[2])
    rewrite(world, file, lambda rows: rows.slice(1))
    differing = [(one.kind, one.offsets) for one in found(world)]
    assert differing == [("count_differs", ()), ("rows_differ", ((6, 7),))]


def test_a_missing_file_is_named(landed: World) -> None:
    file = file_of(landed, DAYS[1])
    landed.table.store.delete(key_of(landed, file))
    [finding] = found(landed)
    assert (finding.kind, finding.files, finding.dt, finding.partition) == ("missing_file", (file.path,), DAYS[1], 0)
    assert finding.offsets
    assert found(landed, DAYS[1]) == [finding]


def test_any_flipped_bit_of_a_file_is_found(landed: World) -> None:
    file = file_of(landed, DAYS[0])
    sound = landed.table.store.get(key_of(landed, file)).body
    footer = int.from_bytes(sound[-8:-4], "little")
    data = len(sound) - 8 - footer
    unseen = []
    for at in range(4, data, 37):
        damaged = bytearray(sound)
        damaged[at] ^= 1 << at % 8
        landed.table.store.put(key_of(landed, file), bytes(damaged))
        findings = found(landed, DAYS[0])
        if not findings:
            unseen.append(at)
        elif not any(file.path in one.files for one in findings):
            pytest.fail(f"byte {at}: {findings}")
    for at in unseen:  # bits that carry no meaning: the file must give the very same rows
        damaged = bytearray(sound)
        damaged[at] ^= 1 << at % 8
        assert pq.read_table(pa.BufferReader(bytes(damaged))).equals(pq.read_table(pa.BufferReader(sound))), at


def test_a_changed_value_is_located(landed: World) -> None:
    file = file_of(landed, DAYS[2])

    def change(rows: pa.Table) -> pa.Table:
        values = rows["kafka_value"].to_pylist()
        values[1] = b"V0"
        at = rows.schema.get_field_index("kafka_value")
        return rows.set_column(at, "kafka_value", pa.array(values, pa.binary()))

    offset = landed.read(file.path)["kafka_offset"][1].as_py()
    rewrite(landed, file, change)
    [finding] = found(landed)
    assert (finding.kind, finding.offsets, finding.files) == ("rows_differ", ((offset, offset + 1),), (file.path,))
    assert (finding.dt, finding.partition) == (DAYS[2], 0)


def test_offsets_are_located_in_ranges_of_many_rows(world: World) -> None:
    world.raw.segment([batch(500 * i, [Record(k, T0, b"k", b"v") for k in range(500)]) for i in range(10)])
    world.land()
    file = file_of(world, DAYS[0])
    rewrite(world, file, lambda rows: pa.concat_tables([rows.slice(0, 77), rows.slice(78, 4000), rows.slice(4079)]))
    differing = [one for one in found(world) if one.kind == "rows_differ"]
    assert [one.offsets for one in differing] == [((77, 78), (4078, 4079))]


def test_a_column_that_no_hash_covers_is_compared_too(landed: World) -> None:
    file = file_of(landed, DAYS[0])
    at = landed.read(file.path).schema.get_field_index("kafka_leader_epoch")
    rewrite(landed, file, lambda rows: rows.set_column(at, "kafka_leader_epoch", pa.array([9] * len(rows), pa.int32())))
    findings = found(landed)
    assert {one.kind for one in findings} == {"columns_differ"}
    assert "kafka_leader_epoch" in findings[0].detail


def test_a_duplicate_row_is_located(landed: World) -> None:
    file = file_of(landed, DAYS[0], 1)
    rewrite(landed, file, lambda rows: pa.concat_tables([rows, rows.slice(2, 1)]))
    offset = landed.read(file.path)["kafka_offset"][2].as_py()
    findings = {one.kind: one for one in found(landed)}
    assert set(findings) == {"rows_differ", "count_differs"}
    assert (findings["rows_differ"].offsets, findings["rows_differ"].partition) == (((offset, offset + 1),), 1)


def test_a_row_in_the_place_of_another_is_located(landed: World) -> None:
    file = file_of(landed, DAYS[0])
    rewrite(landed, file, lambda rows: pa.concat_tables([rows.slice(0, 1), rows.slice(0, 1), rows.slice(2)]))
    first, second = landed.rows()[0]["kafka_offset"], 3
    [finding] = found(landed)
    assert finding.offsets == ((first, first + 1), (second, second + 1))


def test_a_row_in_the_wrong_date_is_found_on_both_sides(landed: World) -> None:
    here_, there = file_of(landed, DAYS[0]), file_of(landed, DAYS[1])
    moved = landed.read(here_.path).slice(1, 1)
    rewrite(landed, here_, lambda rows: pa.concat_tables([rows.slice(0, 1), rows.slice(2)]))
    there_too = moved.set_column(moved.schema.names.index("dt"), "dt", landed.read(there.path)["dt"].slice(0, 1))
    rewrite(landed, there, lambda rows: pa.concat_tables([rows, there_too]))
    offset = moved["kafka_offset"][0].as_py()
    differing = [one for one in found(landed) if one.kind == "rows_differ"]
    assert [(one.dt, one.offsets) for one in differing] == [
        (DAYS[0], ((offset, offset + 1),)),
        (DAYS[1], ((offset, offset + 1),)),
    ]


def test_a_file_whose_rows_have_another_date_than_its_folder_is_found(landed: World) -> None:
    file, other = file_of(landed, DAYS[0]), landed.read(file_of(landed, DAYS[1]).path)
    place, dt = other.schema.names.index("dt"), other["dt"].slice(0, 1)
    rewrite(landed, file, lambda rows: pa.concat_tables([rows.slice(1), rows.slice(0, 1).set_column(place, "dt", dt)]))
    [unreadable] = [one for one in found(landed) if one.kind == "unreadable_file"]
    assert (unreadable.files, unreadable.dt) == ((file.path,), DAYS[0])
    assert f"dt = {DAYS[1]}" in unreadable.detail


def test_a_row_that_raw_does_not_have_is_found(landed: World) -> None:
    file = file_of(landed, DAYS[0])

    def add(offset: int) -> None:
        rows = landed.read(file.path)
        extra = rows.slice(0, 1).set_column(2, "kafka_offset", pa.array([offset], pa.int64()))
        rewrite(landed, file, lambda rows: pa.concat_tables([rows, extra.cast(rows.schema)]))

    add(11)  # of the aborted transaction
    assert (11, 12) in [span for one in found(landed) if one.kind == "rows_differ" for span in one.offsets]
    add(1000)
    [stray] = [one for one in found(landed) if one.kind == "stray_rows"]
    assert (stray.offsets, stray.files, stray.dt) == (((1000, 1001),), (file.path,), DAYS[0])


def test_a_file_that_nothing_names_is_found(landed: World) -> None:
    file = file_of(landed, DAYS[0])
    body = landed.table.store.get(key_of(landed, file)).body
    path = f"dt={DAYS[0]}/planted.parquet"
    landed.table.store.put(f"{landed.table.keys.root}/{path}", body)
    delta = DeltaTable(landed.table.url)
    stats = json.dumps({"numRecords": file.rows})
    action = AddAction(path, len(body), {"dt": DAYS[0]}, 0, True, stats)
    delta.create_write_transaction([action], "append", delta.schema(), ["dt"], commit_properties=CommitProperties())
    kinds = {one.kind: one for one in found(landed)}
    assert set(kinds) == {"unknown_file", "count_differs"}
    assert kinds["unknown_file"].files == (path,)


def test_a_deleted_row_of_the_log_is_found(landed: World) -> None:
    file = file_of(landed, DAYS[0])
    DeltaTable(landed.table.url).delete(f"dt = '{DAYS[0]}' and kafka_partition = 0")
    kinds = {one.kind for one in found(landed)}
    assert {"count_differs", "offsets_unaccounted", "rows_differ"} <= kinds
    assert file.path not in {one for finding in found(landed) for one in finding.files}


def test_a_wrong_class_in_the_evidence_is_located(landed: World) -> None:
    def swap(rows: list[dict[str, Any]]) -> None:
        row = next(row for row in rows if row["class"] == "aborted" and row["partition"] == 1)
        row["class"] = "compacted"

    rewrite_evidence(landed, swap)
    findings = found(landed)
    assert {one.kind for one in findings} == {"evidence_differs"}
    assert {(one.partition, one.offsets) for one in findings} == {(1, ((9, 12),))}


def test_evidence_that_lies_of_a_date_a_hash_or_a_number_is_found(landed: World) -> None:
    def lie(field: str, value: Any) -> set[str]:
        kept: list[Any] = []

        def change(rows: list[dict[str, Any]]) -> None:
            row = next(row for row in rows if row["class"] == "landed")
            kept.append(row[field])
            row[field] = value

        rewrite_evidence(landed, change)
        kinds = {str(one.kind) for one in found(landed)}
        rewrite_evidence(landed, lambda rows: _restore(rows, field, kept[0]))
        return kinds

    assert "evidence_differs" in lie("hash128", bytes(16))
    assert {"evidence_differs", "offsets_unaccounted"} <= lie("rows", 1)
    assert "evidence_differs" in lie("dt", landed.rows()[1]["kafka_timestamp"].date())
    assert found(landed) == []


def _restore(rows: list[dict[str, Any]], field: str, value: Any) -> None:
    next(row for row in rows if row["class"] == "landed")[field] = value


def test_where_raw_is_gone_the_evidence_proves_the_table(landed: World) -> None:
    for extension in ("log", "manifest.json", "index"):  # as retention leaves it: a tombstone, or nothing
        landed.raw.store.delete(landed.raw.keys(0).segment(SegmentName(0), extension))
    landed.raw.store.delete(landed.raw.keys(1).segment(SegmentName(12), "log"))
    report = audited(landed)
    assert report.passed, report.text()
    assert [(one.by_evidence, one.by_raw) for one in report.partitions] == [(((0, 12),), 10), (((12, 22),), 12)]
    assert "proved by evidence, as raw is gone: 0 to 11" in report.text()
    file = file_of(landed, DAYS[0])
    sound = landed.table.store.get(key_of(landed, file)).body
    rewrite(landed, file, lambda rows: rows.slice(1))
    assert {one.kind for one in found(landed)} == {"rows_differ", "count_differs"}
    landed.table.store.put(key_of(landed, file), sound)
    assert audited(landed).passed
    at = landed.read(file.path).schema.get_field_index("kafka_key")
    rewrite(landed, file, lambda rows: rows.set_column(at, "kafka_key", pa.array([b"other"] * len(rows))))
    assert "rows_differ" in {one.kind for one in found(landed)}


def test_where_all_of_raw_is_gone_the_evidence_proves_the_table(landed: World) -> None:
    for one in list(landed.raw.store.list("")):
        landed.raw.store.delete(one.key)
    report = audited(landed)
    assert report.passed, report.text()
    assert all(one.by_raw == 0 and one.by_evidence for one in report.partitions)


def test_damage_in_raw_is_told_apart_from_damage_in_the_table(landed: World) -> None:
    key = landed.raw.keys(0).segment(SegmentName(0), "log")
    damaged = bytearray(landed.raw.store.get(key).body)
    damaged[-3] ^= 1
    landed.raw.replace_log(key, bytes(damaged))
    findings = found(landed)
    assert [(one.kind, one.files) for one in findings] == [("raw_unreadable", (key,))]


def test_quarantine_is_audited_too(landed: World) -> None:
    [path] = {row["file"] for row in landed.holding() if row["class"] == "quarantined" and row["partition"] == 0}
    key = f"{landed.table.keys.quarantine}/{path}"
    body = landed.table.store.get(key).body
    landed.table.store.delete(key)
    [finding] = found(landed)
    assert (finding.kind, finding.files, finding.offsets) == ("missing_file", (path,), ((13, 14),))
    table = pq.read_table(pa.BufferReader(body))
    at = table.schema.get_field_index("kafka_value")
    sink = io.BytesIO()
    pq.write_table(table.set_column(at, table.schema.field(at), pa.array([b"other"], pa.binary())), sink)
    landed.table.store.put(key, sink.getvalue())
    [finding] = found(landed)
    assert (finding.kind, finding.offsets) == ("rows_differ", ((13, 14),))


def test_only_the_dates_that_are_named_are_read(world: World) -> None:
    for day in range(3):
        world.raw.segment([batch(9 * day, [Record(i, T0 + day * 86_400_000) for i in range(9)])])
        world.land()
    whole, part = audited(world), audited(world, DAYS[1])
    assert part.passed
    assert 0 < part.bytes_read < whole.bytes_read / 2
    assert [one.offsets for one in part.partitions] == [9]
    world.table.store.delete(key_of(world, file_of(world, DAYS[0])))
    assert found(world, DAYS[1]) == []
    assert [one.kind for one in found(world, DAYS[0])] == ["missing_file"]


def test_the_command_writes_a_report_and_says_what_differs(landed: World, capsys: Any) -> None:
    arguments = ["--topics", str(landed.topics_file), "--topic", "orders"]
    assert command.main(arguments, Inline()) == 0
    assert "the table is what raw and evidence say" in capsys.readouterr().out
    file = file_of(landed, DAYS[0])
    landed.table.store.delete(key_of(landed, file))
    assert command.main([*arguments, "--json", "--from", DAYS[0], "--to", DAYS[1]], Inline()) == 1
    report = AuditReport.from_bytes(capsys.readouterr().out.encode(), "output")
    assert [one.files for one in report.findings] == [(file.path,)]
    written = [AuditReport.from_bytes(landed.table.store.get(one.key).body, one.key) for one in _reports(landed)]
    assert [one.passed for one in written] == [True, False]
    assert written[1] == report
    assert list(_verdict(landed).failed) == [DAYS[0]]
    assert command.main([*arguments, "--dt", "yesterday"], Inline()) == 2
    assert command.main([*arguments, "--from", DAYS[1], "--to", DAYS[0]], Inline()) == 2
    assert command.main(["--topics", str(landed.topics_file), "--topic", "nothing"], Inline()) == 2


def test_an_audit_that_cannot_be_carried_out_is_one_that_failed(landed: World) -> None:
    class Unreachable(Inline):
        def on_each(self, work: Callable[[Any, Any], Any], common: Any, tasks: Sequence[Any]) -> list[Any]:
            raise StoreError("raw", "does not answer")

    arguments = ["--topics", str(landed.topics_file), "--topic", "orders", "--dt", DAYS[0]]
    assert command.main(arguments, Unreachable()) == 1
    assert "raw: does not answer" in _verdict(landed).failed[DAYS[0]].first
    assert command.main(arguments, Inline()) == 0
    assert _verdict(landed).failed == {}


def _verdict(world: World) -> AuditVerdict:
    key = world.table.keys.deployment.verdict("orders")
    return AuditVerdict.from_bytes(world.table.store.get(key).body, key)


def _reports(world: World) -> list[Any]:
    listed = world.table.store.list(world.table.keys.audits)
    return sorted(listed, key=lambda one: one.key.rpartition("/")[2])


@pytest.mark.parametrize(
    "left_over", [[], [simple(0)], [simple(0), simple(6)]], ids=["nothing", "the start", "both ends"]
)
@pytest.mark.parametrize("pack", ["is there", "is gone"])
def test_rows_that_landed_from_a_pack_and_that_raw_does_not_keep(
    world: World, left_over: list[bytes], pack: str
) -> None:
    """Compaction had emptied the log before it was sealed. A rebuild would remove the rows."""
    packer = Packer(world.raw)
    packed = packer.pack([simple(0), simple(3), simple(6)], compacted=True)
    world.land()
    packer.drop()
    world.raw.segment(left_over, next_offset=9, compacted=True)
    world.raw.segment([simple(9)])
    world.land()
    if pack == "is gone":
        world.raw.store.delete(packed.key)
    report = audited(world)
    [finding] = report.findings
    assert (finding.kind, finding.partition, finding.dt) == ("raw_lacks", 0, DAYS[0])
    assert finding.offsets == ((0, 9),)
    assert f"9 rows landed, and raw has {3 * len(left_over)}: {packed.key} had them" in finding.detail
    cure = "`tidemark-agent reupload orders 0 --from-packs` adds them to raw"
    assert (cure in finding.detail) == (pack == "is there")
    assert ("do not rebuild or repair the date" in finding.detail) == (pack == "is gone")
    [part] = report.partitions
    assert (part.rows, part.by_raw, part.by_evidence) == (12, 3, ((0, 9),))
    file = file_of(world, DAYS[0])
    world.table.store.delete(key_of(world, file))
    assert {one.kind for one in found(world)} == {"raw_lacks", "missing_file"}, "evidence proves the files"


def test_an_audit_that_finds_rows_that_raw_lacks_asks_for_no_rebuild(landed: World) -> None:
    other = AuditFinding(kind="count_differs", detail="other")
    lacks = AuditFinding(kind="raw_lacks", detail="had them; `reupload` adds them")
    report = audited(landed).model_copy(update={"findings": (other, lacks)})
    verdict = AuditVerdict(cluster="east", topic="orders", audited_at=report.started_at).after(
        report, "s3://lake/report"
    )
    [condition] = topic_conditions.audits(verdict)
    assert "raw_lacks" in condition.text
    assert condition.mend == "do as the finding says, and do not rebuild the date before; the report: s3://lake/report"
    assert condition.likely.startswith("compaction had removed")
