"""Objects of every released version are read by today's code, and mean what they meant."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.golden import HERE, RELEASED
from tests.golden.corpus import objects, put_in, register
from tests.golden.deployment import PREFIX, deployment_of, register_schemas, topics_file
from tests.golden.kinds import KINDS, NOT_IN_THE_CORPUS, kinds_of, members
from tests.golden.meaning import meaning, plain
from tests.support.s3 import S3Server
from tests.tidemark.parsers.registry_server import Registry, serving
from tidemark.formats.base import StoredObject
from tidemark.formats.raw import watermark
from tidemark.formats.raw.watermark import Watermark

MOST_BYTES = 2 << 20
OURS = re.compile(
    rb"/dev/shm|/tmp/|127\.0\.0\.1|(?<![\w-])%s(?![\w-])|%s/"
    % (re.escape(socket.gethostname().encode()), re.escape(str(Path.home()).encode()))
)
"""Names of the machine that made it, if it is this one; a short one may be a part of a topic's id."""


@pytest.fixture(params=RELEASED)
def version(request: pytest.FixtureRequest) -> Path:
    return HERE / str(request.param)


def test_they_mean_what_they_meant(version: Path, s3: S3Server, tmp_path: Path) -> None:
    """To the consumer, the table's readers, the audit, and people: without a broker or an agent."""
    with serving(Registry()) as registry:
        register_schemas(registry, 2)
        topics = topics_file(tmp_path, s3.endpoint, registry.url)
        deployment = deployment_of(topics)
        put_in(deployment.store, version)
        register(deployment)
        found = plain(meaning(topics))
    meant = json.loads((version / "meaning.json").read_text())
    assert dict(differences(meant, found)) == {}


def differences(meant: Any, found: Any, path: str = "") -> Any:
    """(path, what it meant and means) of each value that differs."""
    if isinstance(meant, dict) and isinstance(found, dict):
        for name in meant.keys() | found.keys():
            yield from differences(meant.get(name), found.get(name), f"{path}.{name}")
    elif meant != found:
        yield path, (meant, found)


def test_each_object_is_read_whole(version: Path) -> None:
    """With each field that it has, and nothing in its place; and it is of one kind."""
    for bucket, key, path in objects(version):
        [kind] = kinds_of(bucket, key)
        if kind.model is None:
            continue
        body = path.read_bytes()
        stored: StoredObject | None
        if kind.model is Watermark:
            base, stored = watermark.parse(body, key)
            assert base == int(body[:20])
            body = body.partition(b"\n")[2]
        else:
            stored = kind.model.from_bytes(body, key)
        assert stored is not None
        assert stored.model_dump(mode="json", by_alias=True, exclude_unset=True) == json.loads(body), key


def test_each_kind_is_there(version: Path) -> None:
    there = {kind for bucket, key, _ in objects(version) for kind in kinds_of(bucket, key)}
    assert [kind.form for kind in KINDS if kind not in there] == []


def test_each_class_of_evidence_is_there(version: Path) -> None:
    evidence = [path for bucket, _, path in objects(version) if bucket == "lake" and path.parent.name == "evidence"]
    classes = {str(name) for path in evidence for name in pq.read_table(path, columns=["class"])["class"].to_pylist()}
    listed = json.loads((version / "formats.json").read_text())["evidence"]["classes"]
    assert sorted(classes) == listed


def test_each_key_that_there_is_has_a_kind() -> None:
    """A new member of `tidemark.formats.keys` needs a kind and an object in the corpus, or a reason."""
    assert {kind.member for kind in KINDS} | NOT_IN_THE_CORPUS.keys() == {*members()}
    assert {kind.member for kind in KINDS}.isdisjoint(NOT_IN_THE_CORPUS)


def test_it_is_small_and_names_no_machine(version: Path) -> None:
    bodies = [(key, path.read_bytes()) for _, key, path in objects(version)]
    assert sum(len(body) for _, body in bodies) < MOST_BYTES
    assert all(key.startswith(f"{PREFIX}/") for key, _ in bodies)
    assert [key for key, body in bodies if OURS.search(body)] == []
