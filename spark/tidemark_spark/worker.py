"""Carries out one task in a Spark Python worker, with the code for the kind of its job."""

from __future__ import annotations

from tidemark.formats.table.plan import ConversionTask
from tidemark_spark.compaction.worker import compacted
from tidemark_spark.convert.conversion import converted
from tidemark_spark.convert.replay import replayed
from tidemark_spark.erasing.worker import erased
from tidemark_spark.model import Job, Outcome


def convert(job: Job, task: ConversionTask) -> Outcome:
    """Carry out ``task``, up to its end or to the first missing, damaged or replaced offset.

    Raises:
        ContinuityError: a batch has another number of records than its header states, or offsets do not ascend.
        StoreError: a store did not answer, or refused.
    """
    if job.kind == "replay":
        return replayed(job, task)
    if job.kind == "compact":
        return compacted(job, task)
    if job.kind == "erase":
        return erased(job, task)
    return converted(job, task)
