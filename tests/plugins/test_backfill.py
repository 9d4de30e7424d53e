from __future__ import annotations

import logging
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

import tidemark.planning
from tests.plugins.world import CLUSTER, LONG_AGO, World
from tidemark.runs import RunPlan, SegmentRange, Task
from tidemark.table import Lake
from tidemark_airflow import backfill
from tidemark_airflow.backfill import MOST_DAYS, Request, check_request

FORM: dict[str, Any] = {
    "topic": f"{CLUSTER}/orders",
    "from_date": "2026-01-30",
    "to_date": "2026-02-01",
    "dry_run": True,
    "max_gib": 1,
}
REQUEST: Request = {
    "cluster": CLUSTER,
    "topic": "orders",
    "dates": ["2026-01-30"],
    "dry_run": False,
    "limit": 1 << 30,
}


def test_a_good_form_is_a_request(world: World) -> None:
    assert check_request(world.deployment, FORM) == {
        "cluster": CLUSTER,
        "topic": "orders",
        "dates": ["2026-01-30", "2026-01-31", "2026-02-01"],
        "dry_run": True,
        "limit": 1 << 30,
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"topic": f"{CLUSTER}/nope"}, "topic: nope: must name one topic", id="unknown topic"),
        pytest.param({"topic": "other/orders"}, "topic: orders: must name one topic", id="unknown cluster"),
        pytest.param({"topic": "orders"}, "topic: ", id="no cluster"),
        pytest.param({"to_date": "2026-01-29"}, "to_date: 2026-01-29 is before", id="backwards"),
        pytest.param({"to_date": "2030-01-01"}, f"are more than {MOST_DAYS}", id="too many days"),
        pytest.param({"from_date": "2026-02-30"}, "from_date: '2026-02-30' is no date", id="no such day"),
        pytest.param({"from_date": "$(reboot)"}, "from_date: ", id="no date at all"),
        pytest.param({"from_date": None}, "from_date: None is no date", id="missing"),
    ],
)
def test_a_bad_form_names_field_and_rule(world: World, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="^" + message if message.endswith(": ") else ".") as raised:
        check_request(world.deployment, FORM | change)
    assert message in str(raised.value)


def test_a_bad_form_is_not_tried_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert world.deployment.topics
    context = {"params": FORM | {"to_date": "2026-01-29"}}
    monkeypatch.setattr(backfill, "get_current_context", lambda: context)

    with pytest.raises(AirflowFailException, match="to_date"):
        backfill.validate.function()


@pytest.mark.parametrize("dry_run", [None, "false", 0])
def test_only_a_plain_no_is_no_dry_run(world: World, dry_run: object) -> None:
    assert check_request(world.deployment, FORM | {"dry_run": dry_run})["dry_run"] is True
    assert check_request(world.deployment, FORM | {"dry_run": False})["dry_run"] is False


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two gibibytes of raw and two files to replace, whatever the table has."""

    def plan(lake: Lake, dates: list[str], *, attempt: int) -> RunPlan:
        part = SegmentRange(
            store="s3://raw",
            key="k",
            etag="e",
            base_offset=0,
            start=0,
            end=2 << 30,
            from_offset=0,
            to_offset=9,
            uploaded_at=LONG_AGO,
        )
        return RunPlan(
            attempt=attempt,
            kind="rebuild",
            cluster=lake.topic.cluster,
            topic=lake.topic.topic,
            table=lake.topic.table,
            ledger_n=3,
            ledger_attempt=33,
            configuration="",
            code="",
            created_at=LONG_AGO,
            tasks=(Task(incarnation=0, topic_id=None, partition=0, ranges=(part,)),),
            dates=tuple(dates),
            removes=("dt=2026-01-30/a.parquet", "dt=2026-01-30/b.parquet"),
        )

    monkeypatch.setattr(tidemark.planning, "plan_rebuild", plan)


@pytest.mark.usefixtures("planned")
def test_a_dry_run_shows_and_writes_nothing(world: World, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger=backfill.__name__):
        preview = backfill.plan.function(REQUEST | {"dry_run": True})

    attempt = preview.pop("attempt")
    assert preview == {
        "empty": True,
        "plan": "",
        "dates": ["2026-01-30"],
        "tasks": 1,
        "bytes": 2 << 30,
        "files_replaced": 2,
    }
    assert "dt=2026-01-30/a.parquet" in caplog.text
    assert list(world.lake().store.list(world.lake().keys.attempts)) == []
    assert int(attempt) > 0


@pytest.mark.usefixtures("world", "planned")
def test_more_bytes_than_approved_are_refused() -> None:
    with pytest.raises(AirflowFailException, match="max_gib: 2147483648 bytes are to be read"):
        backfill.plan.function(REQUEST)


@pytest.mark.usefixtures("planned")
def test_an_approved_plan_is_written(world: World) -> None:
    preview = backfill.plan.function(REQUEST | {"limit": 2 << 30})

    assert preview["empty"] is False
    assert preview["plan"] == world.lake().keys.attempt(int(preview["attempt"]))
    assert world.lake().store.head(preview["plan"]).size > 0


@pytest.mark.usefixtures("world")
def test_dates_without_rows_need_no_run() -> None:
    assert backfill.plan.function(REQUEST)["empty"] is True
