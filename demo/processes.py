"""What a demo has started: recorded, so that ``make down`` stops it, and found again by its folder where it was not."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import psutil

from demo.steps import Steps
from tests.support.paths import STATE
from tests.support.process import ProcessRecord

HOME = STATE / "demo"
_RECORDS = "processes.json"


class StillRunning(RuntimeError):
    """Something runs in the demo's folder."""


def record(records: Iterable[ProcessRecord]) -> None:
    """Write down what runs, in the order in which it is to be stopped."""
    written = HOME / f"{_RECORDS}.new"
    written.write_text(json.dumps([asdict(one) for one in records]))
    written.replace(HOME / _RECORDS)


def recorded() -> list[ProcessRecord]:
    """The processes that a kept demo started, in the order in which they are to be stopped."""
    if not (HOME / _RECORDS).exists():
        return []
    return [ProcessRecord(**item) for item in json.loads((HOME / _RECORDS).read_text())]


def forget() -> None:
    """Nothing is recorded any more."""
    (HOME / _RECORDS).unlink(missing_ok=True)


def check_ended() -> None:
    """Raise :class:`StillRunning` if a recorded process runs, or any that works in the folder or was started with it.

    Kafka keeps files open that it was to lose: the folder must not be removed below a process.
    """
    if any(one.find() for one in recorded()):
        raise StillRunning("an earlier demo is still running: `make down` stops it")
    if left := living_in(HOME):
        listed = "\n".join(f"  {one.pid}: {' '.join(one.info['cmdline'] or ())[:150]}" for one in left)
        raise StillRunning(f"{HOME} is in use, and must not be removed yet; end these processes:\n{listed}")


def living_in(folder: Path) -> list[psutil.Process]:
    """The processes whose working directory is ``folder`` or below, or that a path there was given to, but ours."""
    ours = {os.getpid(), *(one.pid for one in psutil.Process().parents())}
    found = psutil.process_iter(["cmdline", "cwd", "status"])
    return [one for one in found if one.pid not in ours and _uses(one, folder)]


def _uses(process: psutil.Process, folder: Path) -> bool:
    """What another user's process says of itself may be hidden, and then it is not the demo's."""
    if process.info["status"] == psutil.STATUS_ZOMBIE:
        return False
    within = Path(process.info["cwd"] or os.sep).is_relative_to(folder)
    return within or any(f"{folder}{os.sep}" in f"{one}{os.sep}" for one in process.info["cmdline"] or ())


def down(steps: Steps, timeout: float = 30.0) -> None:
    """Stop what a kept demo started, and nothing else: SIGKILL after ``timeout`` for what does not end by itself.

    Raises:
        StillRunning: something else runs in the folder.
    """
    for one in recorded():
        was = "stopped" if one.stop(timeout) else "had ended already:"
        steps.say(f"{was} {one.name} (pid {one.pid})")
    forget()
    check_ended()
