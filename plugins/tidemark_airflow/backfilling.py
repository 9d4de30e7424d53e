"""The tasks of a backfill. Each reads what it needs from the store, and writes its part of the topic's report."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypedDict

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import BaseOperator, BaseOperatorLink
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from tidemark.backfill.request import APPROVE_ABOVE_DAYS, Request, report_name
from tidemark_airflow import settings
from tidemark_airflow.links import report_url
from tidemark_airflow.spark import JobOperator
from tidemark_airflow.tasks import Planned

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tidemark.backfill.report import Report
    from tidemark.table import Lake

_ANSWER_WITHIN: Final = timedelta(hours=24)
"""A plan is carried out within two days or not at all, and conversion takes its time, too."""


class Previewed(TypedDict):
    """A topic whose plan is made: what the tasks after ``preview`` are given."""

    cluster: str
    topic: str
    planned: Planned


def by_topic() -> dict[str, Any]:
    """What names the instances of a mapped task after their topics."""
    return {"map_index_template": "{{ task.cluster }}/{{ task.topic }}"}


class ReportLink(BaseOperatorLink):
    """To the report page of the task's topic."""

    name = "Report"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """The page's URL."""
        return report_url(operator.cluster, operator.topic, report_name(ti_key.run_id))


class PreviewOperator(JobOperator):
    """Has Spark work out what a request would do, and write plan and preview; no row is converted.

    :param request: the request, as :func:`tidemark_airflow.backfill.validate` returns it (templated)
    """

    template_fields: Sequence[str] = (*JobOperator.template_fields, "request")
    operator_extra_links = (ReportLink(),)

    def __init__(self, *, request: Any, **kwargs: Any) -> None:
        super().__init__(job="convert.py", **kwargs)
        self.request = request

    def execute(self, context: Context) -> Previewed:
        """Submit, wait, and show the report.

        Raises:
            AirflowFailException: more would be read than ``max_gib`` allows.
            AirflowException: there is no connection, or it names no master, or the job failed.
        """
        from tidemark.backfill.report import read_report, write_part
        from tidemark.backfill.tables import gib, text

        request = Request.model_validate(self.request)
        name = report_name(context["run_id"])
        lake = settings.lake_of(request.cluster, request.topic)
        write_part(lake, name, "request", request)
        self.submit(context, *arguments_of(request), "--report", name)
        report = read_report(lake, name)
        self.log.info("%s: %s\n%s", request.label, report_url(request.cluster, request.topic, name), text(report))
        found = report.preview
        if found is None:
            raise AirflowFailException(f"{lake.keys.report(name, 'preview')}: the job wrote no preview")
        if found.plan and found.bytes > request.max_bytes:
            rule = (
                f"{gib(found.bytes)} of {request.label} are to be read, more than the {gib(request.max_bytes)} allowed"
            )
            raise AirflowFailException(f"max_gib: {rule}: take fewer dates, or allow more")
        planned = Planned(
            empty=not found.plan,
            attempt=str(found.attempt),
            plan=found.plan,
            tasks=found.tasks,
            bytes=found.bytes,
        )
        return {"cluster": request.cluster, "topic": request.topic, "planned": planned}


def arguments_of(request: Request) -> list[str]:
    """What the convert job is told of ``request``: fixed words and checked dates."""
    if request.mode == "replay":
        dates = [*request.dates, *(["none"] if request.extend else [])]
        found = ["--replay", *(word for dt in dates for word in ("--dt", dt))]
    else:
        found = ["--rebuild", "--from", str(request.first), "--to", str(request.last)]
        found += ["--missing"] if request.mode == "missing" else []
        found += ["--extend"] if request.extend else []
    return [*found, *(["--dry-run"] if request.dry_run else [])]


class CompareOperator(JobOperator):
    """Has Spark tell which rows a plan would change; skipped if that is not asked for, or there is nothing to do.

    :param planned: of the topic, see :class:`Previewed` (templated)
    """

    template_fields: Sequence[str] = (*JobOperator.template_fields, "planned")
    operator_extra_links = (ReportLink(),)

    def __init__(self, *, planned: Any, **kwargs: Any) -> None:
        super().__init__(job="convert.py", **kwargs)
        self.planned = planned

    def execute(self, context: Context) -> None:
        """Submit and wait.

        Raises:
            AirflowSkipException: nothing is to be compared.
            AirflowException: there is no connection, or it names no master, or the job failed.
        """
        if self.planned["empty"]:
            raise AirflowSkipException("there is no plan to compare")
        name = report_name(context["run_id"])
        if not _report(self.cluster, self.topic, name)[1].request.compares:
            raise AirflowSkipException("row differences were not asked for")
        self.submit(context, "--plan", self.planned["plan"], "--compare", "--report", name)


class ApproveOperator(ApprovalOperator):
    """Asks a person where much is to be rewritten. Returns the topics to convert: none if that was rejected.

    :param previewed: a :class:`Previewed` of each topic (templated)
    """

    template_fields: Sequence[str] = (*ApprovalOperator.template_fields, "previewed")

    def __init__(self, *, previewed: Any, **kwargs: Any) -> None:
        super().__init__(
            subject="Rewrite dates of tables?",
            response_timeout=_ANSWER_WITHIN,
            assigned_users=[{"id": one, "name": one} for one in settings.approvers()] or None,
            **kwargs,
        )
        self.previewed = previewed

    def execute(self, context: Context) -> list[Previewed]:
        """What to convert, if no approval is needed; else wait for a person, who sees the reports."""
        from tidemark.backfill.outcomes import Approval
        from tidemark.backfill.report import write_part
        from tidemark.backfill.tables import markdown, sections
        from tidemark.stored import utc_now

        name = report_name(context["run_id"])
        wanted = self._wanted(name)
        why = why_approve([report for _, _, report in wanted])
        if not why:
            return [one for one, _, _ in wanted]
        body = []
        for one, lake, report in wanted:
            approval = Approval(why=why, at=utc_now())
            write_part(lake, name, "approval", approval, int(one["planned"]["attempt"]))
            shown = markdown(sections(report._replace(approval=approval)))
            body += [f"[Report]({report_url(one['cluster'], one['topic'], name)})", shown]
        self.subject = f"Rewrite dates of {', '.join(report.request.label for _, _, report in wanted)}?"
        self.body = "\n\n".join([f"**{why}**", *body])
        super().execute(context)
        return []  # never: the line above waits

    def execute_complete(self, context: Context, event: dict[str, Any]) -> list[Previewed]:
        """Note who answered, and what; then what to convert."""
        from tidemark.backfill.outcomes import Approval
        from tidemark.backfill.report import write_part

        answer = super().execute_complete(context, event)
        approved = answer["chosen_options"] == [self.APPROVE]
        name, user = report_name(context["run_id"]), answer["responded_by_user"] or {}
        wanted = self._wanted(name)
        why = why_approve([report for _, _, report in wanted])
        for one, lake, _ in wanted:
            said = Approval(why=why, approved=approved, by=str(user.get("name", "")), at=answer["responded_at"])
            write_part(lake, name, "approval", said, int(one["planned"]["attempt"]))
        return [one for one, _, _ in wanted] if approved else []

    def process_trigger_event_error(self, event: dict[str, Any]) -> None:
        """Nobody answered: to ask again would be of a plan that cannot be carried out any more."""
        raise AirflowFailException(f"no answer within {_ANSWER_WITHIN}: start the backfill again")

    def _wanted(self, name: str) -> list[tuple[Previewed, Lake, Report]]:
        """The topics that have a plan which rewrites."""
        found = ((one, *_report(one["cluster"], one["topic"], name)) for one in self.previewed)
        return [one for one in found if not one[0]["planned"]["empty"] and one[2].request.rewrites]


def why_approve(reports: Sequence[Report]) -> str:
    """Why a person is to approve what ``reports`` show; empty if nobody needs to."""
    from tidemark.backfill.tables import gib

    size = sum(one.preview.bytes for one in reports if one.preview)
    dates = max((len(one.preview.dates) for one in reports if one.preview), default=0)
    limit = min((one.request.approve_above for one in reports), default=0)
    if size > limit:
        return f"{gib(size)} of raw are converted again, more than {gib(limit)}"
    return f"{dates} dates are rewritten, more than {APPROVE_ABOVE_DAYS}" if dates > APPROVE_ABOVE_DAYS else ""


class ResultOperator(BaseOperator):
    """Writes into the report what came of a topic's run, and shows it.

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
            AirflowFailException: nothing was landed; the report says why.
        """
        from tidemark.backfill.outcomes import outcome_of
        from tidemark.backfill.report import read_report, write_part
        from tidemark.backfill.tables import text

        name = report_name(context["run_id"])
        lake, report = _report(self.cluster, self.topic, name)
        if report.preview is None:
            raise AirflowFailException(f"{lake.keys.report(name, 'preview')}: is gone")
        found = outcome_of(lake, report.preview)
        write_part(lake, name, "outcome", found, report.preview.attempt)
        url = report_url(self.cluster, self.topic, name)
        self.log.info("%s/%s: %s\n%s", self.cluster, self.topic, url, text(read_report(lake, name)))
        if found.status in {"stale", "failed"}:
            raise AirflowFailException(f"{self.cluster}/{self.topic}: {found.status}; see the report")


def _report(cluster: str, topic: str, name: str) -> tuple[Lake, Report]:
    from tidemark.backfill.report import read_report

    lake = settings.lake_of(cluster, topic)
    return lake, read_report(lake, name)
