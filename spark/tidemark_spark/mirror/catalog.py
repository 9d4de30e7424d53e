"""Opens a catalog with its settings; the only place that passes secrets to pyiceberg."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.rest import SNAPSHOT_LOADING_MODE, RestCatalog
from requests import PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter
from typing_extensions import override

from tidemark.catalogs import NEED_URI, CatalogSettings
from tidemark.connections import connection
from tidemark.errors import ConfigError, MirrorError, TidemarkError
from tidemark.topics import Deployment
from tidemark_spark.mirror import store_io

SECONDS: Final = 30
"""Longest silence of a REST catalog; pyiceberg itself would wait for ever."""


_TABLES: Final = 2
"""The tables that a new ``sql`` catalog makes of its own when it is opened, one after the other."""

_MAKING: Final = threading.Lock()

_HIVE_REFUSAL: Final = "columns have types incompatible with the existing columns"
_HIVE_ADVICE: Final = (
    "; Hive's metastore refuses wider types within lists and structs, unless it is set to "
    "hive.metastore.disallow.incompatible.col.type.changes=false"
)


class _PatientAdapter(HTTPAdapter):
    @override
    def send(self, request: PreparedRequest, *args: Any, **kwargs: Any) -> Response:
        return super().send(request, *args, **{**kwargs, "timeout": kwargs.get("timeout") or SECONDS})


class PatientRestCatalog(RestCatalog):
    """A REST catalog with requests limited to :data:`SECONDS` of silence; its tables have all their snapshots."""

    def __init__(self, name: str, **properties: str) -> None:
        super().__init__(name, **properties)
        # With ``refs``, the metadata of all other snapshots would seem unused.
        self.properties[SNAPSHOT_LOADING_MODE] = "all"

    @override
    def _create_session(self) -> Session:
        session = super()._create_session()
        for prefix in ("http://", "https://"):
            session.mount(prefix, _PatientAdapter())
        return session


_REST: Final = f"{PatientRestCatalog.__module__}.{PatientRestCatalog.__qualname__}"


def open_catalog(
    deployment: Deployment, settings: CatalogSettings, environment: Mapping[str, str] = os.environ
) -> Catalog:
    """The catalog of ``settings``, for tables in the lake of ``deployment``.

    Raises:
        ConfigError: a variable with a secret is not set, Airflow passed no such connection, or there is no ``uri``.
        MirrorError: the catalog did not answer, or refuses.
    """
    known = {**settings.properties, **_connection(settings)}
    unset = [
        (f"secrets.{name}", variable) for name, variable in settings.secrets.items() if variable not in environment
    ]
    if unset:
        raise ConfigError(f"catalog {settings.name}", [(name, f"{variable} is not set") for name, variable in unset])
    known |= {name: environment[variable] for name, variable in settings.secrets.items()}
    named = {"uri": settings.uri, "warehouse": settings.warehouse}
    known |= {name: value for name, value in named.items() if value is not None}
    if settings.kind in NEED_URI and "uri" not in known:
        rule = f"is not known: the connection {settings.connection} has no host; give it one, or name uri"
        raise ConfigError(f"catalog {settings.name}", [("uri", rule)])
    properties = known | {
        **({"py-catalog-impl": _REST} if settings.kind == "rest" else {"type": settings.kind}),
        "py-io-impl": store_io.NAME,
        store_io.STORE: deployment.lake_store,
        store_io.OPTIONS: deployment.store.model_dump_json(),
    }
    with answering(settings):
        if settings.kind != "sql":
            return load_catalog(settings.name, **properties)
        from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError

        for _ in range(_TABLES):  # another process may make the same one meanwhile; then it is there
            with suppress(OperationalError, ProgrammingError, IntegrityError), _MAKING:
                return load_catalog(settings.name, **properties)
        return load_catalog(settings.name, **properties)


def _connection(settings: CatalogSettings) -> dict[str, str]:
    """Properties of pyiceberg from the Airflow connection of the settings."""
    if settings.connection is None:
        return {}
    airflow = connection(settings.connection)
    credential = ":".join(part for part in (airflow.login, airflow.password) if part)
    given = {"uri": airflow.uri, "credential": credential}
    return {name: value for name, value in given.items() if value} | airflow.extra


@contextmanager
def answering(settings: CatalogSettings) -> Iterator[None]:
    """Turn errors of a catalog's client into a MirrorError that names the catalog, without its secrets."""
    try:
        yield
    except TidemarkError:
        raise
    except Exception as error:  # pyiceberg, requests, SQLAlchemy, botocore and Thrift share no class
        lines = str(error).splitlines() or [""]
        advice = _HIVE_ADVICE if _HIVE_REFUSAL in lines[0] else ""
        raise MirrorError(f"catalog {settings.name}: {type(error).__name__}: {lines[0][:300]}{advice}") from error
