"""Who reads a table: DAGs as Airflow parses and stores them, in its own database, behind its own authorization."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from airflow.dag_processing.collection import update_dag_parsing_results_in_db
from airflow.models.asset import AssetAliasModel, AssetModel
from airflow.models.dag import DagModel
from airflow.models.dagbundle import DagBundleModel
from airflow.sdk import DAG, Asset, AssetAlias, BaseOperator, PartitionedAssetTimetable
from airflow.serialization.serialized_objects import LazyDeserializedDAG
from airflow.utils.session import create_session

from tests.plugins.web.page_server import ANN, NOBODY, PageServer
from tests.plugins.web.page_world import PageWorld
from tests.plugins.world import CLUSTER
from tidemark_airflow.assets.events import assets_of

BUNDLE = "bundle"
READERS = f"api/topics/{CLUSTER}/orders/readers"


def dag(name: str, schedule: Any = None, **task: Any) -> DAG:
    with DAG(dag_id=name, schedule=schedule, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as made:
        BaseOperator(task_id="read", **task)
    return made


def stored(*dags: DAG) -> None:
    """As the DAG processor stores what it has parsed of the bundle."""
    with create_session() as session:
        session.merge(DagBundleModel(name=BUNDLE))
        session.flush()
        found = [LazyDeserializedDAG.from_dag(one) for one in dags]
        update_dag_parsing_results_in_db(BUNDLE, None, found, {}, None, set(), session)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    home = tmp_path_factory.mktemp("readers")
    with PageServer(PageWorld(home / "world"), home) as running:
        rows, final = assets_of(running.world.deployment, running.world.table().topic)
        elsewhere = Asset(name="elsewhere", uri="file:///elsewhere")
        stored(
            dag("producer", outlets=[rows, final]),
            dag("by_asset", [rows]),
            dag("by_name", PartitionedAssetTimetable(assets=Asset.ref(name=final.name))),
            dag("by_uri", Asset.ref(uri=rows.uri) | Asset.ref(name="elsewhere")),
            dag("by_alias", [AssetAlias("newest")]),
            dag("by_another_alias", [AssetAlias("never resolved")]),
            dag("inlet", inlets=[rows]),
            dag("no_longer_there", inlets=[rows]),
            dag("of_another", [elsewhere], inlets=[Asset(name="reorders", uri=f"{rows.uri}s")]),
            dag("by_anothers_name", Asset.ref(name="reorders") & Asset.ref(uri=f"{final.uri}s")),
        )
        with create_session() as session:
            alias = session.query(AssetAliasModel).filter_by(name="newest").one()
            session.get_one(DagModel, "no_longer_there").is_stale = True
            alias.assets.append(session.query(AssetModel).filter_by(name=rows.name).one())
        yield running


def test_readers_by_asset_name_uri_alias_and_inlet_are_found_and_no_other(server: PageServer) -> None:
    with server.client(ANN) as client:
        found = said(client)
    assert found == [
        ("by_alias", "", "orders"),
        ("by_asset", "", "orders"),
        ("by_name", "", "orders.final"),
        ("by_uri", "", "orders"),
        ("inlet", "read", "orders"),
    ]


def said(client: httpx.Client) -> list[tuple[str, str, str]]:
    answer = client.get(READERS)
    assert answer.status_code == 200, answer.text
    return [(one["dag"], one["task"], one["asset"]) for one in answer.json()["readers"]]


def test_a_reader_that_one_may_not_see_is_not_named(server: PageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    real = server.manager.filter_authorized_dag_ids

    def some(*, dag_ids: set[str], **more: Any) -> set[str]:
        return real(dag_ids=dag_ids, **more) - {"by_uri", "inlet"}

    monkeypatch.setattr(server.manager, "filter_authorized_dag_ids", some)
    with server.client(ANN) as client:
        assert [one[0] for one in said(client)] == ["by_alias", "by_asset", "by_name"]
    with server.client(NOBODY) as client:
        assert client.get(READERS).status_code == 404
