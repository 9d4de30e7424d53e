"""The form that approves a request for erasure: the user who starts the run is the second person.

Look at the request before, with `tidemark erase report` and a dry run of `tidemark_erasure`: an approval is final.
The run fails if the user's name, or the identity of Airflow's workers in the store, has made the request. A request has
no form, since Airflow keeps what forms are given: make it with `tidemark erase request`.
"""

from __future__ import annotations

from typing import Final

from airflow.sdk import DAG, Param

from tidemark_airflow.dag_factories import task_defaults
from tidemark_airflow.operators.erasure import ApproveErasureOperator

DAG_ID: Final = "tidemark_approve_erasure"


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
