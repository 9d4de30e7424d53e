"""The agent's command line inside the tests' own process: a process of its own takes a second to import all that it is.

For commands that end by themselves; what signals, kills or users do to an agent needs a process.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import structlog

from tests.support.tuned_agent import tuned
from tidemark.store.s3.clients import forget_clients
from uploader_agent import cli


def run_here(
    arguments: Sequence[str | Path],
    log: Path,
    env: Mapping[str, str] | None = None,
    program: Callable[[], None] | None = None,
    *,
    tuning: Mapping[str, Any] | None = None,
) -> int:
    """The exit code of ``tidemark-agent ARGUMENTS``, or of another ``program``; its output is appended to ``log``.

    The agent has this ``tuning``, see :func:`tests.support.tuned_agent.tuned`.
    ``env`` is added to the environment, and the stores are opened anew with it, as by a new process.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        log.open("a", encoding="utf-8") as output,
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(output),
        patch.object(sys, "argv", ["tidemark-agent", *map(str, arguments)]),
        patch.dict(os.environ, env or {}),
        _left_as_it_was(),
    ):
        try:
            (program or partial(cli.main, tuned(tuning or {})))()
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        return 0


@contextlib.contextmanager
def _left_as_it_was() -> Iterator[None]:
    """Undo what a command sets up for its whole process."""
    hooks, quiet = (sys.excepthook, threading.excepthook), ("kafka", "kazoo", "botocore", "boto3", "urllib3")
    levels = {name: logging.getLogger(name).level for name in quiet}
    handlers = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)}
    forget_clients()
    try:
        yield
    finally:
        forget_clients()
        for number, handler in handlers.items():
            if signal.getsignal(number) is not handler:  # which would keep the tests from being ended
                signal.signal(number, handler)
        sys.excepthook, threading.excepthook = hooks
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        structlog.reset_defaults()
        gc.unfreeze()
