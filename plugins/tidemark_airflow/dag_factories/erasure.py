"""The form that approves a request for erasure: the user who starts the run is the second person.

Look at the request before, with `tidemark erase report` and a dry run of `tidemark_erasure`: an approval is final.
The run fails if the user's name, or the identity of Airflow's workers in the store, has made the request. A request has
no form, since Airflow keeps what forms are given: make it with `tidemark erase request`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import DAG, BaseOperator, Param
from airflow.sdk.exceptions import AirflowFailException

from tidemark.errors import ConfigError, NotFound, PreconditionFailed
from tidemark_airflow import settings
from tidemark_airflow.configuration import label, names
from tidemark_airflow.dag_factories import task_defaults

if TYPE_CHECKING:
    from airflow.sdk import Context

DAG_ID: Final = "tidemark_approve_erasure"


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
        if (approvers := names("approvers")) and by not in approvers:
            raise AirflowFailException(f"{label('approvers')}: {by} is none of the users who may approve")
        try:
            folder, stored = find_request(settings.deployment(), None, name)
            self.log.info("%s: %s", name, summary(stored.request))
            approval, new = folder.approve(stored, by, records)
        except (ConfigError, NotAnotherPerson, NotFound, PreconditionFailed) as error:
            raise AirflowFailException(str(error)) from None
        self.log.info("%s: approved%s by %s", name, "" if new else " already", approval.by)
        return {"id": name, "by": approval.by, "records": approval.records}


def form() -> dict[str, Param]:
    """The fields, drawn and checked by Airflow."""
    return {
        "request": Param(
            type="string", pattern="^[0-9a-f]{16}$", title="Request", description="Its id: see tidemark erase status."
        ),
        "records": Param(
            None,
            type=["null", "integer"],
            minimum=1,
            title="Records",
            description="Allow a pass to erase so many offsets of a topic, even above 1 %.",
        ),
    }


def approval_dag() -> DAG:
    """The DAG; it is started by its form, by REST or from the command line, and is not paused."""
    with DAG(
        dag_id=DAG_ID,
        schedule=None,
        is_paused_upon_creation=False,
        catchup=False,
        default_args={**task_defaults.DEFAULT_ARGS, "owner": "tidemark"},
        tags=["tidemark", "erasure"],
        description="Approves a request for erasure, as the user who starts it",
        doc_md=__doc__,
        params=form(),
    ) as dag:
        ApproveErasureOperator(task_id="approve")
    return dag
