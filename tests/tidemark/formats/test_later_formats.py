"""Objects of a later format are refused by key, kind and version, and left alone; extra fields do no harm."""

from __future__ import annotations

import hashlib
import io
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.bad_objects import BODIES, HUGE, LATER
from tests.support.erased import erase
from tests.support.raw_builder import RawBuilder
from tests.tidemark.formats.packing import content, line
from tests.tidemark.test_unreadable import KINDS
from tidemark.errors import FormatError, LaterFormat, PreconditionFailed
from tidemark.formats.base import StoredObject, canonical
from tidemark.formats.raw.masks import digest_of
from tidemark.formats.raw.pack import RangePointer, build, range_of_line
from tidemark.formats.table.audit_report import AuditReport, AuditVerdict
from tidemark.formats.table.ledger import Ledger, Parent
from tidemark.formats.table.live_landing import LiveLanding, read_landing
from tidemark.formats.table.parquet_layout import ParquetLayout
from tidemark.formats.table.plan import RunPlan
from tidemark.monitoring.incidents import Incidents, page_of
from tidemark.monitoring.judgement import with_incidents
from tidemark.raw.masks import read_mask
from tidemark.store import open_store
from tidemark.table.evidence import FORMAT_KEY, EvidenceRow, parse_evidence, schema, to_parquet


def reads_up_to(newest: int) -> str:
    return f"Tidemark {version('tidemark-kafka')} reads formats up to {newest}"


READS = reads_up_to(1)
OWN = "install the version that wrote it, or a newer one"
NOW = datetime(2026, 11, 26, 12, tzinfo=UTC)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_each_kind_of_a_later_format_is_refused_with_the_version_to_install(kind: type[StoredObject]) -> None:
    newest = kind.newest_format()
    with pytest.raises(LaterFormat) as raised:
        kind.from_bytes(canonical({"format": newest + 1, "needs": "1.4"}), "a/b.json")
    stated = f"a/b.json: has format {newest + 1} of {kind.__name__}, and "
    assert str(raised.value) == f"{stated}{reads_up_to(newest)}: install Tidemark 1.4 or newer"


@pytest.mark.parametrize("needs", [None, 2, "", "latest", "1.4; rm", "1.4.0.0", "9" * 5, "\u0661.4"])
def test_a_version_that_is_none_is_not_repeated(needs: object) -> None:
    with pytest.raises(LaterFormat, match=f"{OWN}$"):
        Ledger.from_bytes(canonical({"format": 2, "needs": needs}), "k")


@pytest.mark.parametrize("body", [BODIES[what] for what in BODIES if what not in {LATER, HUGE}])
def test_what_is_damaged_is_of_no_later_format(body: bytes) -> None:
    with pytest.raises(FormatError) as raised:
        Ledger.from_bytes(body, "k")
    assert type(raised.value) is FormatError


@pytest.mark.parametrize("stated", [0, -1, "2", None, 1.5])
def test_what_is_no_format_is_damage(stated: object) -> None:
    with pytest.raises(FormatError, match="format: ") as raised:
        Ledger.from_bytes(canonical({"format": stated}), "k")
    assert type(raised.value) is FormatError


def test_the_line_of_a_range_states_a_later_format_itself() -> None:
    text = line(0, 3)
    later = text[:-2] + b',"format":2,"needs":"1.4"}\n'
    pointer = RangePointer(pack=f"1/{'0' * 32}.pack", position=3, length=len(later))
    with pytest.raises(LaterFormat, match=f"^k: has format 2 of Range, and {READS}: install Tidemark 1.4 or newer$"):
        range_of_line(later, "k", pointer)
    [pack] = build(5, [(content(), b"batch")])
    assert b'"format"' not in pack.body, "the first format is left out"
    assert range_of_line(text, "k", pointer).range.format == 1


def test_evidence_states_its_format() -> None:
    body = to_parquet([EvidenceRow(0, 0, 0, 5, "compacted", 5)], configuration="c", code="d", attempt=1)
    table = parse_evidence(body, "k")
    assert table.schema.equals(schema(), check_metadata=True)
    for metadata, refused in (({}, False), ({FORMAT_KEY: b"1"}, False), ({FORMAT_KEY: b"2"}, True)):
        sink = io.BytesIO()
        pq.write_table(table.replace_schema_metadata(metadata), sink)
        if refused:
            with pytest.raises(LaterFormat, match=f"^k: has format 2 of evidence, and {READS}: {OWN}$"):
                parse_evidence(sink.getvalue(), "k")
        else:
            assert parse_evidence(sink.getvalue(), "k") == table
    assert pq.ParquetFile(io.BytesIO(body)).schema_arrow.metadata == {FORMAT_KEY: b"1"}


def test_a_kind_of_incident_or_finding_that_a_later_version_adds_is_shown() -> None:
    fields = {"kind": "later", "key": "later/c", "cluster": "c", "title": "t", "text": "", "likely": "", "mend": ""}
    times = dict.fromkeys(("since", "opened_at", "updated_at"), NOW.isoformat())
    stored = canonical({"cluster": "c", "at": NOW.isoformat(), "incidents": [fields | times]})
    [incident] = Incidents.from_bytes(stored, "k").incidents
    assert (with_incidents("complete", [incident.kind]), page_of(incident.kind)) == ("attention", "continuity")

    told = {"cluster": "c", "topic": "t", "table": "t", "ledger_n": 1, "seconds": 1, "bytes_read": 0}
    found = [{"kind": "later", "detail": "rows are blue"}]
    report = AuditReport.from_bytes(canonical({**told, "started_at": NOW.isoformat(), "findings": found}), "k")
    assert "later: : rows are blue" in report.text()
    verdict = AuditVerdict(cluster="c", topic="t", audited_at=NOW).after(report, "url")
    assert AuditVerdict.from_bytes(verdict.to_bytes(), "k").failed[""].kind == "later"


class LaterLayout(ParquetLayout):
    """With a setting that a later version adds."""

    pages: int = 0


class LaterPlan(RunPlan):
    """With that layout."""

    layout: LaterLayout = LaterLayout()


def test_a_plan_with_a_setting_that_a_later_version_adds_is_refused_where_it_is_used() -> None:
    names = dict.fromkeys(("cluster", "topic", "table", "configuration", "code"), "c")
    numbers = dict.fromkeys(("attempt", "ledger_n", "ledger_attempt"), 1)
    plan = LaterPlan.model_validate({**names, **numbers, "kind": "ingest", "created_at": NOW, "layout": {"level": 3}})
    assert RunPlan.from_bytes(plan.to_bytes(), "k").layout == ParquetLayout(level=3)
    used = plan.model_copy(update={"layout": LaterLayout(pages=1)})
    with pytest.raises(FormatError, match=r"layout\.pages: Extra inputs"):
        RunPlan.from_bytes(used.to_bytes(), "k")


def test_a_landing_of_a_later_version_is_not_replaced(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}")
    store.put("k", b"{}")
    assert read_landing(store, "k").value is None
    store.put("k", b'{"format":2}')
    with pytest.raises(LaterFormat, match=LiveLanding.__name__):
        read_landing(store, "k")


def test_what_replaces_a_damaged_object_is_refused_where_another_writer_has_replaced_it(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}")
    assert LiveLanding.load_to_replace(store, "k") == (None, None)
    for damaged in (b"{}", b" " * (LiveLanding.most_bytes + 1)):
        damaged_etag = store.put("k", damaged)
        found, etag = LiveLanding.load_to_replace(store, "k")
        assert isinstance(found, FormatError)
        assert etag == damaged_etag
        store.put("k", b"another writer's")
        with pytest.raises(PreconditionFailed):
            store.put("k", b"ours", if_match=etag)


def test_a_ledger_names_the_bytes_of_its_parent() -> None:
    """Not those that this version would write: a later one adds fields, an earlier one lacks some."""
    fields = Ledger.genesis("c", "t", "t").model_dump(mode="json") | {"n": 1, "attempt": 5}
    del fields["version"]
    body = canonical(fields | {"added_later": 1})
    ledger = Ledger.from_bytes(body, "k")
    reference = Parent.of(ledger, body)
    assert ledger.to_bytes() != body
    assert reference is not None
    assert (reference.n, reference.attempt) == (1, 5)
    assert reference.sha256 == hashlib.sha256(body).hexdigest()


def test_a_mask_is_known_by_its_bytes(tmp_path: Path) -> None:
    raw = RawBuilder(open_store(f"file://{tmp_path}"))
    key = erase(raw, [3, 4])
    body = raw.store.get(key).body[:-1] + b',"added_later":1}'
    folder = key.rpartition("-")[0]
    named = f"{folder}-{digest_of(body)}.json"
    raw.store.put(named, body)
    assert read_mask(raw.store, named) == read_mask(raw.store, key)
    raw.store.put(key, body)
    with pytest.raises(FormatError, match="another content than its key names"):
        read_mask(raw.store, key)
