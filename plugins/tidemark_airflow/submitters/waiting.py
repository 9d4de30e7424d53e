"""Waits in the triggerer for a job that runs on a platform, so that it takes no worker's slot.

One trigger serves all platforms, by :meth:`tidemark_airflow.submitters.base.RemoteSubmitter.status`. The providers'
own triggers would not: none waits for an application of YARN or for a SparkApplication, EMR's needs aiobotocore, and
they do not tell a failed job from one that the platform does not know.

A hook's calls block, so they run in threads of their own: a platform that does not answer must not hold up the scan of
the watermarks, which runs in the common threads.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Final, TypedDict, TypeVar

from airflow.triggers.base import BaseTrigger, TriggerEvent

from tidemark.timestamps import utc_now
from tidemark_airflow.submitters.base import JobState, RemoteSubmitter
from tidemark_airflow.submitters.choice import watcher

POLL_SECONDS: Final = 10.0
"""Pause before each look at a job. The first look also comes late enough for the scheduler (apache/airflow#72716)."""

_THREADS: Final = 8

Result = TypeVar("Result")


class JobEnded(TypedDict):
    """The trigger's event: the job's :class:`JobState`, the platform's words, and the job's page or an empty text."""

    state: str
    words: str
    page: str


class JobTrigger(BaseTrigger):
    """Fires once, when a job has ended; ends the job at ``until``, or when a person ends the waiting task.

    Airflow calls :meth:`on_kill` if somebody marks or clears the task, and not if the triggerer stops: then another
    triggerer waits for the job.

    :param submitter: name of the submitter's class, see :func:`tidemark_airflow.submitters.choice.watcher`
    :param conn_id: the connection that has started the job
    :param place: see :class:`RemoteSubmitter`
    :param job_id: the job's id on its platform
    :param until: the end of the task's ``execution_timeout``, in ISO 8601; None if it has none
    """

    def __init__(self, *, submitter: str, conn_id: str, place: str, job_id: str, until: str | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # Airflow leaves it untyped
        self.submitter, self.conn_id, self.place = submitter, conn_id, place
        self.job_id, self.until = job_id, until

    @classmethod
    def of(cls, submitter: RemoteSubmitter, job_id: str, limit: timedelta | None) -> JobTrigger:
        """The trigger for the job with this id; ``limit`` is how long it may run from now on."""
        until = (utc_now() + limit).isoformat() if limit is not None else None
        name, place = type(submitter).__name__, submitter.place
        return cls(submitter=name, conn_id=submitter.conn_id, place=place, job_id=job_id, until=until)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path and arguments, all of JSON's types."""
        names = ("submitter", "conn_id", "place", "job_id", "until")
        return f"{type(self).__module__}.{type(self).__qualname__}", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """The job's end, a :class:`JobEnded`."""
        platform = await _in_thread(self._platform)
        until = datetime.fromisoformat(self.until) if self.until is not None else None
        why = ""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            now = await _in_thread(lambda: platform.status(self.job_id))
            if now.state is not JobState.RUNS:
                ended = JobEnded(state=now.state.value, words=f"{why}{now.words}", page=platform.page)
                yield TriggerEvent(ended)  # type: ignore[no-untyped-call] # likewise
                return
            if not why and until is not None and utc_now() >= until:
                why = f"ended at {self.until}, the task's execution_timeout: "
                # It counts as running until it is gone, so that no retry runs beside it.
                await _in_thread(lambda: platform.cancel(self.job_id))

    async def on_kill(self) -> None:
        """End the job of a task that a person has ended."""
        platform = await _in_thread(self._platform)
        await _in_thread(lambda: platform.cancel(self.job_id))

    def _platform(self) -> RemoteSubmitter:
        return watcher(self.submitter, self.conn_id, self.place)


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="tidemark-job")


async def _in_thread(work: Callable[[], Result]) -> Result:
    """The result of ``work``, with this trigger's log."""
    context = contextvars.copy_context()
    return await asyncio.get_running_loop().run_in_executor(_threads(), lambda: context.run(work))
