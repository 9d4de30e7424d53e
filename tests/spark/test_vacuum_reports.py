"""Old reports, and what else tells of runs that are over, go by a vacuum; one that is killed is done by the next."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.spark.test_vacuum import Died
from tests.spark.test_vacuum_ledgers import backwards, land, passed
from tests.spark.world import World
from tidemark.backfill.report import read_report, write_part
from tidemark.backfill.request import BackfillRequest
from tidemark.errors import NotFound
from tidemark.formats.raw.lineage import JobLineage
from tidemark.formats.table.audit_report import AuditFailure, AuditFinding, AuditReport
from tidemark.formats.table.plan import RunProgress
from tidemark.openlineage.hand_over import new_place, put, read
from tidemark.planning.maintenance.vacuum import REPORTS_KEPT, RUN_OVER
from tidemark.raw import objects
from tidemark.store import LocalStore
from tidemark.timestamps import utc_now
from tidemark_spark.audit.run import change_verdict, write_report
from tidemark_spark.run import vacuum as cleaning
from tidemark_spark.run.vacuum import vacuum


def audited(world: World, *dates: str, wrong: bool = False) -> str:
    """The key of a new report on ``dates``."""
    findings = (AuditFinding(kind="count_differs", detail="planted"),) if wrong else ()
    ledger = world.ledger
    return write_report(
        world.table,
        AuditReport(
            cluster=ledger.cluster,
            topic=ledger.topic,
            table=ledger.table,
            ledger_n=ledger.n,
            started_at=utc_now(),
            seconds=1,
            bytes_read=0,
            dates=dates,
            findings=findings,
        ),
    )


def asked(world: World, name: str, by: str = "ada") -> None:
    """A backfill's report that has no more than its request."""
    topic, day = world.table.topic, date.fromisoformat(next(iter(world.ledger.dates)))
    request = BackfillRequest(
        cluster=topic.cluster,
        topic=topic.topic,
        mode="rebuild",
        first=day,
        last=day,
        extend=False,
        differences=True,
        dry_run=True,
        max_bytes=1,
        approve_above=1,
        reason="",
        by=by,
        run=name,
    )
    write_part(world.table, name, "request", request)


def reports(world: World) -> set[str]:
    keys = world.table.keys
    return {one.key for folder in (keys.audits, keys.reports) for one in world.table.store.list(folder)}


@pytest.fixture
def old(world: World, tmp_path: Path) -> World:
    """A table of one date with two old audits of it and two old backfills, of which the newer ones are needed.

    The newest audit is of all dates.
    """
    land(world)
    [dt] = world.ledger.dates
    for name in ("1" * 16, "2" * 16):
        audited(world, dt)
        asked(world, name)
        world.table.store.put(world.table.keys.report(name, "preview"), b"{}")
        passed(world, tmp_path, REPORTS_KEPT + timedelta(days=1))
    audited(world)
    return world


def test_old_reports_go_and_the_newest_of_a_date_and_of_the_table_stay(old: World) -> None:
    before = reports(old)
    assert vacuum(old.table, dry_run=True).reports == 3
    assert reports(old) == before
    assert vacuum(old.table).reports == 3
    parts = {old.table.keys.report("2" * 16, one) for one in ("request", "preview")}
    audits = {one.partition("/audits/")[2].partition("/")[0] for one in reports(old) - parts}
    assert parts < reports(old)
    assert audits == {*old.ledger.dates, "all"}
    with pytest.raises(NotFound):
        read_report(old.table, "1" * 16)
    assert vacuum(old.table).reports == 0
    old.check()


def test_a_report_that_an_incident_names_stays_until_the_date_passes(old: World, tmp_path: Path) -> None:
    other = "2020-01-01"  # of which the table has no rows
    wrong = audited(old, other, wrong=True)
    passed(old, tmp_path, REPORTS_KEPT + timedelta(days=1))
    audited(old)  # the newest of the table, and not of the date
    change_verdict(old.table, lambda known: known.model_copy(update={"failed": {other: failure(old, wrong)}}))
    vacuum(old.table)
    assert wrong in reports(old)
    change_verdict(old.table, lambda known: known.model_copy(update={"failed": {}}))
    vacuum(old.table)
    assert wrong not in reports(old)


def failure(world: World, key: str) -> AuditFailure:
    """As an incident names the report."""
    now = utc_now()
    return AuditFailure(since=now, at=now, first="planted", report=f"{world.table.deployment.lake_store}/{key}")


@pytest.mark.parametrize("survives", range(3))
def test_a_vacuum_that_dies_between_two_reports_is_done_by_the_next(
    old: World, monkeypatch: pytest.MonkeyPatch, survives: int
) -> None:
    real: Callable[..., None] = LocalStore.delete
    done: list[str] = []

    def dying(self: LocalStore, key: str, **options: Any) -> None:
        if "/audits/" in key or "/reports/" in key:
            if len(done) == survives:
                raise Died
            done.append(key)
        real(self, key, **options)

    before = reports(old)
    with monkeypatch.context() as patch:
        for module in (cleaning, objects):
            patch.setattr(module, "in_parallel", backwards)
        patch.setattr(LocalStore, "delete", dying)
        with pytest.raises(Died):
            vacuum(old.table)
    assert before - reports(old) == {*done}
    assert vacuum(old.table).reports == 3 - survives
    assert len(reports(old)) == 4
    old.check()


def test_a_report_that_is_written_again_while_the_vacuum_runs_stays(
    old: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody clears an old run of a backfill."""
    real: Callable[..., None] = LocalStore.delete

    def racing(self: LocalStore, key: str, **options: Any) -> None:
        if key == old.table.keys.report("1" * 16, "request"):
            asked(old, "1" * 16, by="grace")
        real(self, key, **options)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "delete", racing)
        vacuum(old.table)
    assert read_report(old.table, "1" * 16).request.by == "grace"


def test_what_only_a_run_needs_goes_when_no_run_can_need_it(world: World, tmp_path: Path) -> None:
    land(world)
    table, cluster, place = world.table, world.table.topic.cluster, new_place()
    put(table.deployment, cluster, place, JobLineage(inputs=(), outputs=()))
    progress = RunProgress(attempt=7, total=2, done=1, started_at=utc_now(), at=utc_now())
    table.store.put(table.keys.progress(7), progress.to_bytes())
    passed(world, tmp_path, RUN_OVER - timedelta(minutes=1))
    vacuum(table)
    assert read(table.deployment, cluster, place) is not None, "its task may still read it"
    assert table.store.head(table.keys.progress(7))
    passed(world, tmp_path, timedelta(minutes=2))
    vacuum(table)
    assert read(table.deployment, cluster, place) is None
    assert not list(table.store.list(table.keys.all_progress))
