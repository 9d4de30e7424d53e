"""Work in a child process with limits of memory and of CPU time: what breaks them ends the child alone."""

from __future__ import annotations

import multiprocessing
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

Made = TypeVar("Made")


def bounded(work: Callable[[], Made], *, memory: int, seconds: int) -> Made:
    """What ``work`` answers in a forked child with ``memory`` more bytes of addresses and ``seconds`` of CPU.

    Raises:
        AssertionError: the child died, or did not answer.
    """
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_limited, args=(work, there, memory, seconds))
    child.start()
    there.close()
    try:
        found: Made = here.recv()
    except EOFError:
        child.join()
        raise AssertionError(
            f"the child ended with {child.exitcode}; below 0 it is a signal, -24 that of CPU"
        ) from None
    finally:
        child.join()
        here.close()
    if isinstance(found, BaseException):
        raise AssertionError(f"the child raised {found!r}") from found  # noqa: TRY004 - the work failed, no call
    return found


def _limited(work: Callable[[], Any], answer: Any, memory: int, seconds: int) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + memory,) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        answer.send(work())
    except Exception as error:  # noqa: BLE001 - the parent raises it
        answer.send(error)
