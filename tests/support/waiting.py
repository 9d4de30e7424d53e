"""The one place that polls: servers say by answering, not by an event, that they are ready."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(
    probe: Callable[[], bool],
    *,
    timeout: float,
    what: str,
    interval: float = 0.1,
    check: Callable[[], None] | None = None,
) -> float:
    """Call ``probe`` until it is true and return the seconds that took.

    ``check`` runs before every probe and raises if waiting has become pointless. TimeoutError names ``what``.
    """
    start = time.monotonic()
    while True:
        if check is not None:
            check()
        if probe():
            return time.monotonic() - start
        if time.monotonic() - start > timeout:
            raise TimeoutError(f"{what}: not within {timeout:g} s")
        time.sleep(interval)
