"""An agent is ready once the store has taken its watermark index, which needs an answer, and the right to write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.waiting import wait_until
from tests.uploader_agent.fakes import T, World
from tests.uploader_agent.operated import Operated
from tests.uploader_agent.test_run import running
from tidemark.errors import AccessDenied, BucketMissing, StoreError, UnknownOutcome
from uploader_agent.disk.watcher import DirectoryWatcher

Fault = Callable[[str, str], StoreError | None]


def no_credentials(_operation: str, key: str) -> StoreError:
    return AccessDenied(key, "no credentials are found")


def no_writes(operation: str, key: str) -> StoreError | None:
    return AccessDenied(key, "the policy allows no PUT") if operation == "put" else None


def no_index(operation: str, key: str) -> StoreError | None:
    """The policy of another broker."""
    refused = operation == "put" and "_watermarks/" in key
    return AccessDenied(key, "the policy allows no PUT of it") if refused else None


def no_bucket(operation: str, key: str) -> StoreError | None:
    """A HEAD of S3's has no body, which alone tells a missing bucket from a missing key."""
    return None if operation == "head" else BucketMissing(key)


def no_answer(_operation: str, key: str) -> StoreError:
    return UnknownOutcome(key, "the endpoint does not answer")


QUICK = {"stuck_after": "100ms", "scan_interval": "50ms", "index_interval": "50ms"}
FAULTS = [no_credentials, no_writes, no_index, no_bucket, no_answer]


def break_store(world: World, fault: Fault) -> None:
    def before(operation: str, key: str) -> None:
        if (error := fault(operation, key)) is not None:
            raise error

    world.store.before = before


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("partitions", [0, 1])
def test_an_agent_that_the_store_refuses_is_not_ready(world: World, fault: Fault, partitions: int) -> None:
    for _ in range(partitions):
        world.disk.partition().fill(0, end=100)
    break_store(world, fault)
    with running(world, DirectoryWatcher(), **QUICK) as agent:
        wait_until(lambda: agent.index.failing() is not None, what="a refusal")
        wait_until(lambda: agent.health.trouble() is not None, what="is not healthy either")
        assert not agent.health.ready
        said = agent.waiting()["agent"]
        assert "watermark index" in str(said)
        assert str(fault("put", world.control.index(1))) in str(said)
        world.store.before = lambda _operation, _key: None
        wait_until(lambda: agent.health.ready, what="ready")
        wait_until(lambda: agent.health.trouble() is None, what="healthy")
        assert agent.waiting()["agent"] is None


def test_credentials_that_expire_make_an_idle_agent_unhealthy_and_leave_it_ready(world: World) -> None:
    with running(world, DirectoryWatcher(), **QUICK) as agent:
        wait_until(lambda: agent.health.ready, what="ready")
        break_store(world, no_credentials)
        agent.index._indexes._writers[world.store.url]._written_at = -float("inf")  # a minute has passed
        wait_until(lambda: "no credentials" in str(agent.health.trouble()), what="is not healthy")
        assert agent.health.ready, "a broker's pod must not leave its service because of the store"


def test_a_broker_that_answers_errors_alone_makes_an_agent_unhealthy(world: World) -> None:
    """As after its listener got another port: checkpoints serve meanwhile, but they may be of yesterday."""
    world.disk.partition().fill(0, end=100)
    with running(world, DirectoryWatcher(), metadata_interval="50ms", **QUICK) as agent:
        wait_until(lambda: agent.health.ready, what="ready")
        assert agent.health.trouble() is None
        world.metadata.down = True
        wait_until(lambda: "nothing but errors" in str(agent.health.trouble()), what="is not healthy")
        assert "the broker cannot be asked: told so" in str(agent.health.trouble())
        world.metadata.down = False
        wait_until(lambda: agent.health.trouble() is None, what="healthy")


def test_a_store_that_fails_once_does_not_cost_a_survey_of_all_partitions(world: World) -> None:
    world.disk.partition().fill(0, end=100)
    world.once()
    made: list[str] = []

    def before(operation: str, key: str) -> None:
        made.append(f"{operation} {key}")
        if made == [f"head {world.control.index(1)}"]:
            raise UnknownOutcome(key, "connection reset")

    world.store.before = before
    with running(world, DirectoryWatcher()) as agent:
        wait_until(lambda: agent.health.ready, what="ready")
        wait_until(lambda: agent.leadership.partitions[T].remote.log.known, what="is known")
    assert not any(world.keys().folder in request for request in made)


@pytest.mark.parametrize("partitions", [0, 1])
def test_upload_once_fails_where_the_index_is_refused(tmp_path: Path, partitions: int) -> None:
    operated = Operated(tmp_path)
    for _ in range(partitions):
        operated.disk.partition().fill(0, end=100)
    assert operated.once() == 0
    operated.shut("refuse")
    assert operated.once() == 1
    assert "the watermark index was not written" in operated.log()
