"""AWS's descriptions of its API, without their documentation, for botocore to send requests with.

botocore keeps the description of a service for as long as a client lives. Half of it is documentation.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from botocore.loaders import JSONFileLoader
from botocore.session import Session
from typing_extensions import override

_UNPACKED_BY: Final[dict[str, Callable[[bytes], bytes]]] = {".json": bytes, ".json.gz": gzip.decompress}


class _Undocumented(JSONFileLoader):
    """Leaves the documentation out while it parses: dropping it afterwards would leave holes in the heap."""

    @override
    def load_file(self, file_path: str) -> Any:
        for extension, unpacked in _UNPACKED_BY.items():
            path = Path(f"{file_path}{extension}")
            if path.is_file():
                return json.loads(unpacked(path.read_bytes()), object_pairs_hook=_without_documentation)
        return None


def session() -> Session:
    """A session of botocore: not a global one, which would keep the first credentials that it ever found."""
    made = Session()
    made.get_component("data_loader").file_loader = _Undocumented()
    return made


def _without_documentation(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of the file without documentation; its name stays, as botocore looks for some."""
    return {sys.intern(name): "" if _is_documentation(name, value) else value for name, value in pairs}


def _is_documentation(name: str, value: object) -> bool:
    return name == "documentation" and isinstance(value, str)
