"""The places of a cluster's objects: the store and keys of a partition and its cluster; each store is opened once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.raw_builder import RawBuilder
from tests.tidemark.kafka_log.build import simple
from tidemark.endpoints import EndpointSettings
from tidemark.errors import FormatError
from tidemark.formats.keys import Endpoint, SegmentName
from tidemark.formats.raw.watermark import Watermark, render
from tidemark.raw.objects import read_manifest
from tidemark.storage import OtherWatermark, Storage, StoredWatermark
from tidemark.store import Store
from tidemark.store.local import LocalStore
from tidemark.timestamps import utc_now

SETTINGS = EndpointSettings.model_validate(
    {"url": "s3://raw/ts", "topics": {"payments": {"url": "s3://apart/kept", "entropy_bits": 4}}}
)


@pytest.fixture
def opened() -> list[str]:
    """The URLs of the stores that were opened."""
    return []


@pytest.fixture
def storage(tmp_path: Path, opened: list[str]) -> Storage:
    def opener(url: str) -> Store:
        opened.append(url)
        return LocalStore(tmp_path / url.removeprefix("s3://"))

    return Storage("east", SETTINGS, opener=opener)


def test_a_partition_and_its_cluster_have_one_store_and_one_prefix(storage: Storage) -> None:
    orders = storage.partition_store(storage.partition_keys("orders", 3, "orders"))
    payments = storage.partition_store(storage.partition_keys("payments", 0, "payments"))
    assert orders.keys.folder == "ts/east/orders-3/"
    assert orders.cluster == storage.cluster_store()
    assert payments.store is not orders.store
    assert payments.cluster == storage.cluster_store(storage.endpoint("payments", 0))
    assert payments.cluster.keys.heads == "kept/_heads/east/"


def test_each_store_is_opened_once(storage: Storage, opened: list[str]) -> None:
    keys = storage.partition_keys("payments", 0, "payments")
    assert (storage.cluster_keys().prefix, keys.endpoint.prefix, opened) == ("ts", "kept", []), "keys need no store"
    for _ in range(2):
        storage.cluster_store()
        storage.partition_store(keys)
    assert opened == ["s3://raw", "s3://apart"]
    assert storage.through(lambda store: store).cluster_store() == storage.cluster_store()
    assert opened == ["s3://raw", "s3://apart"]


def test_an_endpoint_without_its_bits_is_where_the_cluster_s_objects_are(storage: Storage) -> None:
    endpoint = storage.endpoint("payments", 0)
    assert endpoint.root == Endpoint("s3://apart", "kept")
    assert endpoint.url == "s3://apart/kept"
    assert Endpoint("s3://raw").url == "s3://raw"


def test_a_segment_is_intact_if_each_object_is_the_version_that_its_manifest_names(storage: Storage) -> None:
    partition = storage.partition_store(storage.partition_keys("orders", 0, "orders"))
    raw = RawBuilder(partition.store, prefix="ts")
    raw.segment([simple(0)])
    stored = read_manifest(partition, SegmentName(0))
    assert stored is not None
    manifest = stored.manifest
    assert partition.is_intact(manifest)
    index = partition.keys.segment(SegmentName(0), "index")
    for body in (partition.store.get(index).body + b"\0", partition.store.get(index).body):
        partition.store.put(index, body)
        assert not partition.is_intact(manifest), "of another size, or of another version"
    partition.store.delete(index)
    assert not partition.is_intact(manifest)


def test_a_watermark_is_read_as_it_is_whoever_wrote_it(storage: Storage) -> None:
    partition = storage.partition_store(storage.partition_keys("orders", 0, "orders"))
    assert partition.watermark() is None
    written = Watermark(
        topic_id=None, start_offset=0, leader_epoch=0, next_offset=0, lineage=(), broker=1, written_at=utc_now()
    )
    partition.store.put(partition.keys.watermark, render(0, written))
    found = partition.watermark()
    assert isinstance(found, StoredWatermark)
    assert partition.watermark(found) is found
    partition.store.put(partition.keys.watermark, b"%020d" % 7)
    assert isinstance(partition.watermark(found), OtherWatermark)
    partition.store.put(partition.keys.watermark, b"{")
    with pytest.raises(FormatError):
        partition.watermark()
