"""What ``config check`` says of holding, by trying it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.uploader_agent.fakes import World
from uploader_agent.hold import preflight
from uploader_agent.hold.preflight import Guarantee, check, delete_delay, lines
from uploader_agent.settings import HoldSettings


def only(world: World, **settings: Any) -> Guarantee:
    [found] = check(world.disk.log_dirs, HoldSettings.model_validate(settings))
    return found


@pytest.mark.parametrize("with_segments", [True, False])
def test_links_are_tried_for_real_and_leave_nothing(world: World, with_segments: bool) -> None:
    if with_segments:
        world.disk.partition().fill(0, end=100)
    links = world.root / "not" / "there"
    before = sorted(world.root.rglob("*"))
    found = only(world, links=[links])
    assert (found.means, found.because) == ("links", None)
    assert "a restart of the agent" in found.guarantee
    assert sorted(world.root.rglob("*")) == before
    assert not links.parent.exists()
    assert all(path.stat().st_nlink == 1 for path in world.disk.log_dirs[0].rglob("*") if path.is_file())


def test_descriptors_where_links_cannot_be_made(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.disk.partition().fill(0, end=100)
    assert only(world) == (
        str(world.disk.log_dirs[0]),
        "descriptors",
        "descriptors: survives retention, but not a restart of the agent",
        "hold.links is not set",
    )

    def fail(_descriptor: int, _path: Path) -> None:
        raise PermissionError(1, os.strerror(1))

    monkeypatch.setattr(preflight, "link", fail)
    found = only(world, links=[world.root / "links"])
    assert found.means == "descriptors"
    assert "Operation not permitted" in (found.because or "")
    assert not (world.root / "links").exists()


def test_nothing_where_holding_is_off_or_files_cannot_be_read(world: World) -> None:
    assert only(world, enabled=False).means == "none"
    (world.disk.log_dirs[0] / "meta.properties").unlink()
    found = only(world)
    assert found.means == "none"
    assert "cannot read" in (found.because or "")


def test_what_the_delete_delay_ought_to_be() -> None:
    linked, described = (Guarantee("/data", means, "", None) for means in ("links", "descriptors"))
    assert delete_delay([linked], {})[:2] == (60_000, 0)
    assert delete_delay([linked, described], {"log.segment.delete.delay.ms": "1000"})[:2] == (1000, 60_000)
    short = delete_delay([described], {"log.segment.delete.delay.ms": "1"})
    assert "IS TOO SHORT: at least 60000" in lines([], short)[0]
    assert "60000 is enough" in lines([], delete_delay([described], {}))[0]
    assert "may be anything" in lines([], delete_delay([linked], {}))[0]
