"""Upkeep: which job runs with which arguments, for which topic and date."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from tests.plugins.operators.test_spark import called, environment, pytestmark
from tests.plugins.world import CLUSTER, World
from tidemark.store.s3.credentials import STATIC_KEYS
from tidemark_airflow.dag_factories.maintenance import (
    UPKEEP,
    LiveCompactionOperator,
    PackRetentionOperator,
    UpkeepOperator,
)

__all__ = ["called", "pytestmark"]

AT_THREE = datetime(2026, 1, 30, 3, tzinfo=UTC)


def run(
    name: str, *, topic: str = "all", date: str | None = None, start: datetime | None = AT_THREE, dry_run: bool = False
) -> None:
    """The task for ``orders`` in a run whose form says ``topic``, ``date`` and ``dry_run``."""
    operator = UpkeepOperator(task_id=name, upkeep_name=name, cluster=CLUSTER, topic="orders")
    context: dict[str, Any] = {
        "params": {"topic": topic, "date": date, "dry_run": dry_run},
        "data_interval_start": start,
        "task": operator,
        "ti": SimpleNamespace(id="1", dag_id=name, run_id="run", task_id=name, map_index=0),
    }
    operator.execute(cast("Context", context))


def arguments(called: Path) -> list[str]:
    """What followed the job's file."""
    found = called.read_text().splitlines()
    at = next(n for n, argument in enumerate(found) if argument.endswith(".py"))
    return [Path(found[at]).name, *found[at + 1 :]]


def test_an_audit_is_of_the_runs_date(called: Path, world: World) -> None:
    run("audit")
    name = ["--topics", str(world.topics_file), "--cluster", CLUSTER, "--lineage", "off", "--topic", "orders"]
    assert arguments(called) == ["audit.py", *name, "--dt", "2026-01-30"]


def test_the_form_may_name_the_date(called: Path) -> None:
    run("audit", date="2026-01-02", start=None)
    assert arguments(called)[-2:] == ["--dt", "2026-01-02"]


def test_a_run_without_any_date_is_refused(called: Path) -> None:
    with pytest.raises(AirflowFailException, match="date: name the date in the form"):
        run("audit", start=None)
    assert not called.exists()


def test_a_run_for_another_topic_is_skipped(called: Path) -> None:
    with pytest.raises(AirflowSkipException, match=f"for {CLUSTER}/clicks alone"):
        run("audit", topic=f"{CLUSTER}/clicks")
    assert not called.exists()
    run("audit", topic=f"{CLUSTER}/orders")
    assert called.exists()


@pytest.mark.parametrize("name", [one.name for one in UPKEEP if not one.dated])
def test_the_others_find_what_is_due(called: Path, name: str) -> None:
    run(name)
    [upkeep] = [one for one in UPKEEP if one.name == name]
    assert arguments(called)[0] == upkeep.job
    assert arguments(called)[9:] == [*upkeep.arguments, *upkeep.unless_named]


def test_the_form_may_ask_for_a_dry_run_of_erasure(called: Path) -> None:
    run("erasure", dry_run=True)
    assert arguments(called)[-3:] == ["--by", "airflow", "--dry-run"]


def test_only_retention_of_raw_has_the_role_that_deletes_there(called: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_static_keys(monkeypatch)
    monkeypatch.setenv("AIRFLOW__TIDEMARK__RETENTION_PROFILE", "reaper")
    found = {}
    for one in UPKEEP:
        run(one.name)
        found[one.name] = environment(called).get("AWS_PROFILE")
    assert found == {one.name: "reaper" if one.name == "raw_retention" else None for one in UPKEEP}


def test_packs_are_removed_by_cluster_under_the_role_that_deletes_in_raw(
    called: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_static_keys(monkeypatch)
    monkeypatch.setenv("AIRFLOW__TIDEMARK__RETENTION_PROFILE", "reaper")
    PackRetentionOperator(task_id="packs", cluster=CLUSTER).execute(cast("Context", {}))
    name = ["--topics", str(world.topics_file), "--cluster", CLUSTER, "--lineage", "off"]
    assert arguments(called) == ["retain_packs.py", *name]
    assert environment(called).get("AWS_PROFILE") == "reaper"


def test_live_topics_are_compacted_by_cluster(called: Path, world: World) -> None:
    LiveCompactionOperator(task_id="live", cluster=CLUSTER).execute(cast("Context", {}))
    name = ["--topics", str(world.topics_file), "--cluster", CLUSTER, "--lineage", "off"]
    assert arguments(called) == ["compact_live.py", *name]


@pytest.mark.parametrize("name", STATIC_KEYS)
def test_a_role_that_static_keys_would_override_is_an_error(
    name: str, called: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_static_keys(monkeypatch)
    monkeypatch.setenv("AIRFLOW__TIDEMARK__RETENTION_PROFILE", "reaper")
    monkeypatch.setenv(name, "AKIA")
    with pytest.raises(AirflowFailException, match=rf"\[tidemark\] retention_profile.*'reaper'.*{name}"):
        run("raw_retention")
    assert not called.exists()
    run("audit")
    assert called.exists()


def test_only_the_pass_of_erasure_has_its_secret_and_its_role(called: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_static_keys(monkeypatch)
    monkeypatch.setenv("AIRFLOW__TIDEMARK__ERASURE_PROFILE", "eraser")
    monkeypatch.setenv("TIDEMARK_ERASURE_SECRET", "s" * 32)
    found = {}
    for one in UPKEEP:
        run(one.name)
        given = environment(called)
        found[one.name] = given.get("AWS_PROFILE"), given.get("TIDEMARK_ERASURE_SECRET")
    nothing = None, None
    assert found == {one.name: ("eraser", "s" * 32) if one.name == "erasure" else nothing for one in UPKEEP}


def without_static_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_PROFILE", *STATIC_KEYS):
        monkeypatch.delenv(name, raising=False)


def test_a_run_for_all_topics_leaves_out_states_that_are_not_due(called: Path) -> None:
    run("state")
    assert arguments(called)[-1] == "--due"
    run("state", topic=f"{CLUSTER}/orders")
    assert "--due" not in arguments(called)
