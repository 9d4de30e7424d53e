"""Objects of each released version, and what they mean: every later version must read them so."""

from __future__ import annotations

from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent

RELEASED: Final = sorted(path.name for path in HERE.glob("[0-9]*"))
"""The versions with a folder here."""
