"""The digest of the code that makes files: of the sources that turn raw segments into rows and files, and no others."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from tidemark.errors import ConfigError

SOURCES: Final = (
    "tidemark/decode",
    "tidemark/formats/table/base_columns.py",
    "tidemark/formats/raw/hashsum.py",
    "tidemark/kafka_log",
    "tidemark/parsers",
    "tidemark_spark/compaction",
    "tidemark_spark/convert",
    "tidemark_spark/erasing/worker.py",
    "tidemark_spark/worker.py",
)
"""Packages and modules whose change may change a row, its class, its date, or the bytes of a file.

Their installed files are read without an import: plans are also made where Spark's libraries are not installed.
"""


@cache
def code_digest() -> str:
    """16 hexadecimal digits of the SHA-256 over :data:`SOURCES`, by path. Raises ConfigError if one is missing."""
    digest = hashlib.sha256()
    for name, path in sorted(_files()):
        digest.update(f"{name}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _files() -> Iterator[tuple[str, Path]]:
    """The Python files of :data:`SOURCES`, each with its name below the installation."""
    for source in SOURCES:
        root = _root(source.partition("/")[0])
        place = root / source
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            yield path.relative_to(root).as_posix(), path


def _root(package: str) -> Path:
    """The directory that has ``package``."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise ConfigError("this installation", [(package, "is missing: install Tidemark's wheel whole")])
    return Path(spec.origin).parent.parent
