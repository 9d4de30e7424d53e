from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.sdk import BaseOperator, BaseOperatorLink
from airflow.sdk.types import TaskInstanceKey

from tests.plugins.world import CLUSTER, World
from tidemark_airflow.links.operator_links import ContinuityLink, PlanLink, SparkLink, TableLink

PLAN = "tables/_tidemark/kafka-1/orders/attempts/42.json"
KEY = cast("TaskInstanceKey", None)


def address(link: BaseOperatorLink, plan: str | None = PLAN) -> str:
    planned = None if plan is None else {"plan": plan}
    operator = SimpleNamespace(cluster=CLUSTER, topic="orders", planned=planned)
    return link.get_link(cast("BaseOperator", operator), ti_key=KEY)


@pytest.fixture
def on_s3(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    write(world)
    return world


def write(world: World, **store: Any) -> None:
    places = {"raw": {"url": "s3://raw"}, "lake": "s3://lake/tables"}
    world.write_topics(cluster=CLUSTER, topics=[{"topic": "orders"}], store=store, **places)


def test_on_aws_table_and_plan_are_pages_of_its_console(on_s3: World) -> None:
    console = "https://console.aws.amazon.com/s3"
    assert address(TableLink()) == f"{console}/buckets/lake?prefix=tables/orders/"
    assert address(PlanLink()) == f"{console}/object/lake?prefix={PLAN}"


@pytest.mark.parametrize("plan", [None, ""])
def test_without_a_plan_there_is_no_link_to_it(on_s3: World, plan: str | None) -> None:
    assert address(PlanLink(), plan) == ""


def test_another_s3_server_has_the_pages_that_the_deployment_names(
    on_s3: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(on_s3, endpoint_url="http://127.0.0.1:8333")
    assert address(TableLink()) == ""
    monkeypatch.setenv("AIRFLOW__TIDEMARK__OBJECT_PAGE", "https://pages.example/{bucket}/browse?at={key}")

    assert address(TableLink()) == "https://pages.example/lake/browse?at=tables/orders/"


def test_a_store_of_files_has_no_pages(world: World) -> None:
    assert address(TableLink()) == ""


def test_the_continuity_page_is_that_of_the_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    assert address(ContinuityLink()).endswith("/tidemark/?topic=kafka-1/orders")


def test_spark_has_the_pages_that_the_deployment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    assert address(SparkLink()) == ""
    monkeypatch.setenv("AIRFLOW__TIDEMARK__SPARK_PAGE", "http://spark.example:8080")

    assert address(SparkLink()) == "http://spark.example:8080"
