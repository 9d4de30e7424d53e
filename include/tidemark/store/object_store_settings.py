"""Where Google Cloud Storage and Azure Blob Storage are reached. What obstore and delta-rs are told, both alike.

Each finds its credentials by itself, in the same places: it is the same Rust library under both.
"""

from __future__ import annotations

import os
from typing import Final

from tidemark.errors import ConfigError
from tidemark.store.options import StoreOptions

ACCOUNT: Final = "AZURE_STORAGE_ACCOUNT_NAME"
"""The variable that names the storage account of all ``az://`` URLs."""


def endpoint(url: str, options: StoreOptions) -> str:
    """The URL below which the buckets of ``url``'s scheme lie.

    Raises:
        ConfigError: no account is named, and Azure needs one.
    """
    if url.startswith("gs://"):
        return options.endpoint_url or "https://storage.googleapis.com"
    account = azure_account()
    if options.endpoint_url is None:
        return f"https://{account}.blob.core.windows.net"
    return f"{options.endpoint_url}/{account}" if options.path_style else options.endpoint_url


def azure_account() -> str:
    """The storage account. Raises ConfigError if the environment names none."""
    account = os.environ.get(ACCOUNT)
    if not account:
        rule = "names the storage account of az:// URLs, and is not set; set it where this process runs"
        raise ConfigError("the environment", [(ACCOUNT, rule)])
    return account


def delta_settings(url: str, options: StoreOptions) -> dict[str, str]:
    """delta-rs's storage options for a ``gs://`` or ``az://`` URL. Raises ConfigError like :func:`endpoint`."""
    base = endpoint(url, options)
    found = {"allow_http": str(base.startswith("http://")).lower()}
    if url.startswith("gs://"):
        return found | {"google_base_url": base}
    return found | {"azure_storage_account_name": azure_account(), "azure_storage_endpoint": base}
