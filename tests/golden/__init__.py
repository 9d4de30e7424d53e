"""Objects of each released version, and what they mean: every later version must read them so."""

from __future__ import annotations

from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent

NEXT: Final = "1.0"
"""The version that is released next: its corpus may still be made again."""

RELEASED: Final = sorted(path.name for path in HERE.glob("[0-9]*"))
"""The versions with a folder here."""
