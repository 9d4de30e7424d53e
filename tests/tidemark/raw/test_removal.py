"""Segments are deleted in just their versions, whoever else deletes or replaces them meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.raw_builder import RawBuilder
from tests.support.s3 import S3Server
from tests.tidemark.kafka_log.build import simple
from tests.tidemark.store.test_store import at
from tidemark.formats.keys import SegmentName
from tidemark.raw.objects import read_manifest, remove_segment
from tidemark.storage import PartitionStore
from tidemark.store import open_store


@pytest.mark.essential
@pytest.mark.parametrize("kind", ["file", "s3"])
@pytest.mark.parametrize("change", ["nothing", "deleted", "replaced"])
def test_a_segment_goes_unless_its_manifest_was_replaced(s3: S3Server, tmp_path: Path, kind: str, change: str) -> None:
    """SeaweedFS answers 412 to a conditional deletion of what is not there."""
    store = open_store(f"file://{tmp_path}") if kind == "file" else open_store("s3://raw", at(s3))
    raw = RawBuilder(store, prefix=change)
    raw.segment([simple(0)])
    keys, name = raw.keys(), SegmentName(0)
    stored = read_manifest(PartitionStore(store, keys), name)
    assert stored is not None
    if change == "deleted":
        store.delete(keys.manifest(name))
    elif change == "replaced":
        store.put(keys.manifest(name), b"another")
    etags = {file: described.etag for file, described in stored.manifest.objects.items()}
    assert remove_segment(PartitionStore(store, keys), name, stored.etag, etags) == (change != "replaced")
    left = {info.key for info in store.list(keys.folder)}
    assert left == ({keys.manifest(name), *map(keys.file, etags)} if change == "replaced" else set())
