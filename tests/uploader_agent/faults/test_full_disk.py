"""The disk that log directory and hard links share is full to the last block: what can go goes, what is lost is said.

A tmpfs of its own is filled for real, so this needs to be root, and to be allowed to mount.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kafka import KafkaCluster
from tests.uploader_agent.fakes import Disk, World
from tests.uploader_agent.faults.cluster import create
from tests.uploader_agent.faults.load import Book, send
from tests.uploader_agent.faults.test_own_replica import assert_replica
from tests.uploader_agent.hold.test_hold import gaps, held, look, lose, watching
from tests.uploader_agent.in_process import run_here
from tests.uploader_agent.intake import topic_copy
from tests.uploader_agent.test_agent import no_errors

SIZE = "512k"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 512 KiB."""
    place = tmp_path / "small"
    place.mkdir()
    mount, umount = shutil.which("mount"), shutil.which("umount")
    if not mount or not umount:
        pytest.skip("this machine has no mount")
    arguments = ["-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(place)]
    mounted = subprocess.run([mount, *arguments], capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no file system of its own can be mounted here: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run([umount, str(place)], check=True)


@pytest.fixture
def world(tmp_path: Path, small_disk: Path) -> World:
    """The broker's disk is the small one, the store is not."""
    made = World(tmp_path)
    made.disk = Disk(small_disk)
    made.broker = dataclasses.replace(made.broker, log_dirs=made.disk.log_dirs)
    return made


def fill_up(place: Path) -> None:
    """Write until nothing more goes on it."""
    with (place / "filler").open("wb", buffering=0) as file:
        while os.statvfs(place).f_bavail:
            file.write(bytes(os.statvfs(place).f_bsize))
    with pytest.raises(OSError, match="No space left"):
        (place / "more").write_bytes(b"x")


def test_full_before_anything_is_held(world: World, small_disk: Path) -> None:
    """No link can be made and no note written: descriptors hold, the segments go up, nothing is left half."""
    partition = world.disk.partition().fill(0, 100, 200, end=300)
    fill_up(small_disk)
    with watching(world, links=[str(small_disk / "links")]) as agent:
        assert held(agent) == [(0, 100), (100, 200), (200, 300)]
        partition.retire(0, 100)
        partition.unlink_deleted()
        agent.upload_once()
        no_errors(agent)
    assert world.watermark()[1].next_offset == 300
    assert gaps(world) == []
    links = small_disk / "links"
    assert not links.exists() or list(links.iterdir()) == []


def test_it_yields_when_the_disk_runs_full(world: World, small_disk: Path) -> None:
    """What retention gave up is let go for the broker's sake, and stands as the exact gap; what is left goes up."""
    partition = world.disk.partition().fill(0, end=100)
    world.once()
    partition.fill(100, 200, 300, end=400)
    with watching(world, links=[str(small_disk / "links")], min_free=0.05) as agent:
        lose(partition, 0, 100)
        fill_up(small_disk)
        look(agent)
        agent.hold.enforce()
        look(agent)
        agent.upload_once()
        no_errors(agent)
    assert os.statvfs(small_disk).f_bavail > 0, "nothing was let go"
    assert world.watermark()[1].next_offset == 100
    assert gaps(world) == [(100, 200, "staging_full")]
    assert [world.manifest(base).state for base in (200, 300)] == ["whole", "whole"]


def test_a_replica_of_our_own_goes_on_after_room_was_made(
    kraft3: KafkaCluster, small_disk: Path, tmp_path: Path
) -> None:
    topic, log = "full-replica", tmp_path / "log"
    create(kraft3, topic, [[1], [1]])
    for partition in (0, 1):
        send(kraft3, topic, Book(), 100, partition=partition, size=1400)
    filler = small_disk / "filler"
    filler.write_bytes(bytes(300_000))
    arguments: list[str | Path] = ["--bootstrap", kraft3.bootstrap, "--topic", topic, "--to", small_disk]
    assert run_here(arguments, log, program=topic_copy.main) == 1
    assert "the spool cannot be written: No space left on device" in log.read_text()
    assert f"{small_disk}/{topic}-" in log.read_text()
    assert run_here(arguments, log, program=topic_copy.main) == 1, "it is full still"
    filler.unlink()
    assert run_here(arguments, log, program=topic_copy.main) == 0
    assert min(assert_replica(kraft3, topic, small_disk, partition) for partition in (0, 1)) > 0
