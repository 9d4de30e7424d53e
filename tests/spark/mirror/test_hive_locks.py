"""Hive's locks: that of a killed mirror is removed by the next on this machine, and no other."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hive_metastore.ttypes import LockComponent, LockLevel, LockRequest, LockType, ShowLocksRequest, UnlockRequest
from pyiceberg.catalog.hive import HiveCatalog

from tests.spark.convert.test_parsers import records
from tests.spark.mirror.catalogs import hive_catalog, listed, narrow_world, reader
from tests.spark.world import World
from tests.support.hive import HiveMetastore
from tests.tidemark.kafka_log.build import batch
from tidemark.catalogs import CatalogSettings
from tidemark.errors import MirrorError
from tidemark.table.delta_table import open_topic_table
from tidemark.topics import load_topics
from tidemark_spark.mirror.catalog import open_catalog
from tidemark_spark.mirror.hive_locks import LockHolder
from tidemark_spark.mirror.mirror import mirror
from tidemark_spark.mirror.mirrored_table import MirroredTable

SOON = {"lock-check-min-wait-time": "0.05", "lock-check-max-wait-time": "0.1", "lock-check-retries": "2"}


@pytest.fixture
def settings(metastore: HiveMetastore) -> CatalogSettings:
    """A metastore that is empty at first; its clients wait for locks for a moment."""
    metastore.forget()
    return hive_catalog(metastore, properties={"hive.hive2-compatible": "true", **SOON})


@pytest.fixture
def world(tmp_path: Path, settings: CatalogSettings) -> World:
    """One that is listed, and has landed more."""
    made = narrow_world(tmp_path)
    listed(made, settings)
    made.raw.segment([batch(2, records(b'{"id":3}'))])
    made.land()
    return made


def client(settings: CatalogSettings) -> Any:
    """The metastore as any client has it; usable with ``with``."""
    catalog = reader(settings)
    assert isinstance(catalog, HiveCatalog)
    return catalog._client


def locks(settings: CatalogSettings) -> list[str]:
    """What the locks of the table say of their holders."""
    with client(settings) as there:
        return [one.agentInfo for one in there.show_locks(ShowLocksRequest("kafka", "orders")).locks]


def killed_while_it_commits(topics_file: Path, settings: CatalogSettings) -> None:
    """The program of a process of its own, which is killed while it has the lock."""

    def killed(*_arguments: object, **_options: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    HiveCatalog._write_metadata = killed  # type: ignore[method-assign]
    deployment = load_topics(topics_file)
    table = open_topic_table(deployment, deployment.topics[0])
    mirror(table, settings, MirroredTable(table, settings, open_catalog(deployment, settings)))


def test_the_lock_of_a_killed_mirror_delays_the_next_for_a_moment(world: World, settings: CatalogSettings) -> None:
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=killed_while_it_commits, args=(world.topics_file, settings), daemon=True)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert [found.split()[:1] for found in locks(settings)] == [["tidemark"]]
    listed(world, settings)
    assert locks(settings) == []


@pytest.mark.parametrize("holder", ["a process that runs", "another machine's", "another program"])
def test_any_other_lock_is_waited_for(world: World, settings: CatalogSettings, holder: str) -> None:
    running = LockHolder.of_process(os.getpid())
    said = {
        "a process that runs": str(running),
        "another machine's": str(running._replace(machine="0000/1", pid=ended())),
        "another program": "Unknown",
    }[holder]
    component = LockComponent(LockType.EXCLUSIVE, LockLevel.TABLE, "kafka", "orders", isTransactional=True)
    with client(settings) as there:
        lock = there.lock(LockRequest([component], user="somebody", hostname="somewhere", agentInfo=said)).lockid
    with pytest.raises(MirrorError, match="Failed to acquire lock"):
        listed(world, settings)
    assert locks(settings) == [said]
    with client(settings) as there:
        there.unlock(UnlockRequest(lock))
    listed(world, settings)


def ended() -> int:
    """The id of a process that has ended."""
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid


def test_an_id_that_another_process_has_now_is_no_holder() -> None:
    running = LockHolder.of_process(os.getpid())
    assert LockHolder.said(str(running)) == running
    assert not running.is_gone()
    assert running._replace(started=running.started - 1).is_gone()
    assert running._replace(pid=ended()).is_gone()
    assert not running._replace(machine="0000/1", pid=ended()).is_gone()
    assert not LockHolder.of_process(1).is_gone(), "another user's"
    assert LockHolder.said("tidemark") is LockHolder.said(None) is None
