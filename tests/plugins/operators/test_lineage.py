"""What operators answer Airflow's OpenLineage provider, through the provider's own extractor."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from airflow.providers.openlineage import conf
from airflow.providers.openlineage.extractors.manager import ExtractorManager
from airflow.sdk.exceptions import AirflowException, TaskDeferred
from airflow.utils.state import TaskInstanceState

from tests.plugins.world import CLUSTER, World
from tidemark.errors import AccessDenied
from tidemark.formats.raw.lineage import JobLineage
from tidemark.openlineage import hand_over, naming
from tidemark.openlineage.facets import LineagePart, joined
from tidemark.store import LocalStore
from tidemark_airflow.assets.events import assets_of
from tidemark_airflow.operators.spark_job import JobOperator, RunPlanOperator

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context

CONTEXT = cast("Context", {})


class StandIn(RunPlanOperator):
    """Instead of a job, ``leaves`` runs, with the job's ``--lineage``."""

    leaves: Any = staticmethod(lambda _: None)

    def execute(self, context: Context) -> None:
        """As a task does around its job."""
        with self.lineage_of_job() as place:
            type(self).leaves(place)


@pytest.fixture(autouse=True)
def configured(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The provider knows where to send events."""
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__TRANSPORT", '{"type": "console"}')
    forget()
    yield
    monkeypatch.delenv("AIRFLOW__OPENLINEAGE__TRANSPORT")
    forget()


def forget() -> None:
    """The provider keeps what it has read of its configuration."""
    for one in vars(conf).values():
        if isinstance(one, type(cache(len))):
            one.cache_clear()


def operator(world: World, leaves: Any = None) -> StandIn:
    kind = type("StandIn", (StandIn,), {"leaves": staticmethod(leaves)}) if leaves else StandIn
    assets = list(assets_of(world.deployment, world.table().topic))
    made: StandIn = kind(task_id="convert", cluster=CLUSTER, topic="orders", planned={}, outlets=assets)
    return made


def asked(task: Any, state: TaskInstanceState) -> OperatorLineage[Any, Any]:
    """What the provider would send of the task in this state."""
    instance = SimpleNamespace(task=task, get_template_context=dict)
    run = cast("Any", SimpleNamespace(run_id="a run"))
    manager: Any = ExtractorManager  # whose constructor has no types
    found: OperatorLineage[Any, Any] = manager().extract_metadata(run, task, state, instance)
    return found


def outputs(found: OperatorLineage[Any, Any]) -> list[str]:
    return [one.name for one in found.outputs]


def table(world: World) -> str:
    return f"{world.root}/lake/orders"


def left(world: World) -> list[str]:
    """What jobs left and no task took."""
    return [one.key for one in world.table().store.list(world.deployment.deployment_keys(CLUSTER).hand_overs)]


def leaving(world: World, lineage: JobLineage) -> Any:
    """A job that hands ``lineage`` over."""
    return lambda place: hand_over.put(world.deployment, CLUSTER, place, lineage)


@pytest.mark.parametrize("state", [TaskInstanceState.RUNNING, TaskInstanceState.FAILED], ids=["start", "failure"])
def test_before_the_job_has_told_anything_the_table_is_named(world: World, state: TaskInstanceState) -> None:
    assert outputs(asked(operator(world), state)) == [table(world)]


def test_what_the_job_left_is_told_with_its_facets(world: World) -> None:
    known = naming.quarantine(world.deployment, world.table().topic)
    lineage = joined([LineagePart((), (known,), {"kind": "replay", "cluster": CLUSTER, "status": "landed"})])
    task = operator(world, leaving(world, lineage))
    task.execute(CONTEXT)

    found = asked(task, TaskInstanceState.SUCCESS)
    assert outputs(found) == [known.name]
    assert found.run_facets["tidemark_runs"]["runs"] == [{"kind": "replay", "cluster": CLUSTER, "status": "landed"}]


def test_the_lineage_of_a_job_that_is_waited_for_is_read_at_its_end(world: World) -> None:
    known = naming.quarantine(world.deployment, world.table().topic)
    lineage = joined([LineagePart((), (known,), {"kind": "replay", "cluster": CLUSTER, "status": "landed"})])
    places: list[str] = []

    def defers(place: str) -> None:
        places.append(place)
        leaving(world, lineage)(place)  # the job may be fast
        raise TaskDeferred(trigger=None, method_name="resume")

    with pytest.raises(TaskDeferred):
        operator(world, defers).execute(CONTEXT)
    [place] = places
    resumed = operator(world)
    resumed.lineage_of_ended_job(place, succeeded=True)
    assert outputs(asked(resumed, TaskInstanceState.SUCCESS)) == [known.name]
    assert left(world) == []


def test_a_job_that_leaves_nothing_fails_no_task_and_is_an_error_in_its_log(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    task = operator(world)
    task.execute(CONTEXT)
    assert re.search(r"\[error *\] lineage: the job left none", capsys.readouterr().out)
    assert outputs(asked(task, TaskInstanceState.SUCCESS)) == [table(world)]


def test_what_an_earlier_job_left_is_not_told_again(world: World) -> None:
    left = leaving(world, joined([LineagePart((), (naming.at("file:///earlier"),))]))
    operator(world, left).execute(CONTEXT)
    task = operator(world)
    task.execute(CONTEXT)
    assert outputs(asked(task, TaskInstanceState.SUCCESS)) == [table(world)]


def test_runs_of_one_dag_at_the_same_time_each_get_what_their_own_job_left(world: World) -> None:
    """64 runs, whose jobs have all ended before the first task takes what its job left."""
    with ExitStack() as running:
        tasks = [operator(world) for _ in range(64)]
        for number, task in enumerate(tasks):
            leaving(world, joined([LineagePart((), (naming.at(f"file:///{number}"),))]))(
                running.enter_context(task.lineage_of_job())
            )
    found = [outputs(asked(task, TaskInstanceState.SUCCESS)) for task in tasks]
    assert found == [[f"/{number}"] for number in range(64)]


def test_nothing_stays_in_the_store_of_what_a_task_has_taken(world: World) -> None:
    operator(world, leaving(world, joined([]))).execute(CONTEXT)
    assert left(world) == []


def test_what_cannot_be_removed_is_told_all_the_same(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def denied(*_: object) -> None:
        raise AccessDenied("the object", "it may not be deleted")

    task = operator(world, leaving(world, joined([LineagePart((), (naming.at("file:///told"),))])))
    monkeypatch.setattr(LocalStore, "delete", denied)
    task.execute(CONTEXT)
    assert outputs(asked(task, TaskInstanceState.SUCCESS)) == ["/told"]
    assert "a vacuum will remove it" in capsys.readouterr().out
    assert len(left(world)) == 1


def test_what_cannot_be_read_fails_no_task(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    def garbage(place: str) -> None:
        world.table().store.put(world.deployment.deployment_keys(CLUSTER).hand_over(place), b"{")

    operator(world, garbage).execute(CONTEXT)
    assert "cannot be read" in capsys.readouterr().out


def test_what_a_job_told_before_it_failed_is_told_of_the_failure(world: World) -> None:
    """Such as an audit's findings."""
    left = leaving(world, joined([LineagePart((naming.at("file:///raw"),))]))

    def failing(place: str) -> None:
        left(place)
        raise AirflowException("the job failed")

    task = operator(world, failing)
    with pytest.raises(AirflowException, match="the job failed"):
        task.execute(CONTEXT)
    found = asked(task, TaskInstanceState.FAILED)
    assert [one.name for one in found.inputs] == ["/raw"]
    assert outputs(found) == []


@pytest.mark.parametrize("state", [TaskInstanceState.RUNNING, TaskInstanceState.SUCCESS])
def test_with_a_wrong_topics_file_the_assets_name_the_table_and_never_its_closed_dates(
    world: World, state: TaskInstanceState, capsys: pytest.CaptureFixture[str]
) -> None:
    task = operator(world)
    world.topics_file.write_text("topics: [")
    assert outputs(asked(task, state)) == [table(world)]
    assert "lineage: the topics file does not say" in capsys.readouterr().out


def test_a_task_without_outlets_may_have_written_nothing(world: World) -> None:
    entry: Sequence[LineagePart] = [
        LineagePart((), (), {"kind": "vacuum", "cluster": CLUSTER, "status": "nothing removed"})
    ]
    task = operator(world, leaving(world, joined(entry)))
    task.outlets = []
    task.execute(CONTEXT)
    found = asked(task, TaskInstanceState.SUCCESS)
    assert (found.inputs, found.outputs) == ([], [])
    assert found.run_facets


def test_without_a_transport_or_the_provider_the_job_tells_nobody(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__TRANSPORT", "{}")
    forget()
    said: list[str] = []
    operator(world, said.append).execute(CONTEXT)
    monkeypatch.setitem(sys.modules, "airflow.providers.openlineage", None)
    operator(world, said.append).execute(CONTEXT)
    assert said == ["off", "off"]


def test_what_only_shows_a_plan_tells_nothing(world: World) -> None:
    task = operator(world)
    task.outlets = []
    task.tells_lineage = False
    for state in (TaskInstanceState.RUNNING, TaskInstanceState.FAILED, TaskInstanceState.SUCCESS):
        assert outputs(asked(task, state)) == []
    from tidemark_airflow.operators.backfill import PreviewOperator

    assert issubclass(PreviewOperator, JobOperator)
    assert not PreviewOperator.tells_lineage
