"""The seam to object storage: few operations, conditional writes, errors that tell failed from unknown.

:func:`open_store` gives a :class:`Store` for ``s3://bucket`` or ``file:///directory``. Keys are relative to it.
Everything that Tidemark writes, it writes through this seam; the Delta log alone is written by its own library.
boto3 is imported when an S3 store is first opened, so that what Airflow parses stays light.
"""

from tidemark.store.base import Body, Fetched, ObjectInfo, Store, check_size, put_once, put_over
from tidemark.store.factory import open_store
from tidemark.store.local import LocalStore
from tidemark.store.options import StoreOptions

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
