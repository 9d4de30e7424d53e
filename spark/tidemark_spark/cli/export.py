"""The command line of the export job."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from tidemark.errors import ConfigError, FormatError
from tidemark.openlineage.upkeep import of_export
from tidemark.store.schemes import check_options, split_store_url
from tidemark.topics import load_topics
from tidemark_spark.cli.common import add_topic, executor_of, job_parser, run_job, show, tables_of
from tidemark_spark.cluster.target import add_options
from tidemark_spark.datasource import SegmentReader, TidemarkSource
from tidemark_spark.export import EXTENSIONS, Export, export_part
from tidemark_spark.model import Executor
from tidemark_spark.openlineage.recorder import Recorder


def main(arguments: Sequence[str] | None = None, executor: Executor | None = None) -> int:
    """Run the job, on Spark unless ``executor`` does it; returns the exit code."""
    options = _parser().parse_args(arguments)
    return run_job("export", options, lambda lineage: _export(options, executor, lineage))


def _export(options: argparse.Namespace, executor: Executor | None, lineage: Recorder) -> int:
    executor = executor_of(options, executor, f"export {options.topic}")
    export = _asked(options)
    parts = export.reader.partitions()
    exported = executor.on_each(export_part, export, parts)
    files = sorted(file for file in exported if file)
    for file in files:
        show(f"{export.store}/{file.key}")
    total = {"files": len(files), "rows": sum(file.rows for file in files), "bytes": sum(file.size for file in files)}
    [table] = tables_of(options)
    lineage.note(lambda: of_export(table, options.to, total["rows"], total["files"], total["bytes"]))
    show(json.dumps(total))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = job_parser(
        "export.py", "Raw segments of one topic to plain files.", "--topic orders --to s3://exports/orders"
    )
    add_topic(parser)
    parser.add_argument(
        "--to", required=True, metavar="URL", help="where: s3://<bucket>[/<prefix>], or any other store"
    )
    parser.add_argument("--format", choices=sorted(EXTENSIONS), default="text")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="of Spark's format tidemark: fromOffset, toOffset, fromTime, toTime, partitions, isolation, …; repeatable",
    )
    add_options(parser)
    return parser


def _asked(options: argparse.Namespace) -> Export:
    given = dict(option.partition("=")[::2] for option in options.option)
    given |= {"cluster": options.cluster} if options.cluster else {}
    source = TidemarkSource({**given, "topics": str(options.topics), "topic": options.topic})
    reader = source.reader(source.schema())
    if not isinstance(reader, SegmentReader):
        raise TypeError(f"{reader!r} does not read segments")
    try:
        store, prefix = split_store_url(options.to)
        check_options(store, load_topics(options.topics).store)
    except FormatError as error:
        raise ConfigError("--to", [("", str(error))]) from error
    return Export(store, prefix, load_topics(options.topics).store, options.topic, options.format, reader)
