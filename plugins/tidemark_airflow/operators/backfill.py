"""The tasks of a backfill. Each reads its input from the store, and writes its part of the topic's report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from airflow.sdk import BaseOperator, BaseOperatorLink
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from tidemark.backfill.request import BackfillRequest, report_name
from tidemark_airflow import settings
from tidemark_airflow.links.urls import report_url
from tidemark_airflow.operators.spark_job import JobOperator
from tidemark_airflow.planned import Planned

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tidemark.backfill.report import BackfillReport
    from tidemark.table.delta_table import TopicTable


class Previewed(TypedDict):
    """A topic with its plan, for the tasks after ``preview``."""

    cluster: str
    topic: str
    planned: Planned


def by_topic() -> dict[str, Any]:
    """Arguments that name the instances of a mapped task after their topics."""
    return {"map_index_template": "{{ task.cluster }}/{{ task.topic }}"}


class ReportLink(BaseOperatorLink):
    """A link to the report page of the task's topic."""

    name = "Report"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """The URL of the report page of this run."""
        return report_url(operator.cluster, operator.topic, report_name(ti_key.run_id))


class PreviewOperator(JobOperator):
    """Has a request planned and compared, and plan, preview and comparison written; no row is converted.

    :param request: the request, as :func:`tidemark_airflow.dag_factories.backfill.validate` returns it (templated)
    """

    tells_lineage = False
    template_fields: Sequence[str] = (*JobOperator.template_fields, "request")
    operator_extra_links = (ReportLink(),)

    def __init__(self, *, request: Any, **kwargs: Any) -> None:
        super().__init__(job="rebuild", **kwargs)  # execute replaces it if the request needs another job
        self.request = request

    def execute(self, context: Context) -> Previewed:
        """Submit, wait, and show the report.

        Raises:
            AirflowFailException: more would be read than ``max_gib`` allows.
            AirflowException: there is no connection, or it names no master, or the job failed.
        """
        from tidemark.backfill.report import write_part

        request = BackfillRequest.model_validate(self.request)
        name = report_name(context["run_id"])
        write_part(settings.topic_table(request.cluster, request.topic), name, "request", request)
        self.job, options = job_of(request)
        self.submit(context, report=name, **options)
        return self.after_job(context)

    def after_job(self, context: Context) -> Previewed:
        """Show the report.

        Raises:
            AirflowFailException: more would be read than ``max_gib`` allows.
        """
        from tidemark.backfill.report_tables import gib, text

        request = BackfillRequest.model_validate(self.request)
        name = report_name(context["run_id"])
        table, report = report_of(request.cluster, request.topic, name)
        self.log.info("%s: %s\n%s", request.label, report_url(request.cluster, request.topic, name), text(report))
        preview = report.preview
        if preview is None:
            raise AirflowFailException(f"{table.keys.report(name, 'preview')}: the job wrote no preview")
        if preview.plan and preview.bytes > request.max_bytes:
            limit = f"more than the {gib(request.max_bytes)} allowed"
            rule = f"{gib(preview.bytes)} of {request.label} are to be read, {limit}"
            raise AirflowFailException(f"max_gib: {rule}: take fewer dates, or allow more")
        planned = Planned(
            empty=not preview.plan,
            attempt=str(preview.attempt),
            plan=preview.plan,
            tasks=preview.tasks,
            bytes=preview.bytes,
        )
        return {"cluster": request.cluster, "topic": request.topic, "planned": planned}


def job_of(request: BackfillRequest) -> tuple[str, dict[str, Any]]:
    """The job that previews ``request``, and its options: fixed words and checked dates."""
    options: dict[str, Any] = {"dry_run": request.dry_run}
    if request.mode == "replay":
        return "replay", {"dt": [*request.dates, *(["none"] if request.extend else [])], **options}
    if request.mode == "repair":
        return "repair", options
    if request.compares and not request.dry_run:
        options |= {"compare": True, "at_most": request.max_bytes}
    if request.mode == "schema":
        return "rebuild", {"all": True, "version": request.schema_version, **options}
    dates = {"first": request.first, "last": request.last}
    return "rebuild", {**dates, "missing": request.mode == "missing", "extend": request.extend, **options}


class CompareOperator(BaseOperator):
    """Shows the rows that the plan would change, which the preview has compared; skipped if it has not.

    :param planned: of the topic, see :class:`Previewed` (templated)
    """

    template_fields: Sequence[str] = ("cluster", "topic", "planned")
    operator_extra_links = (ReportLink(),)

    def __init__(self, *, cluster: str, topic: str, planned: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.cluster, self.topic, self.planned = cluster, topic, planned

    def execute(self, context: Context) -> None:
        """Read the report.

        Raises:
            AirflowSkipException: nothing was to be compared.
            AirflowFailException: the report has no comparison.
        """
        if self.planned["empty"]:
            raise AirflowSkipException("there is no plan to compare")
        name = report_name(context["run_id"])
        table, report = report_of(self.cluster, self.topic, name)
        if not report.request.compares:
            raise AirflowSkipException("row differences were not asked for")
        if report.comparison is None:
            key = table.keys.report(name, "comparison", int(self.planned["attempt"]))
            raise AirflowFailException(f"{key}: is gone: start the backfill again")
        self.log.info("%s", report.comparison.text())


class ResultOperator(BaseOperator):
    """Writes the outcome of a topic's run into the report, and shows it.

    :param planned: of the topic, see :class:`Previewed` (templated)
    """

    template_fields: Sequence[str] = ("cluster", "topic", "planned")
    operator_extra_links = (ReportLink(),)

    def __init__(self, *, cluster: str, topic: str, planned: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.cluster, self.topic, self.planned = cluster, topic, planned

    def execute(self, context: Context) -> None:
        """Read the result, and the rows before and after.

        Raises:
            AirflowFailException: nothing was landed; the report has the reason.
        """
        from tidemark.backfill.outcome import outcome_of
        from tidemark.backfill.report import read_report, write_part
        from tidemark.backfill.report_tables import text
        from tidemark.planning import landed_parts, read_plan

        name = report_name(context["run_id"])
        table, report = report_of(self.cluster, self.topic, name)
        if report.preview is None:
            raise AirflowFailException(f"{table.keys.report(name, 'preview')}: is gone")
        by_date = report.request.exchange == "by-date" and report.preview.plan
        parts = landed_parts(table, read_plan(table, report.preview.plan)) if by_date else ()
        outcome = outcome_of(table, report.preview, parts)
        write_part(table, name, "outcome", outcome, report.preview.attempt)
        url = report_url(self.cluster, self.topic, name)
        self.log.info("%s/%s: %s\n%s", self.cluster, self.topic, url, text(read_report(table, name)))
        if outcome.status in {"stale", "failed"}:
            raise AirflowFailException(f"{self.cluster}/{self.topic}: {outcome.status}; see the report")


def report_of(cluster: str, topic: str, name: str) -> tuple[TopicTable, BackfillReport]:
    """The topic's table, and its report with this name."""
    from tidemark.backfill.report import read_report

    table = settings.topic_table(cluster, topic)
    return table, read_report(table, name)
