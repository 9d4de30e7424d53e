"""The task of a backfill that asks a person, where much is to be rewritten."""

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
"""A plan is carried out within two days or not at all, and conversion takes its time, too."""

_TOPICS_SHOWN: Final = 20
_ROWS_SHOWN: Final = 40
"""What a person is asked about must stay readable, and Airflow keeps it in its database; reports have all of it."""


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
        from tidemark.backfill.outcome import Approval
        from tidemark.backfill.report import write_part
        from tidemark.backfill.report_tables import capped, markdown, sections
        from tidemark.timestamps import utc_now

        name = report_name(context["run_id"])
        wanted = self._wanted(name)
        why = why_approve([report for _, _, report in wanted])
        if not why:
            return [one for one, _, _ in wanted]
        approval = Approval(why=why, at=utc_now())
        body = [f"**{why}**"]
        for number, (one, table, report) in enumerate(wanted):
            write_part(table, name, "approval", approval, int(one["planned"]["attempt"]))
            label = report.request.label
            body.append(f"[Report of {label}]({report_url(one['cluster'], one['topic'], name)})")
            if number < _TOPICS_SHOWN:
                shown = sections(report._replace(approval=approval))
                body.append(markdown([capped(part, _ROWS_SHOWN, "the report") for part in shown]))
        few = wanted[0][2].request.label if len(wanted) == 1 else f"{len(wanted)} tables"
        self.subject = f"Rewrite dates of {few}?"
        self.body = "\n\n".join(body)
        super().execute(context)
        return []  # never: the line above waits

    def execute_complete(self, context: Context, event: dict[str, Any]) -> list[Previewed]:
        """Note who answered, and what; then what to convert."""
        from tidemark.backfill.outcome import Approval
        from tidemark.backfill.report import write_part

        # ApprovalOperator skips what follows a rejection by an exception, with which nothing could be noted; here what
        # follows is skipped because it has no topic.
        answer = HITLOperator.execute_complete(self, context, event)
        approved = answer["chosen_options"] == [self.APPROVE]
        name, user = report_name(context["run_id"]), answer["responded_by_user"] or {}
        wanted = self._wanted(name)
        why = why_approve([report for _, _, report in wanted])
        asked = {report.request.by for _, _, report in wanted} - {""}
        if approved and user.get("name") in asked:
            # The API server refuses such an answer, see web/run_rights.py; this is for answers that came another way.
            rule = "nobody approves their own request: start the backfill again and have somebody else answer"
            raise AirflowFailException(f"{user['name']}: {rule}")
        for one, table, _ in wanted:
            said = Approval(why=why, approved=approved, by=str(user.get("name", "")), at=answer["responded_at"])
            write_part(table, name, "approval", said, int(one["planned"]["attempt"]))
        return [one for one, _, _ in wanted] if approved else []

    def process_trigger_event_error(self, event: dict[str, Any]) -> None:
        """Nobody answered: to ask again would be of a plan that cannot be carried out any more."""
        raise AirflowFailException(f"no answer within {_ANSWER_WITHIN}: start the backfill again")

    def _wanted(self, name: str) -> list[tuple[Previewed, TopicTable, BackfillReport]]:
        """The topics that have a plan which rewrites."""
        found = ((one, *report_of(one["cluster"], one["topic"], name)) for one in self.previewed)
        return [one for one in found if not one[0]["planned"]["empty"] and one[2].request.rewrites]


def why_approve(reports: Sequence[BackfillReport]) -> str:
    """Why a person is to approve what ``reports`` show; empty if nobody needs to."""
    from tidemark.backfill.report_tables import gib

    size = sum(one.preview.bytes for one in reports if one.preview)
    dates = max((len(one.preview.dates) for one in reports if one.preview), default=0)
    limit = min((one.request.approve_above for one in reports), default=0)
    if size > limit:
        return f"{gib(size)} of raw are converted again, more than {gib(limit)}"
    return f"{dates} dates are rewritten, more than {APPROVE_ABOVE_DAYS}" if dates > APPROVE_ABOVE_DAYS else ""
