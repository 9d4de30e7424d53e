"""Storage that loses a reply, or dies with SIGKILL and comes back, in the midst of a commit."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.run.test_runs import spread
from tests.spark.world import World, in_process
from tests.support.faulty_s3 import proxied
from tests.support.proxy import Fault, FaultProxy, Request
from tests.support.s3 import S3Server
from tests.tidemark.kafka_log.build import simple
from tidemark.errors import TidemarkError
from tidemark.formats.table.plan import RunPlan
from tidemark_spark.run.driver import run


class Crash:
    """What happens to the first request that commits ``version``: see the tests. Asked by the proxy."""

    def __init__(self, server: S3Server, version: int, *, kill: bool, after: bool) -> None:
        self._server, self._kill, self._after = server, kill, after
        self._commit = f"_delta_log/{version:020d}.json"
        self.committing = self.killed = False

    def __call__(self, request: Request) -> Fault | None:
        first = request.method == "PUT" and request.path.endswith(self._commit) and not self.committing
        self.committing |= first
        if self._kill and not self.killed and self.committing and not (first and self._after):
            self._server.kill()
            self._server.start()
            self.killed = True
        return Fault.LOSE_REPLY if first and self._after else None


@pytest.fixture
def proxy(s3_server: S3Server, rng: random.Random, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """A proxy before the server, which all clients of this test use; between tries they wait as long as in earnest."""
    with proxied(s3_server, rng, monkeypatch) as found:
        yield found


@pytest.mark.essential
@pytest.mark.parametrize(
    ("kill", "after"),
    [
        pytest.param(False, True, id="the reply is lost", marks=pytest.mark.full),
        pytest.param(True, True, id="the store dies after it took effect"),
        pytest.param(True, False, id="the store dies before it took effect", marks=pytest.mark.full),
    ],
)
def test_a_commit_that_is_cut_off_counts_once(
    kill: bool, after: bool, s3_server: S3Server, proxy: FaultProxy, tmp_path: Path
) -> None:
    name = f"{tmp_path.name}-{random.getrandbits(32):x}"
    world = World(tmp_path, raw=f"s3://raw/{name}", lake=f"s3://lake/{name}")
    spread(world)
    world.land()
    world.raw.segment([simple(22)])
    world.raw.publish()
    plan = world.plan()
    proxy.rules = crash = Crash(s3_server, 2, kill=kill, after=after)
    status = tried(world, plan)
    assert crash.committing
    assert crash.killed is kill
    world.check()
    assert status == "landed" or run(world.table, plan, in_process).status == "landed"
    world.check()
    assert (world.ledger.n, world.ledger.rows) == (2, 37)
    assert world.ledger.landed[-1] == plan.attempt


def tried(world: World, plan: RunPlan) -> str:
    """The status of a run, or the error that it ended with; another run of the attempt must mend that."""
    try:
        return run(world.table, plan, in_process).status
    except TidemarkError as error:
        return f"{type(error).__name__}: {error}"
