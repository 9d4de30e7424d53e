from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.models.trigger import Trigger
from airflow.sdk import AssetOrTimeSchedule, CronDataIntervalTimetable
from airflow.serialization.decoders import smart_decode_trigger_kwargs
from airflow.serialization.serialized_objects import DagSerialization

from tests.plugins.world import World
from tests.support.paths import ROOT
from tests.support.waiting import HUNG
from tidemark import topics
from tidemark.backfill.request import DEFAULTS, FIELDS
from tidemark.concurrency import Lru
from tidemark.config import checked
from tidemark.topics import TopicSettings
from tidemark_airflow import settings
from tidemark_airflow.dag_factories.ingest import dag_id
from tidemark_airflow.submitters.choice import job_connections
from tidemark_airflow.triggers.index_scanner import Source
from tidemark_airflow.triggers.landing import LOOK_AGAIN_AFTER, LandingTrigger

INGEST = {"wait_and_plan": {"convert_and_publish"}, "convert_and_publish": set[str]()}
BACKFILL = {
    "validate": {"preview"},
    "preview": {"compare", "approve"},
    "compare": {"approve"},
    "approve": {"convert", "result"},
    "convert": {"result"},
    "result": set[str](),
}
OF_TOPICS = ["audit", "compaction", "erasure", "raw_retention", "retention", "vacuum"]
UPKEEP = [f"tidemark_{name}" for name in sorted([*OF_TOPICS, "pack_retention"])]
# Of a topic there is its own beside these.
ALWAYS = [*UPKEEP, "tidemark_approve_erasure", "tidemark_backfill", "tidemark_onboard", "tidemark_watch"]
# What a DAG processor must not pay for at each parse. boto3 is not among ours either; see the test.
HEAVY = ["pyspark", "pandas", "pyarrow", "deltalake", "numba", "numpy", "boto3", "botocore"]

PARSE = """\
import json, os, socket, sys, time

def refuse(*_):
    raise AssertionError("a DAG file opened a connection")

socket.socket.connect = refuse
socket.getaddrinfo = refuse
from airflow.sdk import BaseHook

BaseHook.get_connection = refuse
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG

before = set(sys.modules)
for folder, topics in json.loads(sys.argv[1]):
    os.environ["AIRFLOW__TIDEMARK__TOPICS"] = topics
    started = time.perf_counter()
    bag = DagBag(folder)
    deprecated = [text for texts in bag.captured_warnings.values() for text in texts if "Deprecat" in text]
    found = {
        "errors": bag.import_errors,
        "heavy": sorted(set(json.loads(sys.argv[2])) & set(sys.modules) - before),
        "dags": sorted(bag.dags),
        "deprecated": deprecated,
        "seconds": time.perf_counter() - started,
    }
    print("RESULT", json.dumps(found))
"""
THOUSAND = [f"topic-{n:03}" for n in range(1000)]


def bag_of(world: World, monkeypatch: pytest.MonkeyPatch) -> DagBag:
    monkeypatch.setenv("AIRFLOW__TIDEMARK__TOPICS", str(world.topics_file))
    return DagBag(str(ROOT / "dags"))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, "orders", "clicks", owner="payments")


@pytest.fixture
def bag(world: World, monkeypatch: pytest.MonkeyPatch) -> DagBag:
    return bag_of(world, monkeypatch)


class Parsed(NamedTuple):
    """What a fresh process that may open no connection finds, one folder after the other."""

    dags: dict[str, Any]
    examples: dict[str, Any]
    thousand: dict[str, Any]
    """The DAGs where the topics file has a thousand topics on S3."""


@pytest.fixture(scope="module")
def parsed(tmp_path_factory: pytest.TempPathFactory) -> Parsed:
    small = World(tmp_path_factory.mktemp("small"), "orders", "clicks", owner="payments")
    large = World(tmp_path_factory.mktemp("large"))
    topics = [{"topic": name, "cluster": "kafka-1"} for name in THOUSAND]
    large.write_topics(raw={"url": "s3://raw"}, lake="s3://lake/tables", topics=topics)
    dags = ROOT / "dags"
    asked = [(dags, small), (dags / "examples", small), (dags, large)]
    folders = json.dumps([(str(folder), str(world.topics_file)) for folder, world in asked])
    command = [sys.executable, "-c", PARSE, folders, json.dumps(HEAVY)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=HUNG)
    lines = [line.removeprefix("RESULT ") for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    return Parsed(*(json.loads(line) for line in lines))


def test_parsing_needs_no_network_no_connection_and_nothing_heavy_or_deprecated(parsed: Parsed) -> None:
    found = parsed.dags

    assert found["dags"] == sorted([*ALWAYS, "tidemark_ingest__kafka-1__clicks", "tidemark_ingest__kafka-1__orders"])
    assert (found["errors"], found["heavy"], found["deprecated"]) == ({}, [], [])


def test_examples_parse_and_are_no_dags_of_the_deployment(parsed: Parsed) -> None:
    found = parsed.examples

    assert found["dags"] == ["daily_orders"]
    assert (found["errors"], found["heavy"], found["deprecated"]) == ({}, [], [])


def test_a_thousand_topics_on_s3_parse_in_one_go(parsed: Parsed) -> None:
    found = parsed.thousand
    sys.stdout.write(f"1,000 topics parsed in {found['seconds']:.1f} s\n")

    assert (found["errors"], found["deprecated"]) == ({}, [])
    assert found["dags"] == sorted([*ALWAYS, *(f"tidemark_ingest__kafka-1__{name}" for name in THOUSAND)])
    # Airflow itself checks s3:// asset URIs by the amazon provider, which imports its client.
    assert set(found["heavy"]) <= {"boto3", "botocore"}


def test_the_task_graphs(bag: DagBag) -> None:
    graphs = {
        name: {task.task_id: set(task.downstream_task_ids) for task in dag.tasks} for name, dag in bag.dags.items()
    }

    assert graphs == {
        "tidemark_ingest__kafka-1__orders": INGEST,
        "tidemark_ingest__kafka-1__clicks": INGEST,
        "tidemark_backfill": BACKFILL,
        "tidemark_approve_erasure": {"approve": set()},
        "tidemark_onboard": {"propose": set()},
        "tidemark_watch": {"observe": {"deliver"}, "deliver": set()},
        "tidemark_pack_retention": {"pack_retention": set()},
        **{f"tidemark_{name}": {"topics": {name}, name: set()} for name in OF_TOPICS},
    }


def test_every_dag_has_what_an_operator_looks_for(bag: DagBag) -> None:
    for dag in bag.dags.values():
        assert "tidemark" in dag.tags
        assert dag.description
        assert dag.doc_md
        assert dag.catchup is False
        for task in dag.tasks:
            assert task.owner == ("payments" if "ingest" in dag.tags else "tidemark")
            assert (task.retries or 0) >= 2
            assert task.retry_exponential_backoff
            # What incidents tell of, once each, no callback tells of as well.
            assert bool(task.on_failure_callback) is (
                "ingest" not in dag.tags and dag.dag_id != "tidemark_audit" and task.task_id != "deliver"
            )


def test_an_ingest_dag_runs_for_ever_one_run_at_a_time(bag: DagBag, world: World) -> None:
    dag = bag.dags["tidemark_ingest__kafka-1__orders"]

    assert type(dag.timetable).__name__ == "ContinuousTimetable"
    assert dag.max_active_runs == 1
    assert dag.max_consecutive_failed_dag_runs == 0
    assert dag.start_date is not None
    assert dag.task_dict["wait_and_plan"].execution_timeout is None
    assert {task.priority_weight for task in dag.tasks} == {10}
    url = f"file://{world.root}/lake/orders"
    assert [(asset.name, asset.uri) for asset in dag.task_dict["convert_and_publish"].outlets] == [
        ("orders", url),
        ("orders.final", f"{url}.final"),
    ]


@pytest.fixture
def live(world: World, monkeypatch: pytest.MonkeyPatch) -> DagBag:
    """Two topics of one cluster have a freshness, and one of another."""
    topics = [
        {"topic": "orders", "cluster": "kafka-1", "freshness": "60s"},
        {"topic": "clicks", "cluster": "kafka-1", "freshness": "5m"},
        {"topic": "slow", "cluster": "kafka-1"},
        {"topic": "views", "cluster": "kafka-2", "freshness": "60s"},
        {"topic": "slower", "cluster": "kafka-3"},
    ]
    world.write_topics(raw={"url": f"file://{world.root}/raw"}, lake=f"file://{world.root}/lake", topics=topics)
    return bag_of(world, monkeypatch)


def test_a_cluster_has_one_dag_for_all_its_live_topics(live: DagBag) -> None:
    assert live.import_errors == {}
    found = {name: dag for name, dag in live.dags.items() if "live" in dag.tags}
    assert set(found) == {"tidemark_live__kafka-1", "tidemark_live__kafka-2"}
    dag = found["tidemark_live__kafka-1"]
    assert type(dag.timetable).__name__ == "ContinuousTimetable"
    assert (dag.max_active_runs, dag.max_consecutive_failed_dag_runs, dag.catchup) == (1, 0, False)
    [task] = dag.tasks
    assert [asset.name for asset in task.outlets] == ["clicks", "clicks.final", "orders", "orders.final"]
    assert not task.on_failure_callback
    assert (task.retries or 0) >= 2
    assert {"tidemark_ingest__kafka-1__orders", "tidemark_ingest__kafka-1__slow"} <= set(live.dags)


def test_state_tables_have_a_dag_with_a_task_for_each(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    topics = [
        {"topic": "customers", "cluster": "kafka-1", "state": {}},
        {"topic": "clicks", "cluster": "kafka-1"},
        {"topic": "users", "cluster": "kafka-2", "state": {"envelope": "none"}},
    ]
    world.write_topics(raw={"url": f"file://{world.root}/raw"}, lake=f"file://{world.root}/lake", topics=topics)
    bag = bag_of(world, monkeypatch)
    assert bag.import_errors == {}
    for name, at in (("tidemark_state", "10 * * * *"), ("tidemark_state_audit", "20 3 * * *")):
        dag = bag.dags[name]
        assert dag.schedule == CronDataIntervalTimetable(at, timezone="UTC")
        assert dag.params.get_param("topic").schema["enum"] == ["all", "kafka-1/customers", "kafka-2/users"]
        task = dag.task_dict[name.removeprefix("tidemark_")]
        assert task.is_mapped
        assert bool(getattr(task, "partial_kwargs", {})["on_failure_callback"]) is (name != "tidemark_state"), (
            "incidents"
        )
    dag = bag.dags["tidemark_state"]
    publish = dag.task_dict["publish"]
    assert (publish.is_teardown, publish.on_failure_fail_dagrun) == (True, False), "the job's tasks decide"
    assert publish.trigger_rule == "all_done_setup_success", "also if the job has failed for a topic"
    assert set(dag.task_dict["state"].downstream_task_ids) == {"publish"}
    assert [asset.name for asset in publish.outlets] == ["customers_current", "users_current"]
    assert not any(task.is_teardown for task in bag.dags["tidemark_state_audit"].tasks)
    backfill = bag.dags["tidemark_backfill"]
    assert {task.task_id: set(task.downstream_task_ids) for task in backfill.tasks} == {
        **BACKFILL,
        "approve": {"convert", "result", "state"},
        "convert": {"result", "state"},
        "state": set(),
    }
    assert backfill.get_task("state").trigger_rule == "all_done", "another topic may have failed"
    again = DagSerialization.deserialize_dag(json.loads(json.dumps(DagSerialization.serialize_dag(backfill))))
    assert again.task_dict["state"].is_mapped


def test_live_topics_are_compacted_every_hour(live: DagBag) -> None:
    dag = live.dags["tidemark_live_compaction"]
    assert dag.schedule == CronDataIntervalTimetable("20 * * * *", timezone="UTC")
    [task] = dag.tasks
    assert task.is_mapped


def test_catalogs_follow_each_commit_and_the_clock(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    topics = [
        {"topic": "orders", "cluster": "kafka-1", "state": {}},
        {"topic": "slow", "cluster": "kafka-2", "catalogs": [], "state": {}},
    ]
    catalogs = [{"name": "main", "kind": "rest", "uri": "http://127.0.0.1:1", "namespace": "kafka"}]
    lake = f"file://{world.root}/lake"
    world.write_topics(raw={"url": f"file://{world.root}/raw"}, lake=lake, topics=topics, catalogs=catalogs)
    bag = bag_of(world, monkeypatch)
    assert bag.import_errors == {}
    dag = bag.dags["tidemark_catalogs"]
    assert isinstance(dag.schedule, AssetOrTimeSchedule)
    assert dag.max_active_runs == 1
    serialized = json.loads(json.dumps(DagSerialization.serialize_dag(dag)))
    again = DagSerialization.deserialize_dag(serialized)
    assert again.task_dict["mirror"].is_mapped
    text = json.dumps(serialized)
    assert "lake/orders" in text
    assert "lake/orders_current" in text
    assert "slow" not in text


def test_without_catalogs_nothing_lists_tables(live: DagBag) -> None:
    assert "tidemark_catalogs" not in live.dags


def test_a_task_that_starts_makes_its_own_dag_alone(live: DagBag, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(live.dags) > 2
    for wanted in ("tidemark_ingest__kafka-1__slow", "tidemark_live__kafka-2"):
        monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", wanted)
        found = [DagBag(str(ROOT / "dags" / name)).dags for name in ("ingest.py", "live.py")]
        assert [name for dags in found for name in dags] == [wanted]


def test_a_task_that_starts_makes_its_topic_alone_of_many(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(world.root / "cache"))
    names = [{"topic": name, "cluster": "kafka-1"} for name in THOUSAND]
    world.write_topics(raw={"url": f"file://{world.root}/raw"}, lake=f"file://{world.root}/lake", topics=names)
    assert len(world.deployment.topics) == len(THOUSAND)
    made: list[str] = []

    def noted(model: type[Any], value: Any, *arguments: Any, **options: Any) -> Any:
        if model is TopicSettings:
            made.append(value["topic"])
        return checked(model, value, *arguments, **options)

    monkeypatch.setattr(topics, "_parsed", Lru(4))  # as in another process
    monkeypatch.setattr(topics, "checked", noted)
    monkeypatch.setenv("AIRFLOW__TIDEMARK__TOPICS", str(world.topics_file))
    monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", "tidemark_ingest__kafka-1__topic-007")
    bag = DagBag(str(ROOT / "dags" / "ingest.py"))
    assert [*bag.dags] == ["tidemark_ingest__kafka-1__topic-007"]
    assert made == ["topic-007"]
    with job_connections("run_plan.py") as given:
        assert given == {}
    table = settings.topic_table("kafka-1", "topic-007")
    assert Source.of(table.deployment, "kafka-1", 10).cluster == "kafka-1"
    assert made == ["topic-007"], "nor does the job's start, the plan or the trigger need another"


def test_the_live_task_starts_in_the_triggerer(live: DagBag) -> None:
    dag = live.dags["tidemark_live__kafka-1"]
    again = DagSerialization.deserialize_dag(json.loads(json.dumps(DagSerialization.serialize_dag(dag))))
    task = again.task_dict["land"]

    assert task.start_from_trigger is True
    arguments = task.start_trigger_args
    assert arguments is not None
    # As the scheduler hands the arguments over, and the triggerer takes them.
    row = Trigger(classpath=arguments.trigger_cls, kwargs=arguments.trigger_kwargs or {})
    decode: Callable[[object], Any] = smart_decode_trigger_kwargs
    trigger = LandingTrigger(**{name: decode(value) for name, value in row.kwargs.items()})
    assert f"{type(trigger).__module__}.{type(trigger).__qualname__}" == arguments.trigger_cls
    assert [(one.topic, one.every.total_seconds()) for one in trigger.topics] == [("clicks", 75), ("orders", 15)]
    assert trigger.topics_file == os.environ["AIRFLOW__TIDEMARK__TOPICS"]
    assert task.execution_timeout is not None
    assert task.execution_timeout > LOOK_AGAIN_AFTER


@pytest.mark.parametrize("paused", [False, True])
def test_a_topics_dags_start_by_themselves_unless_the_deployment_says_otherwise(
    live: DagBag, monkeypatch: pytest.MonkeyPatch, paused: bool
) -> None:
    if paused:
        monkeypatch.setenv("AIRFLOW__TIDEMARK__STARTS_PAUSED", "True")
    found = {
        id_: dag for name in ("ingest.py", "live.py") for id_, dag in DagBag(str(ROOT / "dags" / name)).dags.items()
    }

    assert {"tidemark_ingest__kafka-1__slow", "tidemark_live__kafka-1"} <= {*found}
    assert {dag.is_paused_upon_creation for dag in found.values()} == {paused}


def test_the_watch_looks_every_minute_and_needs_no_topics_file(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.topics_file.unlink()
    dag = bag_of(world, monkeypatch).dags["tidemark_watch"]

    assert str(dag.schedule) == "* * * * *"
    assert dag.max_active_runs == 1
    assert dag.task_dict["deliver"].is_mapped
    assert dag.task_dict["deliver"].retries == 3


def test_the_backfill_form(bag: DagBag) -> None:
    dag = bag.dags["tidemark_backfill"]
    schemas = {name: dag.params.get_param(name).schema for name in dag.params}

    assert type(dag.timetable).__name__ == "NullTimetable"
    assert set(schemas) == set(FIELDS)
    assert schemas["topics"]["examples"] == ["kafka-1/clicks", "kafka-1/orders"]
    assert schemas["topics"]["items"] == {"type": "string", "enum": ["kafka-1/clicks", "kafka-1/orders"]}
    assert schemas["from_date"]["format"] == schemas["to_date"]["format"] == "date"
    assert {name: dag.params[name] for name in DEFAULTS} == DEFAULTS
    assert all(schema.get("title") for schema in schemas.values())


def test_the_onboarding_form(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    brokersets = "clusters: {kafka-2: {brokersets: {small: {brokers: [1]}, large: {brokers: [2-4]}}}}"
    world.topics_file.with_name("brokersets.yaml").write_text(brokersets)
    topics = [{"topic": "orders", "cluster": one} for one in ("kafka-2", "kafka-1")]
    topics[0]["table"] = "orders_2"
    raw, lake = {"url": f"file://{world.root}/raw"}, f"file://{world.root}/lake"
    world.write_topics(raw=raw, lake=lake, topics=topics, bootstrap={"kafka-3": "broker:9092"})
    dag = bag_of(world, monkeypatch).dags["tidemark_onboard"]
    schemas = {name: dag.params.get_param(name).schema for name in dag.params}

    assert type(dag.timetable).__name__ == "NullTimetable"
    assert dag.is_paused_upon_creation is False
    assert all(schema.get("title") and dag.params.get_param(name).description for name, schema in schemas.items())
    assert schemas["cluster"]["enum"] == ["kafka-1", "kafka-2", "kafka-3"]
    assert schemas["brokerset"]["enum"] == ["*", "large", "small"]
    assert schemas["registry"]["enum"] == ["none"]
    assert schemas["event_time_unit"]["enum"] == ["detected", "s", "ms", "us", "ns"]
    assert "write" not in schemas
    empty = {
        name for name, one in schemas.items() if not dag.params.get_param(name).has_value and "null" not in one["type"]
    }
    assert empty == {"cluster", "topic"}, "a person must choose these alone"


def test_upkeep_is_of_the_day_before(bag: DagBag) -> None:
    for name in UPKEEP:
        dag = bag.dags[name]
        assert type(dag.timetable).__name__ == "CronDataIntervalTimetable"
        assert dag.task_dict[name.removeprefix("tidemark_")].is_mapped
        if name != "tidemark_pack_retention":  # which is by cluster
            assert dag.params.get_param("topic").schema["enum"] == ["all", "kafka-1/clicks", "kafka-1/orders"]
    assert "date" in bag.dags["tidemark_audit"].params
    dry = {"tidemark_compaction", "tidemark_erasure", "tidemark_raw_retention", "tidemark_retention", "tidemark_vacuum"}
    assert {name for name in UPKEEP if "dry_run" in bag.dags[name].params} == dry
    assert all(bag.dags[name].params["dry_run"] is False for name in dry)


def test_dags_survive_serialization_and_do_not_change_by_themselves(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = bag_of(world, monkeypatch), bag_of(world, monkeypatch)

    for name, dag in first.dags.items():
        dumped = DagSerialization.serialize_dag(dag)
        assert dumped == DagSerialization.serialize_dag(second.dags[name])
        again = DagSerialization.deserialize_dag(json.loads(json.dumps(dumped)))
        assert set(again.task_dict) == set(dag.task_dict)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        pytest.param({"topic": "orders", "ownr": "me"}, "topics.orders.ownr: is not a known key", id="typo"),
        pytest.param({"topic": "no spaces"}, "topics.no spaces.topic: ", id="topic name"),
        pytest.param({"topic": "orders", "lateness": "soon"}, "topics.orders.lateness: ", id="duration"),
    ],
)
def test_a_mistake_in_the_topics_file_is_an_import_error_with_file_field_and_rule(
    world: World, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], problem: str
) -> None:
    world.write_topics(cluster="kafka-1", raw={"url": "s3://raw"}, lake="s3://lake", topics=[change])
    errors = bag_of(world, monkeypatch).import_errors

    of_topics = {"ingest.py", "backfill.py", "upkeep.py", "live.py", "catalogs.py", "onboarding.py"}
    assert {Path(name).name for name in errors} == of_topics
    for message in errors.values():
        assert str(world.topics_file) in message
        assert problem in message


def test_a_missing_topics_file_is_an_import_error(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.topics_file.unlink()

    for message in bag_of(world, monkeypatch).import_errors.values():
        assert "does not exist" in message


def test_dag_ids_are_unique_and_short_enough(world: World) -> None:
    topic = world.deployment.topics[0]
    words = ["a", "_", "__", "b", "a_", "_b", "a__b", "c" * 100, "t" * 249]
    names = [(cluster, name) for cluster in ["a", "a_", "a__b", "_", "c" * 100] for name in words]
    names += [(f"a{one}", f"{other}b") for one in ["", "_", "__", "___"] for other in ["", "_", "__", "___"]]
    names = sorted({*names, ("c" * 100, "t" * 248 + "u")})
    ids = [dag_id(topic.model_copy(update={"cluster": cluster, "topic": name})) for cluster, name in names]

    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[\w.-]{1,250}", one) for one in ids)
    for one in ids:  # not even a topic that is named after another's id has the same
        named = topic.model_copy(update={"cluster": "a", "topic": one[-249:]})
        assert dag_id(named) not in ids


def test_dag_files_import_only_what_they_may() -> None:
    for path in (ROOT / "dags").glob("*.py"):
        imported = {line.split()[1].split(".")[0] for line in path.read_text().splitlines() if line.startswith("from ")}
        assert imported <= {"__future__", "airflow", "tidemark", "tidemark_airflow"}


def test_the_package_imports_neither_spark_nor_the_agent() -> None:
    for path in (ROOT / "plugins" / "tidemark_airflow").glob("*.py"):
        modules = re.findall(r"^ *(?:from|import) (\w+)", path.read_text(), re.MULTILINE)
        assert not {"tidemark_spark", "uploader_agent", "pyspark"} & set(modules)
