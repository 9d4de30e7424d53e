"""Upkeep: which job runs with which arguments, for which topic and date."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from tests.plugins.operators.test_spark import called, environment, pytestmark, submit_with
from tests.plugins.submitters.test_waiting import Store
from tests.plugins.world import CLUSTER, World
from tidemark.jobs.registry import JOBS
from tidemark.store.s3.credentials import STATIC_KEYS
from tidemark.timestamps import utc_now
from tidemark.topics import TopicSettings
from tidemark_airflow.dag_factories import maintenance
from tidemark_airflow.dag_factories.maintenance import (
    MOST_CHARACTERS,
    MOST_TOPICS,
    UPKEEP,
    UpkeepOperator,
    groups_of,
)
from tidemark_airflow.operators.spark_job import JobOperator

__all__ = ["called", "pytestmark"]

AT_THREE = datetime(2026, 1, 30, 3, tzinfo=UTC)


def run(
    name: str,
    *topics: str,
    topic: str = "all",
    date: str | None = None,
    start: datetime | None = AT_THREE,
    dry_run: bool = False,
    store: Store | None = None,
) -> None:
    """The task for ``topics``, or ``orders``, in a run whose form says ``topic``, ``date`` and ``dry_run``."""
    operator = UpkeepOperator(task_id=name, upkeep_name=name, cluster=CLUSTER, topics=topics or ["orders"])
    context: dict[str, Any] = {
        "task_state_store": store,
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
    assert arguments(called)[:-2] == ["audit.py", *name, "--dt", "2026-01-30"]


def test_the_form_may_name_the_date(called: Path) -> None:
    run("audit", date="2026-01-02", start=None)
    assert arguments(called)[-4:-2] == ["--dt", "2026-01-02"]


def test_a_run_without_any_date_is_refused(called: Path) -> None:
    with pytest.raises(AirflowFailException, match="date: name the date in the form"):
        run("audit", start=None)
    assert not called.exists()


def test_a_group_has_one_job(called: Path, world: World) -> None:
    run("compaction", "clicks", "orders", "views")
    name = ["--topics", str(world.topics_file), "--cluster", CLUSTER, "--lineage", "off"]
    assert arguments(called) == [
        "compact.py", *name, "--topic", "clicks", "--topic", "orders", "--topic", "views"
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["audit", "state_audit"])
def test_a_retry_of_an_audit_goes_on_where_the_first_try_ended(
    called: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store()

    def since() -> str:
        [at] = [number for number, word in enumerate(arguments(called)) if word == "--since"]
        return arguments(called)[at + 1]

    submit_with(called.parent, monkeypatch, code=1)
    before = utc_now()
    with pytest.raises(AirflowException):
        run(name, store=store)
    first = since()
    assert before <= datetime.fromisoformat(first) <= utc_now()
    submit_with(called.parent, monkeypatch, code=0)
    run(name, store=store)
    assert since() == first
    run(name, store=store)
    assert since() > first, "a task that has succeeded and is cleared does all again"


def topics_of(cluster: str, *names: str) -> list[TopicSettings]:
    return [TopicSettings.model_validate({"cluster": cluster, "topic": name, "table": "t"}) for name in names]


def test_the_topics_of_a_cluster_are_put_into_groups() -> None:
    names = [f"topic-{number:04}" for number in range(3000)]
    found = groups_of([*topics_of("east", *names), *topics_of("west", "orders")])
    assert [name for group in found if group["cluster"] == "east" for name in group["topics"]] == names
    assert found[-1] == {"cluster": "west", "topics": ["orders"]}
    assert len(found) == 3000 / MOST_TOPICS + 1
    assert {len(group["topics"]) for group in found} == {MOST_TOPICS, 1}


def test_a_few_topics_have_a_group_for_each_task_that_may_run() -> None:
    assert [group["topics"] for group in groups_of(topics_of("east", "a", "b", "c"))] == [["a", "b"], ["c"]]
    assert groups_of([]) == []


def test_long_names_make_small_groups() -> None:
    names = [f"{number:03}{'x' * 246}" for number in range(100)]
    found = groups_of(topics_of("east", *names))
    assert [name for group in found for name in group["topics"]] == names
    words = [[word for name in group["topics"] for word in ("--topic", name)] for group in found]
    assert max(len(json.dumps(group)) for group in words) <= MOST_CHARACTERS
    assert len(found) <= 6


@pytest.mark.parametrize(
    ("named", "groups"),
    [
        ("all", [{"cluster": CLUSTER, "topics": ["clicks"]}, {"cluster": CLUSTER, "topics": ["orders"]}]),
        (f"{CLUSTER}/orders", [{"cluster": CLUSTER, "topics": ["orders"]}]),
        ("west/orders", []),
    ],
)
def test_a_run_for_one_topic_has_one_task(
    world: World, monkeypatch: pytest.MonkeyPatch, named: str, groups: list[Any]
) -> None:
    topics = [{"topic": "orders", "cluster": CLUSTER}, {"topic": "clicks", "cluster": CLUSTER}]
    world.write_topics(raw={"url": f"file://{world.root}/raw"}, lake=f"file://{world.root}/lake", topics=topics)
    monkeypatch.setattr(maintenance, "get_current_context", lambda: {"params": {"topic": named}})
    assert maintenance.groups("vacuum") == groups
    assert maintenance.groups("state") == []


@pytest.mark.parametrize(
    ("topics", "label", "job"),
    [(["orders"], f"{CLUSTER}/orders", "orders"), (["a", "b"], f"{CLUSTER}: a to b", f"vacuum-{CLUSTER}")],
)
def test_a_group_has_a_name(topics: list[str], label: str, job: str) -> None:
    operator = UpkeepOperator(task_id="vacuum", upkeep_name="vacuum", cluster=CLUSTER, topics=topics)
    assert (operator.label, operator._subject()) == (label, job)


@pytest.mark.parametrize("name", [one.name for one in UPKEEP if not one.dated])
def test_the_others_find_what_is_due(called: Path, name: str) -> None:
    run(name)
    [upkeep] = [one for one in UPKEEP if one.name == name]
    program, *words = arguments(called)
    job = JOBS[upkeep.job]
    assert program == job.program()
    found = job.parse(words).model_dump(exclude_defaults=True, exclude={"topics", "cluster", "lineage", "topic"})
    since = {"since"} if upkeep.resumes else set()
    assert {name: value for name, value in found.items() if name not in since} == {
        **upkeep.options,
        **upkeep.unless_named,
    }
    assert since <= found.keys()


def test_the_form_offers_a_dry_run_of_each_job_that_has_one(called: Path) -> None:
    offered = [one.name for one in UPKEEP if one.dry_runs]
    assert offered == ["compaction", "retention", "raw_retention", "erasure", "vacuum"]
    for name in offered:
        run(name, dry_run=True)
        assert "--dry-run" in arguments(called)


def test_the_form_may_ask_for_a_dry_run_of_erasure(called: Path) -> None:
    run("erasure", dry_run=True)
    assert {"--by", "airflow", "--dry-run"} <= {*arguments(called)}


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
    JobOperator(task_id="packs", job="retain_packs", cluster=CLUSTER).execute(cast("Context", {}))
    name = ["--topics", str(world.topics_file), "--cluster", CLUSTER, "--lineage", "off"]
    assert arguments(called) == ["retain_packs.py", *name]
    assert environment(called).get("AWS_PROFILE") == "reaper"


def test_live_topics_are_compacted_by_cluster(called: Path, world: World) -> None:
    JobOperator(task_id="live", job="compact_live", cluster=CLUSTER).execute(cast("Context", {}))
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
