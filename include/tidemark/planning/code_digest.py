"""Which code made a file: a digest of this package's own sources."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import tidemark


@cache
def code_digest() -> str:
    """16 hexadecimal digits of the SHA-256 over the package's Python files, by path."""
    root = Path(tidemark.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root).as_posix()}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
