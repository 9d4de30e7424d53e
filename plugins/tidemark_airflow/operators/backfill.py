"""The tasks of a backfill. Each reads its input from the store, and writes its part of the topic's report."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypedDict

from airflow.providers.standard.operators.hitl import ApprovalOperator, HITLOperator
from airflow.sdk import BaseOperator, BaseOperatorLink
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from tidemark.backfill.request import APPROVE_ABOVE_DAYS, BackfillRequest, report_name
from tidemark_airflow import settings
from tidemark_airflow.assets.events import publish_states
from tidemark_airflow.configuration import names
from tidemark_airflow.links.urls import report_url
from tidemark_airflow.operators.spark_job import JobOperator
from tidemark_airflow.planned import Planned

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tidemark.backfill.report import BackfillReport
    from tidemark.table.delta_table import TopicTable

_ANSWER_WITHIN: Final = timedelta(hours=24)
"""Time for an answer: a plan must be carried out within two days, and conversion takes its time, too."""

_TOPICS_SHOWN: Final = 20
_ROWS_SHOWN: Final = 40
"""Limits that keep the question readable, as Airflow stores it in its database; reports have all rows."""


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
        """Submit, wait, and show the report. Raises as :meth:`submit` and :meth:`after_job`."""
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
        from tidemark.backfill.report_tables import gib, sections, text

        request = BackfillRequest.model_validate(self.request)
        name = report_name(context["run_id"])
        table, report = report_of(request.cluster, request.topic, name)
        self.log.info(
            "%s: %s\n%s", request.label, report_url(request.cluster, request.topic, name), text(*sections(report))
        )
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


class ReportedOperator(BaseOperator):
    """A task about the report of a topic.

    :param planned: of the topic, see :class:`Previewed` (templated)
    """

    template_fields: Sequence[str] = ("cluster", "topic", "planned")
    operator_extra_links = (ReportLink(),)

    def __init__(self, *, cluster: str, topic: str, planned: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.cluster, self.topic, self.planned = cluster, topic, planned


class CompareOperator(ReportedOperator):
    """Shows the rows that the plan would change, which the preview has compared; skipped if it has not."""

    def execute(self, context: Context) -> None:
        """Read the report.

        Raises:
            AirflowSkipException: nothing was to be compared.
            AirflowFailException: the report has no comparison.
        """
        from tidemark.backfill.report_tables import of_comparison, text

        if self.planned["empty"]:
            raise AirflowSkipException("there is no plan to compare")
        name = report_name(context["run_id"])
        table, report = report_of(self.cluster, self.topic, name)
        if not report.request.compares:
            raise AirflowSkipException("row differences were not asked for")
        if report.comparison is None:
            key = table.keys.report(name, "comparison", int(self.planned["attempt"]))
            raise AirflowFailException(f"{key}: is gone: start the backfill again")
        self.log.info("%s", text(of_comparison(report.comparison)))


class ResultOperator(ReportedOperator):
    """Writes the outcome of a topic's run into the report, and shows it."""

    def execute(self, context: Context) -> None:
        """Read the result, and the rows before and after.

        Raises:
            AirflowFailException: nothing was landed; the report has the reason.
        """
        from tidemark.backfill.report import outcome_of, read_report, write_part
        from tidemark.backfill.report_tables import sections, text
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
        self.log.info("%s/%s: %s\n%s", self.cluster, self.topic, url, text(*sections(read_report(table, name))))
        if outcome.status in {"stale", "failed"}:
            raise AirflowFailException(f"{self.cluster}/{self.topic}: {outcome.status}; see the report")


def report_of(cluster: str, topic: str, name: str) -> tuple[TopicTable, BackfillReport]:
    """The topic's table, and its report with this name."""
    from tidemark.backfill.report import read_report

    table = settings.topic_table(cluster, topic)
    return table, read_report(table, name)


class ApproveOperator(ApprovalOperator):
    """Asks a person for approval of a large rewrite. Returns the topics to convert: none after a rejection.

    :param previewed: a :class:`Previewed` of each topic (templated)
    """

    template_fields: Sequence[str] = (*ApprovalOperator.template_fields, "previewed")

    def __init__(self, *, previewed: Any, **kwargs: Any) -> None:
        super().__init__(
            subject="Rewrite dates of tables?",
            response_timeout=_ANSWER_WITHIN,
            assigned_users=[{"id": user, "name": user} for user in names("approvers")] or None,
            **kwargs,
        )
        self.previewed = previewed

    def execute(self, context: Context) -> list[Previewed]:
        """The topics to convert, if no approval is needed; otherwise wait for a person, who sees the reports."""
        from tidemark.backfill.report import Approval, write_part
        from tidemark.backfill.report_tables import capped, markdown, sections
        from tidemark.timestamps import utc_now

        name = report_name(context["run_id"])
        wanted = self._wanted(name)
        why = why_approve([report for _, _, report in wanted])
        if not why:
            return [previewed for previewed, _, _ in wanted]
        approval = Approval(why=why, at=utc_now())
        body = [f"**{why}**"]
        for number, (previewed, table, report) in enumerate(wanted):
            write_part(table, name, "approval", approval, int(previewed["planned"]["attempt"]))
            label = report.request.label
            body.append(f"[Report of {label}]({report_url(previewed['cluster'], previewed['topic'], name)})")
            if number < _TOPICS_SHOWN:
                shown = sections(report._replace(approval=approval))
                body.append(markdown([capped(part, _ROWS_SHOWN, "the report") for part in shown]))
        tables = wanted[0][2].request.label if len(wanted) == 1 else f"{len(wanted)} tables"
        self.subject = f"Rewrite dates of {tables}?"
        self.body = "\n\n".join(body)
        super().execute(context)
        return []  # never reached: the line above waits

    def execute_complete(self, context: Context, event: dict[str, Any]) -> list[Previewed]:
        """Record the answer and its author; returns the topics to convert."""
        from tidemark.backfill.report import Approval, write_part

        # ApprovalOperator raises an exception after a rejection, before anything could be recorded. Here the tasks that
        # follow are skipped because they have no topic.
        answer = HITLOperator.execute_complete(self, context, event)
        approved = answer["chosen_options"] == [self.APPROVE]
        name, user = report_name(context["run_id"]), answer["responded_by_user"] or {}
        wanted = self._wanted(name)
        why = why_approve([report for _, _, report in wanted])
        requesters = {report.request.by for _, _, report in wanted} - {""}
        if approved and user.get("name") in requesters:
            # The API server refuses such an answer, see web/run_rights.py; this check is for answers from elsewhere.
            rule = "nobody approves their own request: start the backfill again and have somebody else answer"
            raise AirflowFailException(f"{user['name']}: {rule}")
        for previewed, table, _ in wanted:
            approval = Approval(why=why, approved=approved, by=str(user.get("name", "")), at=answer["responded_at"])
            write_part(table, name, "approval", approval, int(previewed["planned"]["attempt"]))
        return [previewed for previewed, _, _ in wanted] if approved else []

    def process_trigger_event_error(self, event: dict[str, Any]) -> None:
        """Fail without an answer: a new question would be about a plan that can no longer be carried out."""
        raise AirflowFailException(f"no answer within {_ANSWER_WITHIN}: start the backfill again")

    def _wanted(self, name: str) -> list[tuple[Previewed, TopicTable, BackfillReport]]:
        """The topics with a plan that rewrites."""
        reported = ((topic, *report_of(topic["cluster"], topic["topic"], name)) for topic in self.previewed)
        return [
            (topic, table, report)
            for topic, table, report in reported
            if not topic["planned"]["empty"] and report.request.rewrites
        ]


def why_approve(reports: Sequence[BackfillReport]) -> str:
    """The reason why ``reports`` need an approval; empty if they need none."""
    from tidemark.backfill.report_tables import gib

    size = sum(report.preview.bytes for report in reports if report.preview)
    dates = max((len(report.preview.dates) for report in reports if report.preview), default=0)
    limit = min((report.request.approve_above for report in reports), default=0)
    if size > limit:
        return f"{gib(size)} of raw are converted again, more than {gib(limit)}"
    return f"{dates} dates are rewritten, more than {APPROVE_ABOVE_DAYS}" if dates > APPROVE_ABOVE_DAYS else ""


class StateOperator(JobOperator):
    """Sends an asset event of the state table's newest commit; skipped if the topic has none.

    The job of the backfill has brought the state up to date. If it could not, this task runs the job again.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(job="state", **kwargs)

    def execute(self, context: Context) -> None:
        """Submit and wait if the state is behind; then publish.

        Raises as :meth:`submit`, and AirflowSkipException: the topic has no state table.
        """
        assert self.topic is not None
        table = settings.topic_table(self.cluster, self.topic)
        if table.topic.state is None:
            raise AirflowSkipException(f"{self.cluster}/{self.topic} has no state table")
        if not _is_current(table):
            self.submit(context)
        self.after_job(context)

    def after_job(self, context: Context) -> None:
        """Publish."""
        deployment = settings.deployment()
        publish_states(context, deployment, [deployment.topic(str(self.topic), self.cluster)])


def _is_current(table: TopicTable) -> bool:
    """True if the state is that of the table's newest commit."""
    from tidemark.table.delta_table import committed_ledger
    from tidemark.table.state_table import StateTable

    state = StateTable.open(table).committed()
    return state is not None and state.of.n == committed_ledger(table).n
