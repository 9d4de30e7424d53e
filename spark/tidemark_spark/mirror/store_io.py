"""Iceberg's metadata through the deployment's own store: its credentials, its retries, any kind of store.

Source of the contract: ``pyiceberg.io.FileIO``. Nothing is deleted through it. pyiceberg deletes the objects of a
failed commit, but if the reply was lost, the commit counts; :mod:`tidemark_spark.mirror.mirror` deletes unneeded
objects much later.
"""

from __future__ import annotations

import io
from typing import Any, Final

from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, OutputStream
from pyiceberg.typedef import EMPTY_DICT, Properties
from typing_extensions import override

from tidemark.errors import MirrorError, NotFound, PreconditionFailed
from tidemark.store import Store, StoreOptions, open_store, put_once, put_over

STORE: Final = "tidemark.store"
OPTIONS: Final = "tidemark.store-options"
NAME: Final = f"{__name__}.StoreIO"
"""Value of pyiceberg's property ``py-io-impl``."""

NOT_OURS: Final = (
    "if the lake has moved, remove the table there (without its files), and the next run lists it again; else name "
    "another namespace"
)
"""Advice on a table that lies elsewhere."""


class StoreIO(FileIO):
    """Files of the store :data:`STORE`, the prefix of all locations."""

    def __init__(self, properties: Properties = EMPTY_DICT) -> None:
        super().__init__(properties)
        self._url = str(properties[STORE])
        self._store = open_store(self._url, StoreOptions.model_validate_json(str(properties[OPTIONS])))

    @override
    def new_input(self, location: str) -> InputFile:
        return _Input(self._store, self.key(location), location)

    @override
    def new_output(self, location: str) -> OutputFile:
        return _StoreOutputFile(self._store, self.key(location), location)

    @override
    def delete(self, location: str | InputFile | OutputFile) -> None:
        return

    def key(self, location: str) -> str:
        """The key of a location. Raises MirrorError if it lies in another store."""
        if not location.startswith(f"{self._url}/"):
            rule = f"is not in {self._url}, where all of Tidemark's tables are; {NOT_OURS}"
            raise MirrorError(f"{location} {rule}")
        return location.removeprefix(f"{self._url}/")


class _Input(InputFile):
    def __init__(self, store: Store, key: str, location: str) -> None:
        super().__init__(location)
        self._store, self._key = store, key

    @override
    def __len__(self) -> int:
        return self._store.head(self._key).size

    @override
    def exists(self) -> bool:
        try:
            self._store.head(self._key)
        except NotFound:
            return False
        return True

    @override
    def open(self, seekable: bool = True) -> InputStream:
        try:
            stream: Any = io.BytesIO(self._store.get(self._key).body)
        except NotFound as error:
            raise FileNotFoundError(self.location) from error
        return stream  # type: ignore[no-any-return]  # the protocol's type


class _StoreOutputFile(OutputFile):
    def __init__(self, store: Store, key: str, location: str) -> None:
        super().__init__(location)
        self._store, self._key = store, key

    @override
    def __len__(self) -> int:
        return self._store.head(self._key).size

    @override
    def exists(self) -> bool:
        return self.to_input_file().exists()

    @override
    def create(self, overwrite: bool = False) -> OutputStream:
        stream: Any = _BufferedUpload(self._store, self._key, overwrite=overwrite)
        return stream  # type: ignore[no-any-return]  # the protocol's type

    @override
    def to_input_file(self) -> InputFile:
        return _Input(self._store, self._key, self.location)


class _BufferedUpload(io.BytesIO):
    """Collects written bytes until it is closed. Metadata of a table are a few MiB."""

    def __init__(self, store: Store, key: str, *, overwrite: bool) -> None:
        super().__init__()
        self._store, self._key, self._overwrite = store, key, overwrite

    @override
    def __exit__(self, *error: object) -> None:
        if error[0] is not None:
            super().close()  # discards an incomplete file
        else:
            self.close()

    @override
    def close(self) -> None:
        if not self.closed:
            body = self.getvalue()
            super().close()
            if self._overwrite:
                put_over(self._store, self._key, body)
            else:
                self._create(body)

    def _create(self, body: bytes) -> None:
        try:
            put_once(self._store, self._key, body)
        except PreconditionFailed as error:
            raise FileExistsError(self._key) from error
