"""The commands that only read: ``plan``, ``leaders`` and ``verify``; and the rows that ``status`` prints."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Annotated, NamedTuple

import typer

from tidemark.errors import TidemarkError
from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.gaps import REMOTE_TIER, Gap
from tidemark.raw.heads import LiveEnd
from tidemark.terminal import Output, Progress, columns
from uploader_agent.cli.common import DEFAULT_CONFIG, CommandAnswer, ConfigOption, OutputOption, TopicOption, surveyed
from uploader_agent.disk.segment_files import PartitionFiles, SegmentChanged, file_name
from uploader_agent.partitions.led_partition import LedPartition
from uploader_agent.settings import load_settings
from uploader_agent.upload.local_run import SealRun
from uploader_agent.verify import VerifyFinding, compare_packs, verify

_MOST_PUTS = 4
"""``.log``, ``.index``, ``.timeindex`` and the manifest; a ``.txnindex`` only where a transaction was aborted."""


def plan(config: ConfigOption = DEFAULT_CONFIG, topic: TopicOption = None, output: OutputOption = "text") -> None:
    """Show the uploads, bytes and requests that upload-once, without --tails, would make now; uploads nothing."""
    settings = load_settings(config)
    answer = CommandAnswer(output)
    with surveyed(settings, topic) as components:
        quiet_before = time.time() - settings.tail_after.total_seconds()
        lines = list(plan_of(components.leadership.partitions.values(), quiet_before))
        total = total_of(lines)
        for line in (*lines, total):
            answer.add(line)
        answer.close(["PARTITION", "SEGMENTS", "OF THEM TAILS", "BYTES", "PUT", "ERROR"])
        if total.error or not components.leadership.has_answer:
            raise typer.Exit(1)


def leaders(config: ConfigOption = DEFAULT_CONFIG, topic: TopicOption = None, output: OutputOption = "text") -> None:
    """Show the partitions that this broker leads according to its metadata, if the agent's file includes them."""
    settings = load_settings(config)
    answer = CommandAnswer(output)
    with surveyed(settings, topic) as components:
        for line in leader_lines(components.leadership.partitions.values()):
            answer.add(line)
        answer.close(["PARTITION", "EPOCH", "TOPIC ID", "HIGH WM", "DIRECTORY"])
        if not components.leadership.has_answer:
            raise typer.Exit(1)


def verify_command(
    config: ConfigOption = DEFAULT_CONFIG,
    topic: TopicOption = None,
    deep: Annotated[bool, typer.Option("--deep", help="Read all bytes, in the store and on the disk.")] = False,
    output: OutputOption = "text",
) -> None:
    """Compare the store with itself, with offset.wm and with this broker's disk, for the partitions that it leads.

    Prints OK, CLAIMED, PACKED, LAGGING, COMPACTED, OVERLAP, TRUNCATED, TIERED, PARTED, GAP, LACKING or CORRUPT for each
    partition: the worst of its findings. Exits with 1 if a gap is open or an object is wrong, or if something could not
    be checked. Without --deep, objects are checked by size, version and the checksum that the store keeps, and packs by
    their heads and footers. With it, all packs that still exist are compared with the segments that have replaced them.
    """
    settings = load_settings(config)
    progress, failed, live_end = Progress(), False, LiveEnd()
    with surveyed(settings, topic) as components, ThreadPoolExecutor(settings.upload.concurrency) as pool:
        failed = not components.leadership.has_answer
        partitions, lacking = components.leadership.partitions, dict[TopicPartition, list[VerifyFinding]]()
        if deep:
            lacking, wrong = _compare(partitions.values(), components.broker.node_id, pool, progress, output)
            failed |= wrong
        for tp, partition in sorted(partitions.items()):
            if not partition.remote.log.surveyed:
                failed |= partition.error is not None
                if partition.error:
                    _report_failure(str(tp), partition.error, output)
                continue
            try:
                report, done = partial(_report, str(tp), output), partial(_show_progress, progress, f"{tp}: segments")
                verdict = verify(partition, pool, report, done, live_end, lacking.get(tp, ()), deep=deep)
            except (TidemarkError, OSError) as error:  # of this partition's objects or files alone
                failed = True
                _report_failure(str(tp), f"{type(error).__name__}: {error}", output)
                continue
            failed |= verdict.wrong > 0
            if output == "json":
                typer.echo(json.dumps(verdict._asdict()))
            else:
                typer.echo(f"{verdict.word:9}  {tp}: {verdict.in_words()}")
    if failed:
        raise typer.Exit(1)


class StatusRow(NamedTuple):
    """The state of a partition, for people and for programs.

    ``pending`` counts rotated segments that are not in the store. Offsets are next offsets; ``uploaded_end`` is the end
    of segments and packs. ``remote_tier`` are the offsets below the partition's first one in the store that only
    Kafka's own remote tier has.
    """

    partition: str
    leader_epoch: int
    next_offset: int | None
    uploaded_end: int
    high_watermark: int | None
    pending: int
    pending_bytes: int
    gaps: tuple[Gap, ...]
    error: str | None
    remote_tier: tuple[tuple[int, int], ...] = ()

    def to_json(self) -> dict[str, object]:
        """The row as plain values, for ``json.dumps``."""
        gaps = [
            {"start": gap.start, "end": gap.end, "reason": gap.reason, "detected_at": gap.detected_at.isoformat()}
            for gap in self.gaps
        ]
        return {**self._asdict(), "gaps": gaps}


def status_rows(partitions: Iterable[LedPartition]) -> list[StatusRow]:
    """A row for each partition, sorted by name."""
    return [_status_row(partition) for partition in sorted(partitions, key=lambda partition: partition.tp)]


def status_table(lines: Iterable[StatusRow]) -> str:
    """Columns for a terminal, and a line for each gap below them."""
    lines = list(lines)
    heads = ["PARTITION", "EPOCH", "NEXT", "UPLOADED", "HIGH WM", "PENDING", "BYTES", "GAPS", "ERROR"]
    rows = [(*line[:7], len(line.gaps) or None, line.error) for line in lines]
    shown = [columns([heads, *rows])]
    for line in lines:
        shown += [
            f"{line.partition}: {start} to {end}: {REMOTE_TIER}, below its first offset in the store"
            for start, end in line.remote_tier
        ]
        shown += [
            f"{line.partition}: gap {gap.start} to {gap.end}: {gap.reason}, since {gap.detected_at.isoformat()}"
            for gap in line.gaps
        ]
    return "\n".join(shown)


def _status_row(partition: LedPartition) -> StatusRow:
    stored, pending = partition.remote.log, partition.pending()
    return StatusRow(
        partition=str(partition.tp),
        leader_epoch=partition.led.leader_epoch,
        next_offset=stored.watermark.next_offset if stored.watermark else None,
        uploaded_end=partition.stored_end,
        high_watermark=partition.offsets.high_watermark if partition.offsets else None,
        pending=len(pending),
        pending_bytes=sum(segment.size for segment in pending),
        gaps=stored.gaps,
        remote_tier=stored.remote_tier,
        error=partition.error,
    )


class LedLine(NamedTuple):
    """A partition that the broker leads, and its directory."""

    partition: str
    leader_epoch: int
    topic_id: str | None
    high_watermark: int | None
    directory: str


def leader_lines(partitions: Iterable[LedPartition]) -> list[LedLine]:
    """A line for each partition that the broker leads, sorted by name."""
    return [
        LedLine(
            str(partition.tp),
            partition.led.leader_epoch,
            partition.led.topic_id,
            partition.offsets.high_watermark if partition.offsets else None,
            str(partition.folder),
        )
        for partition in sorted(partitions, key=lambda partition: partition.tp)
    ]


class PlanLine(NamedTuple):
    """The segments, bytes and requests that ``upload-once`` would upload now, for a partition or for all of them.

    ``puts`` are the most requests of a run without failures.
    """

    partition: str
    segments: int
    tails: int
    bytes: int
    puts: int
    error: str | None


def plan_of(partitions: Iterable[LedPartition], quiet_before: float) -> Iterator[PlanLine]:
    """A line for each partition that has something to upload or an error, sorted by name.

    The partitions must have been surveyed. ``quiet_before`` is as in :meth:`LedPartition.plan`.
    """
    for partition in sorted(partitions, key=lambda partition: partition.tp):
        works = [*partition.work(quiet_before)] if partition.remote.log.surveyed else []
        if works or partition.error:
            yield _plan_line(partition, works)


def total_of(lines: Iterable[PlanLine]) -> PlanLine:
    """A line with the sums of ``lines``."""
    lines = list(lines)
    failed = sum(line.error is not None for line in lines)
    return PlanLine(
        "total",
        sum(line.segments for line in lines),
        sum(line.tails for line in lines),
        sum(line.bytes for line in lines),
        sum(line.puts for line in lines),
        f"{failed} partitions failed" if failed else None,
    )


def _plan_line(partition: LedPartition, works: list[SealRun]) -> PlanLine:
    size = puts = 0
    error = partition.error
    try:
        with PartitionFiles(partition.folder, partition.led.topic_id) as files:
            for work in works:
                size += _most_bytes(files, work)
                puts += _MOST_PUTS
    except (SegmentChanged, OSError) as changed:
        error = str(changed)
    tails = sum(work.is_tail for work in works)
    written = len(works) + (not partition.uploader.claimed)  # offset.wm, at most once for each run, and first of all
    return PlanLine(str(partition.tp), len(works), tails, size, puts + written, error)


def _most_bytes(files: PartitionFiles, work: SealRun) -> int:
    """The most bytes that the run can have: a run that begins within its local segment is shorter than that."""
    log = files.open(file_name(work.segment, "log"))
    return log.size if log else 0


def _compare(
    partitions: Iterable[LedPartition], broker: int, pool: ThreadPoolExecutor, progress: Progress, output: Output
) -> tuple[dict[TopicPartition, list[VerifyFinding]], bool]:
    """(records of packs that segments lack, by partition; whether a pack is damaged or the store failed)."""
    damaged: list[VerifyFinding] = []
    known = [partition for partition in partitions if partition.remote.log.surveyed]
    try:
        done = partial(_show_progress, progress, "packs")
        findings = compare_packs(known, broker, pool, damaged.append, done)
    except TidemarkError as error:
        _report_failure("packs", f"{type(error).__name__}: {error}", output)
        return {}, True
    for finding in damaged:
        _report("packs", output, finding)
    return findings, bool(damaged)


def _show_progress(progress: Progress, subject: str, done: int) -> None:
    progress.say(f"verify: {subject}: {done}")


def _report(partition: str, output: Output, finding: VerifyFinding) -> None:
    if output == "json":
        typer.echo(json.dumps({"partition": partition, **finding._asdict()}))
        return
    subject = f"{finding.object}: " if finding.object else ""
    mark = "  !" if finding.wrong else ""
    typer.echo(f"  {finding.word:9}{partition} {finding.offset} to {finding.end}: {subject}{finding.detail}{mark}")


def _report_failure(partition: str, error: str, output: Output) -> None:
    if output == "json":
        typer.echo(json.dumps({"partition": partition, "error": error}))
    else:
        typer.echo(f"FAILED     {partition}: {error}")
