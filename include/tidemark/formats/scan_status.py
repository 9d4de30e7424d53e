"""How the triggerer's scan of the watermark indexes fares, for those who do not see its log."""

from __future__ import annotations

from pydantic import AwareDatetime

from tidemark.formats.base import StoredObject


class ScanStatus(StoredObject):
    """``_tidemark/_scan/<cluster>.json``: the last scan, how long it took, what it listed and read.

    While it fails, ``failing_since`` says since when, ``error`` why, and ``failures`` how often in a row.
    """

    cluster: str
    at: AwareDatetime
    seconds: float = 0.0
    listed: int = 0
    read: int = 0
    failing_since: AwareDatetime | None = None
    error: str = ""
    failures: int = 0
