"""The corpus as files below a version's folder, ``raw/`` and ``lake/``, and its way into and out of a store."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.golden.deployment import PREFIX
from tidemark.store import Store, StoreOptions, open_store
from tidemark.table.delta_table import open_topic_table
from tidemark.topics import Deployment
from tidemark_spark.mirror.catalog import open_catalog

BUCKETS: Final = ("raw", "lake")


def objects(folder: Path) -> Iterator[tuple[str, str, Path]]:
    """(bucket, key, file) of each object below ``folder``."""
    for bucket in BUCKETS:
        for path in sorted((folder / bucket).rglob("*")):
            if path.is_file():
                yield bucket, path.relative_to(folder / bucket).as_posix(), path


def take_out(options: StoreOptions, folder: Path) -> None:
    """Write all objects of the deployment below ``folder``, in place of those there."""
    for bucket in BUCKETS:
        shutil.rmtree(folder / bucket, ignore_errors=True)
        store = open_store(f"s3://{bucket}", options)
        for info in store.list(f"{PREFIX}/"):
            path = folder / bucket / info.key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(store.get(info.key).body)


def put_in(options: StoreOptions, folder: Path) -> None:
    """Put all objects below ``folder`` under their keys: a store whose ETags are of the content gives them again."""
    stores: dict[str, Store] = {bucket: open_store(f"s3://{bucket}", options) for bucket in BUCKETS}
    for bucket, key, path in objects(folder):
        stores[bucket].put(key, path.read_bytes())


def register(deployment: Deployment) -> None:
    """Register the newest Iceberg metadata of each table in the deployment's catalog, which is empty."""
    [settings] = deployment.catalogs
    catalog = open_catalog(deployment, settings)
    catalog.create_namespace(settings.namespace)
    for topic in deployment.topics:
        table = open_topic_table(deployment, topic)
        folder = table.keys.catalog_metadata(settings.name)
        found = sorted(info.key for info in table.store.list(f"{folder}/") if info.key.endswith(".metadata.json"))
        if found:
            catalog.register_table(f"{settings.namespace}.{topic.table}", f"{deployment.lake_store}/{found[-1]}")
