"""Keys of the pipeline that are exchanged while a process of it lives: docs/operations.md, Rotating keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.spark.retention.test_s3 import STATIC, deployed
from tests.support.s3 import OwnBuckets, allow
from tests.tidemark.kafka_log.build import simple
from tidemark.errors import AccessDenied
from tidemark.store.s3 import clients
from tidemark.store.s3.clients import forget_clients

EVERYTHING = [allow(["s3:*"], ["arn:aws:s3:::*"])]


@pytest.fixture
def server(
    own_buckets: Callable[..., OwnBuckets], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[OwnBuckets]:
    """One whose user ``jobs`` has its keys in a file that this process's variables name."""
    server = own_buckets(users={"jobs": EVERYTHING})
    for name, value in server.env("jobs").items():
        if name not in STATIC:
            monkeypatch.setenv(name, value)
    for name in STATIC:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    forget_clients()
    yield server
    forget_clients()


def write_keys(server: OwnBuckets, folder: Path) -> None:
    keys = server.credentials("jobs")
    lines = [f"aws_access_key_id = {keys.access_key}", f"aws_secret_access_key = {keys.secret_key}"]
    (folder / "credentials").write_text("\n".join(["[default]", *lines, ""]))


@pytest.mark.essential
def test_a_process_takes_the_keys_that_its_credentials_file_has_now(
    server: OwnBuckets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a Spark Connect server and its workers do: driver and tasks are in this process."""
    monkeypatch.setattr(clients, "_RENEWAL_SECONDS", 0.0)
    write_keys(server, tmp_path)
    world = deployed(server, tmp_path, "time_zone: UTC", "rotated", "tables")
    world.raw.segment(simple(0))
    assert world.land().status == "landed"

    server.rotate("jobs")
    with pytest.raises(AccessDenied):
        world.land()
    write_keys(server, tmp_path)
    with pytest.raises(AccessDenied):
        world.land()
    world.raw.segment(simple(3))
    assert world.land().status == "landed", "the try after a refusal has the new keys"
    assert world.offsets() == [*range(6)]
