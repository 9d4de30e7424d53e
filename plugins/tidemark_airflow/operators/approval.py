"""The task of a backfill that asks a person for approval of a large rewrite."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow.providers.standard.operators.hitl import ApprovalOperator, HITLOperator
from airflow.sdk.exceptions import AirflowFailException

from tidemark.backfill.request import APPROVE_ABOVE_DAYS, report_name
from tidemark_airflow import settings
from tidemark_airflow.links.urls import report_url
from tidemark_airflow.operators.backfill import Previewed, report_of

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tidemark.backfill.report import BackfillReport
    from tidemark.table.delta_table import TopicTable

_ANSWER_WITHIN: Final = timedelta(hours=24)
"""Time for an answer: a plan must be carried out within two days, and conversion takes its time, too."""

_TOPICS_SHOWN: Final = 20
_ROWS_SHOWN: Final = 40
"""Limits that keep the question readable, as Airflow stores it in its database; reports have all rows."""


class ApproveOperator(ApprovalOperator):
    """Asks a person for approval of a large rewrite. Returns the topics to convert: none after a rejection.

    :param previewed: a :class:`Previewed` of each topic (templated)
    """

    template_fields: Sequence[str] = (*ApprovalOperator.template_fields, "previewed")

    def __init__(self, *, previewed: Any, **kwargs: Any) -> None:
        super().__init__(
            subject="Rewrite dates of tables?",
            response_timeout=_ANSWER_WITHIN,
            assigned_users=[{"id": user, "name": user} for user in settings.approvers()] or None,
            **kwargs,
        )
        self.previewed = previewed

    def execute(self, context: Context) -> list[Previewed]:
        """The topics to convert, if no approval is needed; otherwise wait for a person, who sees the reports."""
        from tidemark.backfill.outcome import Approval
        from tidemark.backfill.report import write_part
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
        from tidemark.backfill.outcome import Approval
        from tidemark.backfill.report import write_part

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
