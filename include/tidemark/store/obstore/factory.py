"""Opens the stores at ``gs://`` and ``az://``, each once in a process. obstore is imported only for them.

obstore and delta-rs reach a cloud by the same settings: addresses are here, and each of them finds its credentials by
itself, in the same places, since both use one Rust library.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from tidemark.errors import ConfigError
from tidemark.store.base import Traffic
from tidemark.store.options import LIMITS, RequestLimits, StoreOptions

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


ACCOUNT: Final = "AZURE_STORAGE_ACCOUNT_NAME"
"""The variable that names the storage account of all ``az://`` URLs."""


class Cloud(NamedTuple):
    """The URL below which a cloud's buckets lie, and delta-rs's further settings.

    With ``by_generation``, a condition on a write names an object's generation; otherwise it names its ETag.
    """

    endpoint: Callable[[StoreOptions], str]
    delta_settings: Callable[[str], dict[str, str]]
    by_generation: bool = False


def endpoint(url: str, options: StoreOptions) -> str:
    """The URL below which the buckets of ``url``'s scheme lie.

    Raises:
        ConfigError: no account is named, and Azure needs one.
    """
    return CLOUDS[url.partition("://")[0]].endpoint(options)


def azure_account() -> str:
    """The storage account. Raises ConfigError if the environment names none."""
    account = os.environ.get(ACCOUNT)
    if not account:
        rule = "names the storage account of az:// URLs, and is not set; set it where this process runs"
        raise ConfigError("the environment", [(ACCOUNT, rule)])
    return account


def delta_settings(url: str, options: StoreOptions) -> dict[str, str]:
    """delta-rs's storage options for the URL of a cloud. Raises ConfigError like :func:`endpoint`."""
    base = endpoint(url, options)
    allowed = {"allow_http": str(base.startswith("http://")).lower()}
    return allowed | CLOUDS[url.partition("://")[0]].delta_settings(base)


def _google_endpoint(options: StoreOptions) -> str:
    return options.endpoint_url or "https://storage.googleapis.com"


def _azure_endpoint(options: StoreOptions) -> str:
    account = azure_account()
    if options.endpoint_url is None:
        return f"https://{account}.blob.core.windows.net"
    return f"{options.endpoint_url}/{account}" if options.path_style else options.endpoint_url


CLOUDS: Final = {
    "gs": Cloud(_google_endpoint, lambda base: {"google_base_url": base}, by_generation=True),
    "az": Cloud(
        _azure_endpoint, lambda base: {"azure_storage_account_name": azure_account(), "azure_storage_endpoint": base}
    ),
}
"""Clouds by scheme; :data:`tidemark.store.obstore.clients.CONNECT` has the clients."""
