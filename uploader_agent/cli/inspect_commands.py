"""The commands that only read, apart from ``status``: ``plan``, ``leaders``, ``verify``."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Annotated, NamedTuple

import typer

from tidemark.errors import TidemarkError
from tidemark.formats.keys import TopicPartition
from tidemark.raw.heads import Heads
from tidemark.terminal import Output, Progress
from uploader_agent.cli import status_table, upload_plan
from uploader_agent.cli.common import DEFAULT_CONFIG, CommandAnswer, ConfigOption, OutputOption, TopicOption, surveyed
from uploader_agent.partitions.led_partition import LedPartition
from uploader_agent.settings import load_settings
from uploader_agent.verify import VerifyFinding, compare_packs, verify


def plan(config: ConfigOption = DEFAULT_CONFIG, topic: TopicOption = None, output: OutputOption = Output.text) -> None:
    """Show the uploads, bytes and requests that upload-once, without --tails, would make now; uploads nothing."""
    settings = load_settings(config)
    answer = CommandAnswer(output)
    with surveyed(settings, topic) as components:
        quiet_before = time.time() - settings.tail_after.total_seconds()
        lines = list(upload_plan.plan_of(components.leadership.partitions.values(), quiet_before))
        total = upload_plan.total_of(lines)
        for line in (*lines, total):
            answer.add(line)
        answer.close(["PARTITION", "SEGMENTS", "OF THEM TAILS", "BYTES", "PUT", "ERROR"])
        if total.error or not components.leadership.seen:
            raise typer.Exit(1)


def leaders(
    config: ConfigOption = DEFAULT_CONFIG, topic: TopicOption = None, output: OutputOption = Output.text
) -> None:
    """Show the partitions that this broker leads according to its metadata, if the agent's file includes them."""
    settings = load_settings(config)
    answer = CommandAnswer(output)
    with surveyed(settings, topic) as components:
        for line in status_table.led(components.leadership.partitions.values()):
            answer.add(line)
        answer.close(["PARTITION", "EPOCH", "TOPIC ID", "HIGH WM", "DIRECTORY"])
        if not components.leadership.seen:
            raise typer.Exit(1)


def verify_command(
    config: ConfigOption = DEFAULT_CONFIG,
    topic: TopicOption = None,
    deep: Annotated[bool, typer.Option("--deep", help="Read all bytes, in the store and on the disk.")] = False,
    output: OutputOption = Output.text,
) -> None:
    """Compare the store with itself, with offset.wm and with this broker's disk, for the partitions that it leads.

    Prints OK, CLAIMED, PACKED, LAGGING, COMPACTED, OVERLAP, TRUNCATED, TIERED, PARTED, GAP, LACKING or CORRUPT for each
    partition: the worst of its findings. Exits with 1 if a gap is open or an object is wrong, or if something could not
    be checked. Without --deep, objects are checked by size, version and the checksum that the store keeps, and packs by
    their heads and footers. With it, all packs that still exist are compared with the segments that have replaced them.
    """
    settings = load_settings(config)
    progress, failed, heads = Progress(), False, Heads()
    with surveyed(settings, topic) as components, ThreadPoolExecutor(settings.upload.concurrency) as pool:
        failed = not components.leadership.seen
        partitions, lacking = components.leadership.partitions, _Lacking({}, failed=False)
        if deep:
            lacking = _compare(partitions.values(), components.broker.node_id, pool, progress, output)
            failed |= lacking.failed
        for tp, partition in sorted(partitions.items()):
            if not partition.remote.surveyed:
                failed |= partition.error is not None
                if partition.error:
                    _report_failure(str(tp), partition.error, output)
                continue
            try:
                report, done = partial(_report, str(tp), output), partial(_show_progress, progress, f"{tp}: segments")
                verdict = verify(partition, pool, report, done, heads, lacking.findings.get(tp, ()), deep=deep)
            except (TidemarkError, OSError) as error:  # of this partition's objects or files alone
                failed = True
                _report_failure(str(tp), f"{type(error).__name__}: {error}", output)
                continue
            failed |= verdict.wrong > 0
            if output is Output.json:
                typer.echo(json.dumps(verdict._asdict()))
            else:
                typer.echo(f"{verdict.word:9}  {tp}: {verdict.in_words()}")
    if failed:
        raise typer.Exit(1)


class _Lacking(NamedTuple):
    """The records of packs that segments lack, by partition; ``failed`` if a pack is damaged or the store failed."""

    findings: dict[TopicPartition, list[VerifyFinding]]
    failed: bool


def _compare(
    partitions: Iterable[LedPartition], broker: int, pool: ThreadPoolExecutor, progress: Progress, output: Output
) -> _Lacking:
    damaged: list[VerifyFinding] = []
    known = [partition for partition in partitions if partition.remote.surveyed]
    try:
        done = partial(_show_progress, progress, "packs")
        findings = compare_packs(known, broker, pool, damaged.append, done)
    except TidemarkError as error:
        _report_failure("packs", f"{type(error).__name__}: {error}", output)
        return _Lacking({}, failed=True)
    for finding in damaged:
        _report("packs", output, finding)
    return _Lacking(findings, failed=bool(damaged))


def _show_progress(progress: Progress, subject: str, done: int) -> None:
    progress.say(f"verify: {subject}: {done}")


def _report(partition: str, output: Output, finding: VerifyFinding) -> None:
    if output is Output.json:
        typer.echo(json.dumps({"partition": partition, **finding._asdict()}))
        return
    subject = f"{finding.object}: " if finding.object else ""
    mark = "  !" if finding.wrong else ""
    typer.echo(f"  {finding.word:9}{partition} {finding.offset} to {finding.end}: {subject}{finding.detail}{mark}")


def _report_failure(partition: str, error: str, output: Output) -> None:
    if output is Output.json:
        typer.echo(json.dumps({"partition": partition, "error": error}))
    else:
        typer.echo(f"FAILED     {partition}: {error}")
