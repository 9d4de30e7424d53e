"""botocore's descriptions of the API, without documentation."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import botocore

from tidemark.store.s3.clients import _Undocumented, session

_FILES = Path(botocore.__file__).parent / "data"
_load_file = _Undocumented.load_file
"""As it is before a fixture keeps what it has read."""


def test_only_the_documentation_is_left_out() -> None:
    """Packed files and plain ones: everything else that botocore knows of S3 is there."""
    lean = session().get_component("data_loader").file_loader
    assert isinstance(lean, _Undocumented)
    for name in ("s3/2006-03-01/service-2", "s3/2006-03-01/paginators-1", "endpoints"):
        assert _load_file(lean, str(_FILES / name)) == _without_documentation(_read(name))
    assert _load_file(lean, str(_FILES / "nothing")) is None


def _read(name: str) -> object:
    """The file as it is: botocore's own loader keeps what it has read, and its handlers change that."""
    plain = _FILES / f"{name}.json"
    return json.loads(plain.read_bytes() if plain.exists() else gzip.decompress(Path(f"{plain}.gz").read_bytes()))


def _without_documentation(value: object) -> object:
    if isinstance(value, dict):
        return {
            name: "" if name == "documentation" and isinstance(one, str) else _without_documentation(one)
            for name, one in value.items()
        }
    if isinstance(value, list):
        return [*map(_without_documentation, value)]
    return value
