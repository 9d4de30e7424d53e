"""``tidemark restore`` that kills itself at a chosen point: ``python -m tests.consumer.killed_restore POINT NTH …``.

Steps are small, so that a short history has many of them, and a target settles at once: what was sent has arrived.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from kafka import KafkaProducer

from tidemark import cli
from tidemark.restore import run
from tidemark.restore.run import Sender
from tidemark.restore.target import Target

STEP_RECORDS, STABLE_SECONDS = 40, 0.3
POINTS: dict[str, tuple[type[Any], str, bool]] = {
    "begun": (Target, "save", True),  # the first progress, and without transactions each
    "sending": (KafkaProducer, "send", True),  # some of the records are on their way
    "sent": (Sender, "flush", False),
    "acknowledged": (Sender, "flush", True),
    "committing": (Sender, "commit", False),
    "offsets in the transaction": (KafkaProducer, "send_offsets_to_transaction", True),
    "committed": (Sender, "commit", True),
}
"""A method of a class, and whether it is killed after it or before."""


def _fatal(method: Callable[..., Any], nth: int, *, after: bool) -> Callable[..., Any]:
    calls = 0

    def called(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == nth and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        answer = method(*args, **options)
        if calls == nth:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    return called


def main(point: str, nth: int, *arguments: str) -> None:
    """Run the command with small steps."""
    run.STEP_RECORDS = STEP_RECORDS  # type: ignore[misc]  # the tests' own size of steps
    run.STABLE_SECONDS = STABLE_SECONDS  # type: ignore[misc]  # likewise
    kind, name, after = POINTS[point]
    setattr(kind, name, _fatal(getattr(kind, name), nth, after=after))
    sys.argv = ["tidemark", "restore", *arguments]
    cli.main()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
