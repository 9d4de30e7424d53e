"""The conversion tasks of several jobs as one query. Small tasks share a Spark task, which costs more than they do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from tidemark.errors import SparkUnavailable
from tidemark.formats.plan import ConversionTask
from tidemark_spark.cluster.executor import Executor, bounded
from tidemark_spark.model import Job, Outcome
from tidemark_spark.worker import convert

MOST_TASKS: Final = 16
MOST_BYTES: Final = 16 << 20
"""A Spark task takes so many conversion tasks, of so many bytes together, or one that is larger."""


class Work(NamedTuple):
    """A job, and what is to be converted of it."""

    job: Job
    tasks: tuple[ConversionTask, ...]


class Numbered(NamedTuple):
    """A conversion task of the job with that number."""

    job: int
    task: ConversionTask


class Made(NamedTuple):
    """What a conversion task of the job with that number did."""

    job: int
    outcome: Outcome


def convert_all(executor: Executor, works: Sequence[Work]) -> list[list[Outcome] | Exception]:
    """The outcomes of each, in order; or what its conversion failed with.

    A query fails as a whole. Then each of ``works`` gets a query of its own, and only those fail that are the cause.

    Raises:
        SparkUnavailable: there is no Spark.
    """
    try:
        return list(_converted(executor, works))
    except SparkUnavailable:
        raise
    except Exception as error:  # noqa: BLE001 - anything that a topic's parser may raise, and Spark wraps
        if len(works) == 1:
            return [error]
    return [found for work in works for found in convert_all(executor, [work])]


def _converted(executor: Executor, works: Sequence[Work]) -> list[list[Outcome]]:
    jobs = tuple(work.job for work in works)
    tasks = [Numbered(number, task) for number, work in enumerate(works) for task in work.tasks]
    outcomes: list[list[Outcome]] = [[] for _ in works]
    if tasks:
        for made in executor.on_each(convert_bundle, jobs, list(bundles(tasks))):
            for number, outcome in made:
                outcomes[number].append(outcome)
    return outcomes


def bundles(tasks: Sequence[Numbered]) -> Iterator[tuple[Numbered, ...]]:
    """``tasks`` in order, as many together as a Spark task takes."""
    bundle: list[Numbered] = []
    size = 0
    for one in tasks:
        if bundle and (len(bundle) == MOST_TASKS or size + one.task.size > MOST_BYTES):
            yield tuple(bundle)
            bundle, size = [], 0
        bundle.append(one)
        size += one.task.size
    if bundle:
        yield tuple(bundle)


def convert_bundle(jobs: Sequence[Job], bundle: Sequence[Numbered]) -> list[Made]:
    """In a worker: each task within the limits of its own job."""
    made: list[Made] = []
    for number, task in bundle:
        with bounded(jobs[number]):
            made.append(Made(number, convert(jobs[number], task)))
    return made
