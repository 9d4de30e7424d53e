"""Opens a catalog by its settings; the one place that hands secrets to pyiceberg."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from pyiceberg.catalog import Catalog, load_catalog

from tidemark.catalogs import NEED_URI, CatalogSettings
from tidemark.errors import ConfigError, MirrorError, TidemarkError
from tidemark.topics import Deployment
from tidemark_spark.mirror import store_io

SECONDS: Final = 30
"""How long a REST catalog may take to answer."""


def open_catalog(
    deployment: Deployment, settings: CatalogSettings, environment: Mapping[str, str] = os.environ
) -> Catalog:
    """The catalog of ``settings``, for tables in the lake of ``deployment``.

    Raises:
        ConfigError: a variable that holds a secret is not set, or there is no ``uri``.
        MirrorError: the catalog did not answer, or refuses.
    """
    properties = {**settings.properties, **_connection(settings, environment)}
    for name, variable in settings.secrets.items():
        if variable not in environment:
            rule = f"{variable} is not set in the environment"
            raise ConfigError(f"catalog {settings.name}", [(f"secrets.{name}", rule)])
        properties[name] = environment[variable]
    for name, value in (("uri", settings.uri), ("warehouse", settings.warehouse)):
        if value is not None:
            properties[name] = value
    if settings.kind in NEED_URI and "uri" not in properties:
        rule = (
            f"is not known: the Airflow connection {settings.connection} was not handed over; name uri or secrets.uri"
        )
        raise ConfigError(f"catalog {settings.name}", [("uri", rule)])
    properties |= {
        "type": settings.kind,
        "py-io-impl": store_io.NAME,
        store_io.STORE: deployment.lake_store,
        store_io.OPTIONS: deployment.store.model_dump_json(),
    }
    with answering(settings):
        return load_catalog(settings.name, **properties)


def _connection(settings: CatalogSettings, environment: Mapping[str, str]) -> dict[str, str]:
    """What Airflow took from its connection; nothing outside of Airflow."""
    text = environment.get(settings.variable)
    return {str(name): str(value) for name, value in json.loads(text).items()} if text else {}


@contextmanager
def answering(settings: CatalogSettings) -> Iterator[None]:
    """Makes of whatever a catalog's client raises a MirrorError that names the catalog, without its secrets."""
    try:
        yield
    except TidemarkError:
        raise
    except Exception as error:  # pyiceberg, requests, SQLAlchemy, botocore and Thrift have no class in common
        lines = str(error).splitlines() or [""]
        raise MirrorError(f"catalog {settings.name}: {type(error).__name__}: {lines[0][:300]}") from error
