"""Retention of raw on a real S3 server: under its own role alone, and only of the versions that were judged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.spark.retention.test_raw import bases, buried, reported
from tests.spark.world import World
from tests.support.paths import ROOT
from tests.support.s3 import OwnBuckets
from tests.tidemark.kafka_log.build import simple
from tests.uploader_agent.test_policies import PREFIX, refused, statements
from tidemark.formats.keys import ControlKeys, PackName, SegmentName
from tidemark.store import put_once
from tidemark.timestamps import utc_now
from tidemark_spark.retention import raw

JOB = ROOT / "spark" / "jobs" / "retain.py"
STATIC = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


@pytest.fixture(scope="module")
def server(own_buckets: Callable[..., OwnBuckets]) -> OwnBuckets:
    return own_buckets(users={"retention": statements("retention")})


@pytest.fixture(scope="module")
def locked(own_buckets: Callable[..., OwnBuckets]) -> OwnBuckets:
    """Buckets that keep versions, each locked."""
    return own_buckets(locked=("raw", "lake"), users={"retention": statements("retention")})


def deployed(server: OwnBuckets, root: Path, settings: str, raw: str, lake: str) -> World:
    """A deployment in buckets of ``server``, whoever else has clients of another one in this process."""
    store = [f"endpoint_url: '{server.endpoint}'", "path_style: true"]
    return World(root, settings, raw=f"s3://{server.raw}/{raw}", lake=f"s3://{server.lake}/{lake}", store=store)


@pytest.mark.parametrize("kind", [pytest.param("server", marks=pytest.mark.essential), "locked"])
def test_it_works_under_its_own_role(
    starts_s3: None, kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Admin lands and reports; a day later the role removes, and can do nothing to the table."""
    server: OwnBuckets = request.getfixturevalue(kind)
    for name, value in server.env().items():
        monkeypatch.setenv(name, value)
    world = deployed(server, tmp_path, "retention: {raw: 1d, apply: true}", PREFIX, "tables")
    world.raw.now = utc_now() - timedelta(days=3)
    for partition in (0, 1):
        for base in (0, 3, 6):
            world.raw.segment(simple(base), partition)
    world.land()
    reported(world, utc_now() - timedelta(days=1, minutes=1), dry_run=True)

    command = [sys.executable, str(JOB), "--topics", str(world.topics_file), "--only", "raw", "--json", "--by", "ada"]
    environment = {**os.environ, **server.env("retention")}
    if kind == "server":  # as a profile, which is how Airflow names the role
        lines = [f"aws_{name.lower()[4:]} = {environment.pop(name)}" for name in STATIC]
        (tmp_path / "credentials").write_text("\n".join(["[reaper]", *lines]))
        environment |= {"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"), "AWS_PROFILE": "reaper"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [(one["segments"], one["removed_to"]) for one in found["partitions"]] == [(2, 6), (2, 6)]
    assert set(bases(world)) == set(bases(world, 1)) == {6}
    assert buried(world) == [(0, 6)]
    world.check()
    assert len(world.rows()) == 18
    role, keys = server.client("retention"), world.table.keys
    mine = {"Bucket": server.lake, "Key": f"{keys.retention('raw')}x.json"}
    assert not refused(role.put_object, **mine)
    for key in (keys.attempt(1), f"{keys.root}/_delta_log/{9:020d}.json", f"{keys.retention('table')}x.json"):
        assert refused(role.put_object, Bucket=server.lake, Key=key), key
    assert refused(role.delete_object, **mine)
    control = ControlKeys(PREFIX, "east")
    assert not refused(role.delete_object, Bucket=server.raw, Key=control.pack(PackName(1, "0f" * 16)))
    for key in (control.head(1), control.index(1), control.incarnations("orders"), world.raw.keys().watermark):
        assert refused(role.delete_object, Bucket=server.raw, Key=key), key
    if kind == "locked":  # what was removed is only hidden
        key = world.raw.keys().segment(SegmentName(0), "log")
        found = server.client().list_object_versions(Bucket=server.raw, Prefix=key)
        assert (len(found["Versions"]), [one["IsLatest"] for one in found["DeleteMarkers"]]) == (1, [True])


def test_what_is_replaced_meanwhile_stays(server: OwnBuckets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in server.env().items():
        monkeypatch.setenv(name, value)
    world = deployed(server, tmp_path, "retention: {raw: 1d, apply: true}", "replaced", "replaced")
    world.raw.now = utc_now() - timedelta(days=3)
    for base in (0, 3, 6, 9):
        world.raw.segment(simple(base))
    world.land()

    def putting(*arguments: Any) -> str:
        world.raw.segment(simple(3), base=3)
        return put_once(*arguments)

    reported(world, utc_now() - timedelta(days=1, minutes=1), dry_run=True)
    with monkeypatch.context() as patch:
        patch.setattr(raw, "put_once", putting)
        assert reported(world, utc_now()).partitions[0].removed_to == 0
    assert set(bases(world)) == {3, 6, 9}
    assert {"log", "index", "manifest.json"} == bases(world)[3]
    world.check()
