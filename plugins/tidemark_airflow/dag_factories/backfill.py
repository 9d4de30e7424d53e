"""The DAG of backfills: a form, a dry run of each topic, an approval of large ones, the run, and a report.

| task | what it does | when it is red |
| --- | --- | --- |
| `validate` | checks the form as a whole | a field breaks a rule: the message names it, and what to do |
| `preview` | finds data that a run would read and replace, compares rows, writes the report | more than `max_gib`; \
raw is gone; raw or a file cannot be read |
| `compare` | shows the rows that would change, one by one | the report has no comparison |
| `approve` | asks a person if more than `approve_above_gib` or a month is rewritten | nobody answers in a day |
| `convert` | Spark makes the dates again, in one commit a topic or one a date, then their state tables | the job \
failed; its log is this task's |
| `state` | publishes the states, if any topic has one, and makes one that is behind | the state is stopped, or the \
job failed |
| `result` | puts the rows before and after into the report | nothing was landed |

A dry run ends after `preview`. The link *Report* of each task leads to the report of its topic.
"""

from __future__ import annotations

import logging
from typing import Any

from airflow.sdk import DAG, Param, TriggerRule, get_current_context
from airflow.sdk.exceptions import AirflowFailException

from tidemark.backfill.request import DEFAULTS, LONGEST_REASON, MODES, check_request
from tidemark.errors import ConfigError
from tidemark.jobs.options import EXCHANGES
from tidemark.topics import Deployment
from tidemark_airflow import settings
from tidemark_airflow.configuration import number
from tidemark_airflow.dag_factories import task_defaults
from tidemark_airflow.operators.backfill import (
    ApproveOperator,
    CompareOperator,
    PreviewOperator,
    ResultOperator,
    StateOperator,
    by_topic,
)
from tidemark_airflow.operators.spark_job import RunPlanOperator

DAG_ID = "tidemark_backfill"
_RUNS = 16
"""Runs that wait for an approval count, too, and must not keep others from running."""

log = logging.getLogger(__name__)

_MODES = {
    "rebuild": "Rebuild: convert the dates from raw again",
    "compare": "Compare: list the rows that a rebuild would change",
    "missing": "Missing only: rebuild the dates that have lost files",
    "replay": "Replay quarantine: parse refused rows again",
    "repair": "Repair: restore the whole table from raw after another program changed it",
    "schema": "Schema: make the whole table again with the columns of a newer version of its registry's schema",
}

_EXCHANGES = {"together": "Together: one commit for all dates", "by-date": "By date: a commit for each date"}


@task_defaults.task_of_promises(multiple_outputs=False)
def validate() -> list[dict[str, Any]]:
    """Check the form as a whole; returns a request for each topic."""
    from tidemark.timestamps import utc_now

    context = get_current_context()
    dag_run = context["dag_run"]
    try:
        requests = check_request(
            settings.deployment(),
            dict(context["params"]),
            today=utc_now().date(),
            by=dag_run.triggering_user_name or "",
            run=dag_run.run_id,
            approve_at_most=int(number("approve_above_gib")),
        )
    except ConfigError as error:
        for field, rule in error.problems:
            log.error("%s: %s", field, rule)  # noqa: TRY400 - a person corrects the form, and needs no trace
        raise AirflowFailException(str(error)) from None
    return [
        {"cluster": request.cluster, "topic": request.topic, "request": request.model_dump(mode="json")}
        for request in requests
    ]


def form(deployment: Deployment) -> dict[str, Param]:
    """The fields, drawn and checked by Airflow; :func:`validate` checks rules about several fields."""
    topics = [f"{topic.cluster}/{topic.topic}" for topic in settings.in_order(deployment)]
    limit = int(number("approve_above_gib"))
    given = {**DEFAULTS, "approve_above_gib": limit}

    def field(name: str, title: str, description: str, **schema: Any) -> Param:
        return Param(given[name], title=title, description=description, **schema)

    text: dict[str, Any] = {"type": ["null", "string"]}
    amount: dict[str, Any] = {"type": "integer", "section": "Limits"}
    return {
        "topics": Param(
            type="array",
            items={"type": "string", "enum": topics},
            examples=topics,
            minItems=1,
            title="Topics",
            description="One or more, as cluster/topic.",
        ),
        "from_date": Param(type="string", format="date", title="From", description="The first date, inclusive."),
        "to_date": Param(type="string", format="date", title="To", description="The last date, inclusive."),
        "mode": field("mode", "Mode", "What is done.", type="string", enum=list(MODES), values_display=_MODES),
        "exchange": field(
            "exchange",
            "Exchange",
            "Choose by date for many dates, of which readers are to see the first before the last are made. Segments "
            "with rows of several dates are then read once for each.",
            type="string",
            enum=list(EXCHANGES),
            values_display=_EXCHANGES,
        ),
        "extend": field(
            "extend",
            "Extend",
            "Include dates that exchange rows with these under the current settings; in a replay, rows without a date.",
            type="boolean",
        ),
        "differences": field(
            "differences",
            "Row differences",
            "Before a rebuild, list the rows that change, one by one. Reads raw once more.",
            type="boolean",
        ),
        "dry_run": field("dry_run", "Dry run", "Only show the data that would be read and replaced.", type="boolean"),
        "reason": field(
            "reason", "Reason", "The reason; required for rewriting a table.", maxLength=LONGEST_REASON, **text
        ),
        "configuration": field(
            "configuration",
            "Settings",
            "Optional: refuse to run unless the topics file has these, as `tidemark config check` prints them.",
            pattern="^[0-9a-f]{16}$",
            **text,
        ),
        "schema_version": field(
            "schema_version",
            "Schema version",
            "In mode schema: the waiting version, see `tidemark schema show`.",
            type=["null", "integer"],
            minimum=1,
        ),
        "max_gib": field("max_gib", "At most, GiB", "Refuse to read more of a topic.", minimum=1, **amount),
        "approve_above_gib": field(
            "approve_above_gib",
            "Approval above, GiB",
            "A larger rewrite waits for an approval.",
            minimum=0,
            maximum=limit,
            **amount,
        ),
    }


def _topic_of(previewed: dict[str, Any]) -> dict[str, Any]:
    return {"cluster": previewed["cluster"], "topic": previewed["topic"]}


def backfill_dag(deployment: Deployment) -> DAG:
    """The DAG; it is started by its form, by REST or from the command line."""
    with DAG(
        dag_id=DAG_ID,
        schedule=None,
        max_active_runs=_RUNS,
        catchup=False,
        default_args={**task_defaults.DEFAULT_ARGS, "owner": "tidemark"},
        tags=["tidemark", "backfill"],
        description="Makes dates of tables again from raw segments, or parses refused rows again",
        doc_md=__doc__,
        params=form(deployment),
    ) as dag:
        # A job refuses a request again, such as dates that exchange rows with others.
        job = {"execution_timeout": task_defaults.CONVERT_TIMEOUT, "retries": 2, **by_topic()}
        preview = PreviewOperator.partial(task_id="preview", **job).expand_kwargs(validate())
        compare = CompareOperator.partial(task_id="compare", **job).expand_kwargs(preview.output)
        # A skipped comparison must not skip the approval.
        approve = ApproveOperator(
            task_id="approve", previewed=preview.output, trigger_rule=TriggerRule.NONE_FAILED, execution_timeout=None
        )
        has_state = any(topic.state for topic in deployment.topics)
        convert = RunPlanOperator.partial(
            task_id="convert", with_state=has_state, options={"exchange": "{{ params.exchange }}"}, **job
        ).expand_kwargs(approve.output)
        # The report also has failed runs.
        result = ResultOperator.partial(
            task_id="result", trigger_rule=TriggerRule.ALL_DONE, **by_topic()
        ).expand_kwargs(approve.output)
        compare >> approve
        convert >> result
        if has_state:
            # Also after a failed run of another topic.
            state = StateOperator.partial(task_id="state", trigger_rule=TriggerRule.ALL_DONE, **job)
            convert >> state.expand_kwargs(approve.output.map(_topic_of))
    return dag
