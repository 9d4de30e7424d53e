"""A page with what its form of backfills asks of Airflow, and a browser that is signed in to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI, HTTPException

from tests.plugins.operators.test_backfill import RUN
from tests.plugins.web.page_server import ANN, PageServer
from tests.plugins.web.page_world import PageWorld
from tests.support.browser import Browser
from tidemark_airflow.dag_factories.backfill import DAG_ID, form


@pytest.fixture(scope="module")
def runs() -> dict[str, str]:
    """The states of the backfill runs that Airflow tells of, by id."""
    return {RUN: "queued"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, runs: dict[str, str]) -> Iterator[PageServer]:
    """The page, and of Airflow's API what describes the form of backfills. It accepts replays, as the run ``RUN``."""
    home = tmp_path_factory.mktemp("page")
    airflow = FastAPI()
    world = PageWorld(home / "world")

    @airflow.get(f"/api/v2/dags/{DAG_ID}/details")
    def details() -> dict[str, Any]:
        return {"is_paused": True, "params": {name: one.dump() for name, one in form(world.deployment).items()}}

    @airflow.post(f"/api/v2/dags/{DAG_ID}/dagRuns")
    def trigger(body: dict[str, Any]) -> dict[str, str]:
        if body["conf"]["mode"] != "replay":
            raise HTTPException(400, f"This cannot be: {'x' * 200}")
        return {"dag_run_id": RUN, "state": runs[RUN]}

    @airflow.get(f"/api/v2/dags/{DAG_ID}/dagRuns/{{run}}")
    def run_now(run: str) -> dict[str, str]:
        return {"dag_run_id": run, "state": runs[run]}

    world.add_brokersets()
    with PageServer(world, home, app=airflow) as running:
        yield running


@pytest.fixture(scope="module")
def browser(starts_browser: None, server: PageServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser, signed in as ann."""
    with Browser(tmp_path_factory.mktemp("browser")) as running:
        running.set_cookie(server.url, "_token", server.token(ANN))
        yield running
