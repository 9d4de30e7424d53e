"""The job that writes raw records as plain files."""

from __future__ import annotations

import json

from tidemark.errors import ConfigError, FormatError
from tidemark.jobs.registry import ExportOptions
from tidemark.openlineage.runs import of_export
from tidemark.store.schemes import check_options, split_store_url
from tidemark.table.delta_table import open_topic_table
from tidemark_spark.datasource import SegmentReader, TidemarkSource
from tidemark_spark.export import Export, export_part
from tidemark_spark.jobs.running import RunningJob, show


def work(options: ExportOptions, job: RunningJob) -> int:
    """Write the files, and show what was written; returns the exit code."""
    export = _asked(options, job)
    files = sorted(file for file in job.executor.on_each(export_part, export, export.reader.partitions()) if file)
    for file in files:
        show(f"{export.store}/{file.key}")
    total = {"files": len(files), "rows": sum(file.rows for file in files), "bytes": sum(file.size for file in files)}
    [topic] = job.topics()
    table = open_topic_table(job.deployment, topic)
    job.lineage.note(lambda: of_export(table, options.to, total["rows"], total["files"], total["bytes"]))
    show(json.dumps(total))
    return 0


def _asked(options: ExportOptions, job: RunningJob) -> Export:
    given = dict(option.partition("=")[::2] for option in options.option)
    given |= {"cluster": options.cluster} if options.cluster else {}
    source = TidemarkSource({**given, "topics": str(options.topics), "topic": options.topic})
    reader = source.reader(source.schema())
    if not isinstance(reader, SegmentReader):
        raise TypeError(f"{reader!r} does not read segments")
    try:
        store, prefix = split_store_url(options.to)
        check_options(store, job.deployment.store)
    except FormatError as error:
        raise ConfigError("--to", [("", str(error))]) from error
    return Export(store, prefix, job.deployment.store, options.topic, options.format, reader)
