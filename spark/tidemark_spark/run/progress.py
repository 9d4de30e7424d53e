"""The progress of a running rebuild or replay: an object in the store, and a line in the job's log."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Final

from tidemark.errors import StoreError
from tidemark.formats.table.plan import RunProgress
from tidemark.store import open_store
from tidemark.timestamps import utc_now
from tidemark_spark.model import Job

SECONDS: Final = 5.0
"""Seconds between two reports; a shorter run reports no progress. The log has a line only if it moved."""


@contextmanager
def watched(job: Job, total: int, finished: Callable[[], int], *, seconds: float = SECONDS) -> Iterator[None]:
    """Report how many of ``total`` tasks are ``finished`` while the block runs, for people who wait for it.

    The run does not depend on the reports: if the store refuses the object, the refusal is logged and the next report
    follows.
    """
    over = Event()
    reporter = Thread(target=_report, args=(job, total, finished, seconds, over), daemon=True)
    reporter.start()
    try:
        yield
    finally:
        over.set()
        reporter.join()


def _report(job: Job, total: int, finished: Callable[[], int], seconds: float, over: Event) -> None:
    store = open_store(job.lake_store, job.options)
    started = utc_now()
    key, told = job.keys.progress(job.attempt), 0
    while not over.wait(seconds):
        done = min(total, finished())
        progress = RunProgress(attempt=job.attempt, done=done, total=total, started_at=started, at=utc_now())
        try:
            store.put(key, progress.to_bytes())
        except StoreError as error:
            sys.stderr.write(f"progress: {error}\n")
        if done > told:
            sys.stderr.write(f"progress: {done} of {total} tasks, {100 * done // total} %\n")
            sys.stderr.flush()
        told = done
