"""The command line of the export job."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tidemark.errors import ConfigError, FormatError, TidemarkError
from tidemark.store.url import split_store_url
from tidemark.topics import load_topics
from tidemark_spark.cluster.target import ClusterTarget, add_options
from tidemark_spark.datasource import SegmentPartition, SegmentReader, TidemarkSource
from tidemark_spark.export import EXTENSIONS, Execute, Export, Exported, export_part


def main(arguments: Sequence[str] | None = None, execute: Execute | None = None) -> int:
    """Run the job, on Spark unless ``execute`` does it; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        export = _export(options)
        parts = export.reader.partitions()
        found = (execute or _on_spark(ClusterTarget.of(options)))(export, parts) if parts else []
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except TidemarkError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1
    files = sorted(one for one in found if one)
    for one in files:
        sys.stdout.write(f"{export.store}/{one.key}\n")
    total = {"files": len(files), "rows": sum(one.rows for one in files), "bytes": sum(one.size for one in files)}
    sys.stdout.write(f"{json.dumps(total)}\n")
    sys.stdout.flush()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="export.py", description="Raw segments of one topic to plain files.")
    parser.add_argument("--topics", required=True, metavar="FILE", help="the topics file")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--to", required=True, metavar="URL", help="s3://<bucket>[/<prefix>] or file:///<directory>")
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


def _export(options: argparse.Namespace) -> Export:
    given = dict(one.partition("=")[::2] for one in options.option)
    source = TidemarkSource({**given, "topics": options.topics, "topic": options.topic})
    reader = source.reader(source.schema())
    if not isinstance(reader, SegmentReader):
        raise TypeError(f"{reader!r} does not read segments")
    try:
        store, prefix = split_store_url(options.to)
    except FormatError as error:
        raise ConfigError("--to", [("", str(error))]) from error
    return Export(store, prefix, load_topics(Path(options.topics)).store, options.topic, options.format, reader)


def _on_spark(where: ClusterTarget) -> Execute:
    def execute(export: Export, parts: Sequence[SegmentPartition]) -> list[Exported | None]:
        from tidemark_spark.cluster.session import spark

        return spark(f"tidemark export {export.topic}", where).on_each(export_part, export, parts)

    return execute
