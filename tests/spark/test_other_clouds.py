"""Runs whose segments and table lie on Azurite, and on our own server for Google's documented protocol."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.spark.world import World, in_process
from tests.support import azurite
from tests.support.azurite import Azurite
from tests.support.gcs import GcsServer
from tests.tidemark.kafka_log.build import simple
from tidemark.store.obstore.factory import forget_clients
from tidemark_spark.run.driver import run


@pytest.fixture(params=["gs", pytest.param("az", marks=pytest.mark.other)])
def world(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A deployment whose raw segments and lake are in one bucket."""
    forget_clients()
    if request.param == "gs":
        with GcsServer() as google:
            key = {"gcs_base_url": google.endpoint, "disable_oauth": True, "client_email": "", "private_key": ""}
            account = tmp_path / "account.json"
            account.write_text(json.dumps({**key, "private_key_id": ""}))
            monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(account))
            options = [f"endpoint_url: {google.endpoint}"]
            yield World(tmp_path, raw="gs://raw/segments", lake="gs://raw/tables", store=options)
    else:
        program = azurite.program()
        if program is None:
            pytest.skip("TIDEMARK_AZURITE does not say where azurite-blob is")
        with Azurite(program, tmp_path / "log") as server:
            for name, value in server.env().items():
                monkeypatch.setenv(name, value)
            container = f"c-{uuid.uuid4().hex}"
            server.create_container(container)
            url, options = f"az://{container}", [f"endpoint_url: {server.endpoint}", "path_style: true"]
            yield World(tmp_path, raw=f"{url}/segments", lake=f"{url}/tables", store=options)
    forget_clients()


def test_runs_land_and_one_of_two_at_once_does(world: World) -> None:
    for number in range(3):
        world.raw.segment([simple(3 * number)])
        assert world.land().rows == 3
    assert world.offsets() == list(range(9))
    world.raw.segment([simple(9)])
    world.raw.publish()
    with ThreadPoolExecutor(2) as pool:
        ended = [pool.submit(run, world.table, plan, in_process) for plan in (world.plan(), world.plan())]
    landed = [one for one in ended if one.exception() is None and one.result().status == "landed"]
    assert len(landed) == 1, [one.exception() or one.result().status for one in ended]
    world.check()
    assert world.offsets() == list(range(12))
