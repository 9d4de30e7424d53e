"""Opens the stores at ``gs://`` and ``az://``, each once in a process. obstore is imported only for them."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache, partial
from typing import TYPE_CHECKING, Any, cast

from tidemark.errors import ConfigError
from tidemark.store.limits import LIMITS, RequestLimits
from tidemark.store.obstore.settings import CLOUDS, endpoint
from tidemark.store.options import StoreOptions
from tidemark.store.traffic import Traffic

if TYPE_CHECKING:
    from tidemark.store.obstore.store import ObjectStore


def open_object_store(url: str, options: StoreOptions, traffic: Traffic, limits: RequestLimits = LIMITS) -> ObjectStore:
    """The process's store at ``gs://bucket`` or ``az://container``: making its clients takes long.

    Raises:
        ConfigError: obstore is not installed, or the environment does not name the account.
    """
    return _opened(url, options.model_dump_json(), endpoint(url, options), cast("Hashable", traffic), limits)


def forget_clients() -> None:
    """Make new clients for all stores opened from now on; for a process with credentials that change."""
    _opened.cache_clear()


@cache
def _opened(url: str, options_json: str, base: str, traffic: Hashable, limits: RequestLimits) -> ObjectStore:
    object_store, clients = _installed()
    options = StoreOptions.model_validate_json(options_json)
    scheme, _, bucket = url.partition("://")
    store: ObjectStore = object_store.ObjectStore(
        url,
        clients.ObstoreClients(partial(clients.CONNECT[scheme], bucket, base), options, limits),
        options,
        cast("Traffic", traffic),
        partial(clients.store_time, f"{base}/", limits),
        by_generation=CLOUDS[scheme].by_generation,
    )
    return store


def _installed() -> tuple[Any, Any]:
    """The modules that need obstore."""
    try:
        from tidemark.store.obstore import clients as object_store_clients
        from tidemark.store.obstore import store as object_store
    except ModuleNotFoundError as error:
        if error.name != "obstore":
            raise
        rule = "is needed for gs:// and az:// and is not installed: install the extra tidemark-kafka[object-store] here"
        raise ConfigError("this installation", [("obstore", rule)]) from error
    return object_store, object_store_clients
