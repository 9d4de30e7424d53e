"""An example of your own DAG that waits for "orders, this date, final": copy it beside the others to use it.

Each date of the table starts one run when it closes, and another when it closes again after late rows. The partition
key of the event, and so of the run, is the date. An event may come twice or late, so the run reads the ledger, and
skips a date that has been reopened since: its next closing is an event as well.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from airflow.sdk import DAG, Asset, PartitionedAssetTimetable, get_current_context, task
from airflow.sdk.exceptions import AirflowSkipException

from tidemark_airflow import settings

if TYPE_CHECKING:
    from tidemark.formats.table.ledger import DateState

CLUSTER, TOPIC, TABLE = "demo", "orders", "orders"

with DAG(
    dag_id="daily_orders",
    schedule=PartitionedAssetTimetable(assets=Asset.ref(name=f"{TABLE}.final")),
    start_date=datetime(2024, 1, 1, tzinfo=UTC),
    catchup=False,
    default_args={"owner": "analytics", "retries": 2, "retry_delay": timedelta(minutes=1)},
    tags=["example"],
    description="Reports a date of orders when it is complete",
    doc_md=__doc__,
):

    @task
    def report() -> dict[str, object]:
        """Number of rows of the date, and its completeness."""
        from tidemark.table.delta_table import committed_ledger

        dt = get_current_context()["dag_run"].partition_key
        state: DateState | None = committed_ledger(settings.topic_table(CLUSTER, TOPIC)).dates.get(str(dt))
        if state is None or not state.closed:
            raise AirflowSkipException(f"{dt} has been reopened: wait for it to close again")
        return {"dt": dt, "rows": state.rows, "late_rows": state.late_rows, "complete": state.state == "final"}

    report()
