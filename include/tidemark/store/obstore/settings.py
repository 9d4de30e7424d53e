"""Addresses of the clouds that obstore reaches, and the same settings for obstore and delta-rs.

Each finds its credentials by itself, in the same places: both use one Rust library.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, NamedTuple

from tidemark.errors import ConfigError
from tidemark.store.options import StoreOptions
from tidemark.store.schemes import scheme_of

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
    return CLOUDS[scheme_of(url)].endpoint(options)


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
    return allowed | CLOUDS[scheme_of(url)].delta_settings(base)


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
