"""One task of a compaction: merges files of one folder and partition into one, sorted by offset; no row changes.

The written file is read back from the store and must equal the merged rows in each column; the driver then compares it
with the evidence of the merged files. A task is a function of its plan and of those files. Memory is bounded by a batch
of each file with rows around the same offset, and by the open row group: files are on disk.
"""

from __future__ import annotations

from tidemark.errors import ContinuityError, FormatError
from tidemark.formats.table.plan import TableFileTask
from tidemark.store import open_store
from tidemark_spark.convert.rewriting.merge import Input, merged
from tidemark_spark.convert.rewriting.rewritten_file import RewrittenFile, merged_schema
from tidemark_spark.model import Job, Outcome, Stop


def compacted(job: Job, task: TableFileTask) -> Outcome:
    """Merge the files of ``task``; the outcome's only row of evidence counts the rows read back.

    Its hash is None where a file lacks a hashed column. A failed merge is returned as the outcome's ``stop``, because
    Spark would repeat the task after an exception.

    Raises:
        StoreError: the store did not answer, or a file is gone.
    """
    store = open_store(job.lake_store, job.options)
    schema = merged_schema(job)
    inputs = [Input(store, part, schema) for part in task.ranges]
    output = RewrittenFile(job, task, store, schema)
    stop = None
    try:
        output.write(merged(inputs))
        output.check()
    except (ContinuityError, FormatError) as error:
        stop = Stop(task.from_offset, task.to_offset, "corrupt", str(error))
    hashed = all(file.hashed for file in inputs)
    return Outcome(
        incarnation=task.incarnation,
        partition=task.partition,
        from_offset=task.from_offset,
        next_offset=max(part.to_offset for part in task.ranges),
        files=() if stop else (output.file(),),
        evidence=() if stop else (output.evidence(hashed=hashed),),
        stop=stop,
        bytes_read=task.size + output.size,
    )
