"""The interface to object storage: few operations, conditional writes, distinct errors for failed and unknown outcomes.

:func:`open_store` returns a :class:`Store` for a URL of :data:`tidemark.store.schemes.SCHEMES`. Keys are relative to
it. Tidemark writes everything through this interface; only delta-rs removes expired parts of a Delta log. botocore and
obstore are imported when a store that needs them is first opened, so that the modules that Airflow parses stay light.
"""

from tidemark.store.base import Body, Fetched, ObjectInfo, Store, check_size
from tidemark.store.local import LocalStore
from tidemark.store.options import StoreOptions
from tidemark.store.retrying import put_once, put_over
from tidemark.store.schemes import open_store

__all__ = [
    "Body",
    "Fetched",
    "LocalStore",
    "ObjectInfo",
    "Store",
    "StoreOptions",
    "check_size",
    "open_store",
    "put_once",
    "put_over",
]
