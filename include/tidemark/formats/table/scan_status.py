"""The state of the triggerer's scan of the watermark indexes, for readers without its log."""

from __future__ import annotations

from pydantic import AwareDatetime

from tidemark.formats.base import StoredObject


class ScanStatus(StoredObject):
    """``_tidemark/_scan/<cluster>.json``: the last scan, its duration, and the numbers of objects listed and read.

    While scans fail, ``failing_since`` is their start, ``error`` the reason, and ``failures`` their number in a row.
    ``version`` is the triggerer's.
    """

    cluster: str
    at: AwareDatetime
    seconds: float = 0.0
    listed: int = 0
    read: int = 0
    failing_since: AwareDatetime | None = None
    error: str = ""
    failures: int = 0
    version: str = ""
