"""The tasks of a backfill: what they ask of the job, when they refuse, when they ask a person."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.sdk import DAG, Context
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, TaskAwaitingInput

from tests.plugins.world import CLUSTER, World
from tidemark.backfill.preview import DatePreview, PartitionPreview, Preview
from tidemark.backfill.report import Approval, BackfillOutcome, BackfillReport, Comparison, read_report, write_part
from tidemark.backfill.report_tables import sections, text
from tidemark.backfill.request import APPROVE_ABOVE_DAYS, BackfillRequest, check_request, report_name
from tidemark.formats.table.plan import RunResult
from tidemark.jobs.registry import JOBS
from tidemark.timestamps import utc_now
from tidemark_airflow.dag_factories import backfill
from tidemark_airflow.operators import backfill as backfilling
from tidemark_airflow.operators.backfill import (
    ApproveOperator,
    CompareOperator,
    Previewed,
    PreviewOperator,
    ReportLink,
    ResultOperator,
    job_of,
    why_approve,
)
from tidemark_airflow.operators.spark_job import JobOperator, RunPlanOperator

RUN = "manual__2026-11-21"
NAME = report_name(RUN)
FORM: dict[str, Any] = {"topics": [f"{CLUSTER}/orders"], "from_date": "2026-01-01", "to_date": "2026-01-02"}
WET = {"dry_run": False, "reason": "INC-7"}
DATES = ("--from", "2026-01-01", "--to", "2026-01-02")
COMPARED = ("--compare", "--at-most", str(1000 << 30))
CONTEXT = cast("Context", {"run_id": RUN, "task_instance": SimpleNamespace(id="ti")})


def request(world: World, **change: Any) -> BackfillRequest:
    [found] = check_request(world.deployment, FORM | change, today=utc_now().date(), by="ada", run=RUN)
    return found


def shown(*, size: int = 5, dates: int = 1, planned: bool = True) -> Preview:
    """A dry run of ``size`` bytes."""
    one = DatePreview(
        dt="2026-01-01", state="final", rows=3, quarantined=0, filtered=0, files=1, bytes=9, other_settings=0
    )
    part = PartitionPreview(
        incarnation=0, partition=0, start=0, end=9, segments=1, first="a.log", last="a.log", bytes=size
    )
    return Preview(
        cluster=CLUSTER,
        topic="orders",
        table="orders",
        ledger_n=3,
        whole=False,
        dates=(one,) * dates,
        added=(),
        partitions=(part,),
        tasks=1,
        segments=1,
        bytes=size,
        removes=("dt=2026-01-01/a.parquet",),
        columns=(),
        attempt=7 if planned else 0,
        plan="attempts/7.json" if planned else "",
    )


def nothing_changes() -> Comparison:
    return Comparison(
        cluster=CLUSTER,
        topic="orders",
        table="orders",
        ledger_n=3,
        configuration="",
        code="",
        dates=("2026-01-01",),
        rows=3,
        bytes_read=9,
    )


def words(job: str, options: dict[str, Any]) -> list[str]:
    """The arguments of these options behind the file's and the topic's."""
    return JOBS[job].of(topics="t", topic="orders", **options).arguments()[4:]


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch, world: World) -> list[list[str]]:
    """What the jobs were told; each finds nine GiB to read, and compares if it was told to."""
    found: list[list[str]] = []

    def submit(operator: JobOperator, _: Context, **options: Any) -> None:
        arguments = words(operator.job, options)
        found.append([f"{operator.job}.py", *arguments])
        write_part(world.table(), NAME, "preview", shown(size=9 << 30, planned="--dry-run" not in arguments))
        if "--compare" in arguments:
            write_part(world.table(), NAME, "comparison", nothing_changes(), 7)

    monkeypatch.setattr(JobOperator, "submit", submit)
    return found


def previewed(world: World, **change: Any) -> Previewed:
    asked = request(world, **change)
    operator = PreviewOperator(
        task_id="preview", cluster=CLUSTER, topic="orders", request=asked.model_dump(mode="json")
    )
    return operator.execute(CONTEXT)


@pytest.mark.parametrize(
    ("change", "arguments"),
    [
        ({}, ["rebuild", "--dry-run", *DATES]),
        (WET | {"extend": True}, ["rebuild", *DATES, "--extend", *COMPARED]),
        (WET | {"differences": False}, ["rebuild", *DATES]),
        (WET | {"mode": "compare", "max_gib": 8}, ["rebuild", *DATES, "--compare", "--at-most", str(8 << 30)]),
        (WET | {"mode": "repair"}, ["repair"]),
        (WET | {"mode": "schema", "schema_version": 7}, ["rebuild", "--all", "--schema", "7", *COMPARED]),
        (WET | {"mode": "missing"}, ["rebuild", *DATES, "--missing"]),
        (WET | {"mode": "replay"}, ["replay", "--dt", "2026-01-01", "--dt", "2026-01-02"]),
        (
            {"mode": "replay", "extend": True},
            ["replay", "--dry-run", "--dt", "2026-01-01", "--dt", "2026-01-02", "--dt", "none"],
        ),
    ],
)
def test_the_job_is_told_checked_words_alone(world: World, change: dict[str, Any], arguments: list[str]) -> None:
    asked = request(world, **change)
    job, options = job_of(asked)
    assert [job, *words(job, options)] == arguments


def test_a_preview_puts_request_and_plan_into_the_report(world: World, submitted: list[list[str]]) -> None:
    found = previewed(world, **WET)

    assert submitted == [["rebuild.py", "--report", NAME, *DATES, *COMPARED]]
    assert found["planned"] == {"empty": False, "attempt": "7", "plan": "attempts/7.json", "tasks": 1, "bytes": 9 << 30}
    report = read_report(world.table(), NAME)
    assert (report.request.by, report.request.reason) == ("ada", "INC-7")
    assert report.state == "running"


def test_a_dry_run_leaves_nothing_to_carry_out(world: World, submitted: list[list[str]]) -> None:
    assert previewed(world)["planned"]["empty"]
    assert submitted == [["rebuild.py", "--dry-run", "--report", NAME, *DATES]]
    assert read_report(world.table(), NAME).state == "dry run"


@pytest.mark.usefixtures("submitted")
def test_more_than_allowed_is_shown_in_a_dry_run_and_refused_otherwise(world: World) -> None:
    previewed(world, max_gib=8)
    with pytest.raises(AirflowFailException, match=r"max_gib: 9.00 GiB of kafka-1/orders .* than the 8.00 GiB allowed"):
        previewed(world, max_gib=8, **WET)
    previewed(world, max_gib=9, **WET)


def compared(found: Previewed) -> None:
    CompareOperator(task_id="compare", **found).execute(CONTEXT)


def test_rows_are_compared_by_the_preview_where_that_is_asked_for(world: World, submitted: list[list[str]]) -> None:
    found = previewed(world, **WET)
    compared(found)
    assert len(submitted) == 1
    world.table().store.delete(world.table().keys.report(NAME, "comparison", 7))
    with pytest.raises(AirflowFailException, match=r"comparison-7.json: is gone"):
        compared(found)
    with pytest.raises(AirflowSkipException, match="not asked for"):
        compared(previewed(world, differences=False, **WET))
    with pytest.raises(AirflowSkipException, match="no plan"):
        compared(previewed(world))


def approving(found: list[Previewed]) -> ApproveOperator:
    return ApproveOperator(task_id="approve", previewed=found, execution_timeout=None)


@pytest.mark.usefixtures("submitted")
def test_only_what_is_large_waits_for_a_person(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(
        "airflow.providers.standard.operators.hitl.upsert_hitl_detail", lambda **detail: asked.append(detail)
    )
    small = previewed(world, approve_above_gib=9, **WET)
    assert approving([small]).execute(CONTEXT) == [small]
    assert read_report(world.table(), NAME).approval is None

    large = previewed(world, approve_above_gib=8, **WET)
    with pytest.raises(TaskAwaitingInput):
        approving([large]).execute(CONTEXT)
    [detail] = asked
    assert detail["subject"] == "Rewrite dates of kafka-1/orders?"
    assert "9.00 GiB of raw are converted again, more than 8.00 GiB" in detail["body"]
    assert read_report(world.table(), NAME).state == "waiting for approval"


@pytest.mark.usefixtures("submitted")
@pytest.mark.parametrize("change", [{}, {"mode": "compare", "dry_run": False}])
def test_what_rewrites_nothing_asks_nobody(world: World, change: dict[str, Any]) -> None:
    assert approving([previewed(world, approve_above_gib=0, **change)]).execute(CONTEXT) == []


@pytest.mark.usefixtures("submitted")
@pytest.mark.parametrize(("option", "state"), [("Approve", "running"), ("Reject", "rejected")])
def test_the_answer_is_in_the_report(world: World, option: str, state: str) -> None:
    large = previewed(world, approve_above_gib=0, **WET)
    event = {
        "chosen_options": [option],
        "params_input": {},
        "responded_at": utc_now(),
        "responded_by_user": {"id": "1", "name": "grace"},
    }

    with DAG("backfill", schedule=None):
        approve = approving([large])
        approve >> ResultOperator(task_id="result", **large)
    assert approve.execute_complete(CONTEXT, event) == ([large] if option == "Approve" else [])
    report = read_report(world.table(), NAME)
    assert report.state == state
    assert report.approval is not None
    assert (report.approval.by, report.approval.approved) == ("grace", option == "Approve")


def test_nobody_answers_and_nobody_is_asked_again() -> None:
    with pytest.raises(AirflowFailException, match=r"no answer within 1 day.*: start the backfill again"):
        approving([]).execute_complete(CONTEXT, {"error": "late", "error_type": "timeout"})


def test_named_people_alone_may_approve(monkeypatch: pytest.MonkeyPatch) -> None:
    assert approving([]).assigned_users is None
    monkeypatch.setenv("AIRFLOW__TIDEMARK__APPROVERS", "ada, grace")
    assert approving([]).assigned_users == [{"id": "ada", "name": "ada"}, {"id": "grace", "name": "grace"}]


def test_many_dates_are_much_however_small(world: World) -> None:
    def report(dates: int) -> BackfillReport:
        return BackfillReport(request(world), shown(dates=dates), None, None, None, None)

    assert why_approve([report(APPROVE_ABOVE_DAYS)]) == ""
    assert why_approve([report(1), report(APPROVE_ABOVE_DAYS + 1)]) == "32 dates are rewritten, more than 31"
    assert why_approve([]) == ""


@pytest.mark.parametrize(("status", "fails"), [("empty", False), ("stale", True), (None, True)])
def test_a_result_without_rows_is_told(world: World, submitted: list[list[str]], status: Any, fails: bool) -> None:
    found = previewed(world, **WET)
    table = world.table()
    if status:
        one = RunResult(attempt=7, status=status, cluster=CLUSTER, topic="orders", table="orders", ledger_n=3)
        table.store.put(table.keys.result(7), one.to_bytes())
    operator = ResultOperator(task_id="result", **found)
    if fails:
        with pytest.raises(AirflowFailException, match="see the report"):
            operator.execute(CONTEXT)
    else:
        operator.execute(CONTEXT)
    assert len(submitted) == 1
    outcome = read_report(table, NAME).outcome
    assert outcome == BackfillOutcome(status=status or "failed", attempt=7)


@pytest.mark.usefixtures("submitted")
def test_parts_of_an_earlier_try_are_not_the_reports(world: World) -> None:
    previewed(world, **WET)
    write_part(world.table(), NAME, "approval", Approval(why="", approved=True, by="ada", at=utc_now()), 6)
    write_part(world.table(), NAME, "outcome", BackfillOutcome(status="stale", attempt=6), 6)

    assert read_report(world.table(), NAME).state == "running"


def test_the_link_leads_to_the_topics_report(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example/prefix/")
    operator = PreviewOperator(task_id="preview", cluster=CLUSTER, topic="orders", request={})

    link = ReportLink().get_link(operator, ti_key=SimpleNamespace(run_id=RUN))
    assert link == f"https://airflow.example/prefix/tidemark/reports/{CLUSTER}/orders/{NAME}"
    assert world.deployment.topics


@pytest.mark.parametrize(("form", "words_of_it"), [({}, []), ({"exchange": "by-date"}, ["--exchange", "by-date"])])
def test_the_form_says_how_the_job_exchanges_dates(
    world: World, monkeypatch: pytest.MonkeyPatch, form: dict[str, Any], words_of_it: list[str]
) -> None:
    told: list[list[str]] = []

    def submit(operator: JobOperator, _: Context, **options: Any) -> None:
        told.append(words(operator.job, {**operator.options, **{name: options[name] for name in ("plan", "state")}}))

    monkeypatch.setattr(JobOperator, "submit", submit)
    monkeypatch.setattr(JobOperator, "after_job", lambda *_: None)
    monkeypatch.setattr(RunPlanOperator, "after_job", lambda *_: None)
    dag = backfill.backfill_dag(world.deployment)
    planned = {"empty": False, "attempt": "7", "plan": "attempts/7.json", "tasks": 1, "bytes": 9}
    mapped = dag.get_task("convert")
    convert = mapped.unmap({"cluster": CLUSTER, "topic": "orders", "planned": planned})
    params = {name: param.value for name, param in backfill.form(world.deployment).items()} | form
    context = cast("Context", {**CONTEXT, "params": params})
    convert.render_template_fields(context)
    convert.execute(context)
    assert told == [["--plan", "attempts/7.json", *words_of_it]]


@pytest.mark.usefixtures("submitted")
def test_the_report_says_that_dates_have_a_commit_each(world: World) -> None:
    previewed(world, exchange="by-date", **WET)
    assert "rebuild, a commit for each date" in text(*sections(read_report(world.table(), NAME)))
    previewed(world, **WET)
    assert "a commit for each date" not in text(*sections(read_report(world.table(), NAME)))


def validated(world: World, monkeypatch: pytest.MonkeyPatch, **form: Any) -> list[dict[str, Any]]:
    assert world.deployment.topics
    dag_run = SimpleNamespace(triggering_user_name="ada", run_id=RUN)
    monkeypatch.setattr(backfill, "get_current_context", lambda: {"params": form, "dag_run": dag_run})
    found: list[dict[str, Any]] = backfill.validate.function()
    return found


def test_a_good_form_is_a_request_a_topic(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    [found] = validated(world, monkeypatch, **FORM)

    assert (found["cluster"], found["topic"]) == (CLUSTER, "orders")
    assert BackfillRequest.model_validate(found["request"]) == request(world)


def test_a_bad_form_is_not_tried_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AirflowFailException, match="to_date: 2025-12-31 is before from_date, 2026-01-01; swap them"):
        validated(world, monkeypatch, **FORM | {"to_date": "2025-12-31"})
    with pytest.raises(AirflowFailException, match="application_args: is not a field of the form"):
        validated(world, monkeypatch, **FORM, application_args=["x"])


def test_the_form_asks_for_an_approval_as_the_deployment_does(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__TIDEMARK__APPROVE_ABOVE_GIB", "5")
    field = backfill.form(world.deployment)["approve_above_gib"]

    assert (field.value, field.schema["maximum"]) == (5, 5)
    with pytest.raises(AirflowFailException, match="approve_above_gib: 6 is too high"):
        validated(world, monkeypatch, **FORM, approve_above_gib=6)


def test_a_preview_that_is_not_there_is_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JobOperator, "submit", lambda *_, **__: None)
    with pytest.raises(AirflowFailException, match=r"preview.json: the job wrote no preview"):
        previewed(world)
    assert backfilling.by_topic()["map_index_template"]
