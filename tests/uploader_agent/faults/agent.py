"""The agent's command line with faults at its seams: the store, the files, the watcher, the clock.

``python -m tests.uploader_agent.faults.agent <plan as JSON> <tuning> -- <arguments>``; the plan's keys are
:class:`Plan`'s. Nothing in the product knows of this.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import botocore.auth

from tests.uploader_agent import faulty_agent
from uploader_agent.cli import common
from uploader_agent.disk import watcher


@dataclass(frozen=True)
class Plan:
    """One fault: the signal ``number`` goes to the agent itself ``before`` or ``after`` the ``n``-th ``operation``.

    ``operation`` is ``put`` of a key, or a system call on a file: ``open``, ``link``, ``rename``; ``suffix`` is what
    the key or path ends in. ``deaf`` takes inotify away. ``clock`` is a file that holds the seconds by which the clock
    is wrong, read at every look at it.
    """

    notes: str
    operation: str = "put"
    number: str = "SIGKILL"
    when: str = "never"
    suffix: str = ""
    n: int = 0
    deaf: bool = False
    clock: str = ""

    def argument(self) -> str:
        """For the command line."""
        return json.dumps(asdict(self))


class _Counted:
    """A system call on files that signals the process at the chosen one."""

    def __init__(self, call: Callable[..., Any], plan: Plan) -> None:
        self._call = call
        self._plan = plan
        self._seen = 0
        self._lock = threading.Lock()

    def __call__(self, path: Any, *args: Any, **options: Any) -> Any:
        chosen = isinstance(path, str | os.PathLike) and os.fspath(path).endswith(self._plan.suffix)
        if chosen:
            with self._lock:
                self._seen += 1
                chosen = self._seen == self._plan.n
        if chosen and self._plan.when == "before":
            os.kill(os.getpid(), signal.Signals[self._plan.number])
        result = self._call(path, *args, **options)
        if chosen and self._plan.when == "after":
            os.kill(os.getpid(), signal.Signals[self._plan.number])
        return result


class _Clock:
    """The wrong time, wherever the agent or the store's client asks for it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._time = time.time
        self._signing = getattr(botocore.auth, "get_current_datetime")  # noqa: B009 - the stubs do not have it

    def shift(self) -> float:
        return float(self._file.read_text() or 0) if self._file.exists() else 0.0

    def time(self) -> float:
        return self._time() + self.shift()

    def signing(self, *args: Any, **options: Any) -> datetime:
        now: datetime = self._signing(*args, **options)
        return now + timedelta(seconds=self.shift())


def apply(plan: Plan) -> None:
    """Set up what is not the store's."""
    if plan.operation != "put":
        setattr(os, plan.operation, _Counted(getattr(os, plan.operation), plan))
    if plan.deaf:
        setattr(common, "DirectoryWatcher", watcher.Watcher)  # noqa: B010 - a name that the module only imports
    if plan.clock:
        clock = _Clock(Path(plan.clock))
        time.time = clock.time
        setattr(botocore.auth, "get_current_datetime", clock.signing)  # noqa: B010 - the stubs do not have it


def main() -> None:
    plan = Plan(**json.loads(sys.argv[1]))
    apply(plan)
    at_put = plan.operation == "put"
    chosen = [plan.number, plan.when, plan.suffix, str(plan.n)] if at_put else ["SIGKILL", "never", "", "0"]
    _, _, tuning, *arguments = sys.argv
    sys.argv = ["faulty_agent", tuning, plan.notes, *chosen, *arguments]
    faulty_agent.main()


if __name__ == "__main__":
    main()
