"""The conversion tasks of several jobs as one query. Small tasks share a Spark task, whose own cost is higher.

Workers import this module, and nothing of a landing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from tidemark.errors import SparkUnavailable
from tidemark.formats.table.plan import StoredTask
from tidemark_spark.cluster.executor import bounded
from tidemark_spark.kinds.ingest import Ingest
from tidemark_spark.model import Executor, Job, Outcome

MOST_TASKS: Final = 16
MOST_BYTES: Final = 16 << 20
"""Limits of a Spark task: conversion tasks, and their bytes together. A single larger one gets its own."""


class JobShare(NamedTuple):
    """A job, and its tasks to convert."""

    job: Job
    tasks: tuple[StoredTask, ...]


class Numbered(NamedTuple):
    """A conversion task, and the number of its job."""

    job: int
    task: StoredTask


def convert_all(executor: Executor, works: Sequence[JobShare]) -> list[list[Outcome] | Exception]:
    """For each of ``works`` in order, its outcomes or the error of its conversion.

    A query fails as a whole. Each of ``works`` then gets a query of its own, so that only the causes fail.

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
    return [result for work in works for result in convert_all(executor, [work])]


def _converted(executor: Executor, works: Sequence[JobShare]) -> list[list[Outcome]]:
    jobs = tuple(work.job for work in works)
    tasks = [Numbered(number, task) for number, work in enumerate(works) for task in work.tasks]
    outcomes: list[list[Outcome]] = [[] for _ in works]
    if tasks:
        for made in executor.on_each(convert_bundle, jobs, list(bundles(tasks))):
            for number, outcome in made:
                outcomes[number].append(outcome)
    return outcomes


def bundles(tasks: Sequence[Numbered]) -> Iterator[tuple[Numbered, ...]]:
    """``tasks`` in order, bundled up to the limits of a Spark task."""
    bundle: list[Numbered] = []
    size = 0
    for numbered in tasks:
        if bundle and (len(bundle) == MOST_TASKS or size + numbered.task.size > MOST_BYTES):
            yield tuple(bundle)
            bundle, size = [], 0
        bundle.append(numbered)
        size += numbered.task.size
    if bundle:
        yield tuple(bundle)


def convert_bundle(jobs: Sequence[Job], bundle: Sequence[Numbered]) -> list[tuple[int, Outcome]]:
    """Convert each task in a worker, within the limits of its own job; returns the outcomes with the jobs' numbers."""
    made: list[tuple[int, Outcome]] = []
    for number, task in bundle:
        with bounded(jobs[number]):
            made.append((number, Ingest.work(jobs[number], task)))
    return made
