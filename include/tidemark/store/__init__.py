"""The seam to object storage: few operations, conditional writes, errors that tell failed from unknown.

:func:`open_store` gives a :class:`Store` for ``s3://bucket`` or ``file:///directory``. Keys are relative to it.
Everything that Tidemark writes, it writes through this seam; the Delta log alone is written by its own library.
"""

from tidemark.store.base import Fetched, ObjectInfo, Store, put_once
from tidemark.store.local import LocalStore
from tidemark.store.opening import StoreOptions, open_store
from tidemark.store.s3 import S3Store

__all__ = ["Fetched", "LocalStore", "ObjectInfo", "S3Store", "Store", "StoreOptions", "open_store", "put_once"]
