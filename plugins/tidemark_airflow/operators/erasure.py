"""The task that approves a request for erasure, like ``tidemark erase approve``, as the user who started the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from tidemark.errors import ConfigError, NotFound, PreconditionFailed
from tidemark_airflow import settings
from tidemark_airflow.configuration import label

if TYPE_CHECKING:
    from airflow.sdk import Context


class ApproveErasureOperator(BaseOperator):
    """Approves the request of the run's params in the name of the user for whom Airflow recorded the run."""

    def execute(self, context: Context) -> dict[str, Any]:
        """Approve, and return the approval's ``id``, ``by`` and ``records``; a repeated approval changes nothing.

        Raises:
            AirflowFailException: the run has no user, or one who may not approve the request; there is no such request;
                it has another approval.
            TidemarkError: the store does not answer.
        """
        from tidemark.erasure.requests import NotAnotherPerson, find_request, summary

        name, records = str(context["params"]["request"]), context["params"]["records"]
        by = context["dag_run"].triggering_user_name or ""
        if not by:
            raise AirflowFailException("Airflow names no user of this run: start it by its form")
        if (approvers := settings.approvers()) and by not in approvers:
            raise AirflowFailException(f"{label('approvers')}: {by} is none of the users who may approve")
        try:
            folder, stored = find_request(settings.deployment(), None, name)
            self.log.info("%s: %s", name, summary(stored.request))
            approval, new = folder.approve(stored, by, records)
        except (ConfigError, NotAnotherPerson, NotFound, PreconditionFailed) as error:
            raise AirflowFailException(str(error)) from None
        self.log.info("%s: approved%s by %s", name, "" if new else " already", approval.by)
        return {"id": name, "by": approval.by, "records": approval.records}
