"""Commands that write to raw: ``tidemark acknowledge-gap`` gives up lost offsets, ``verify-copy`` proves a copy.

A copy of raw is proved if each segment's objects are there as its manifest describes them, and no offset is missing. A
copy may have manifests whose objects are still on their way. Most ways to copy also give objects other ETags than those
that manifests name, and readers refuse such objects. Once size and CRC32C prove the bytes, the manifest may be renewed:
it then names the copy's ETags.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from tidemark.cli.options import DEFAULT_TOPICS, As, Cluster, TopicName, Topics, not_empty, writes
from tidemark.concurrency import in_parallel
from tidemark.errors import NotFound
from tidemark.formats.base import Model
from tidemark.formats.keys import SegmentName
from tidemark.formats.raw.manifest import ObjectSum
from tidemark.formats.table.ledger import Ledger
from tidemark.inspection.gap_acknowledgement import GapsOf, gaps_of
from tidemark.intervals import Intervals
from tidemark.kafka_log import Lineage
from tidemark.planning.read import NO_LIMIT
from tidemark.raw import objects
from tidemark.raw.objects import StoredManifest, stored_checksum
from tidemark.raw.partition import RawPartition, StoredPartition
from tidemark.raw.segments import cover, whole_lineage
from tidemark.raw_topic import RawTopic
from tidemark.storage import PartitionStore, Storage
from tidemark.store import Store
from tidemark.table.delta_table import TopicTable, committed_ledger, open_topic_table
from tidemark.topics import load_topics


@writes
def acknowledge_gap(
    topic: TopicName,
    partition: Annotated[int, typer.Argument(min=0, help="The partition's number.")],
    start: Annotated[int, typer.Argument(metavar="FROM", min=0, help="The first lost offset.")],
    end: Annotated[int, typer.Argument(metavar="TO", min=0, help="The offset after the last lost one.")],
    by: Annotated[str, typer.Option(callback=not_empty, help="Your name, for people who want to ask.")],
    reason: Annotated[str, typer.Option(callback=not_empty, help="Why they are lost, and may be given up.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    incarnation: Annotated[
        int | None, typer.Option(help="The incarnation of a topic that was created again; default: the newest.")
    ] = None,
    topics: Topics = DEFAULT_TOPICS,
    cluster: Cluster = None,
    output: As = "text",
) -> None:
    """Accept that offsets of an open gap are lost, so that the partition continues past them.

    They are classed as acknowledged from then on. You cannot undo this. The leader's agent sees it within its scan
    interval; if only runs have found the gap, the next run does. Exits with 1 for offsets that are not in an open gap,
    and shows the open gaps.
    """
    deployment = load_topics(topics)
    settings = deployment.topic(topic, cluster)
    known = gaps_of(open_topic_table(deployment, settings), partition, incarnation)
    if not yes and known.acknowledgement(start, end) is None:
        _ask(known, start, end)
    acknowledgement, new = known.acknowledge(start, end, by, reason)
    answer: dict[str, Any] = {
        "topic": f"{settings.cluster}/{settings.topic}",
        "partition": partition,
        **acknowledgement.model_dump(mode="json", by_alias=True, exclude={"format"}),
        "new": new,
    }
    outcome = "acknowledged" if new else f"acknowledged already, at {acknowledgement.at:%Y-%m-%d %H:%M} UTC"
    line = f"{answer['topic']} {partition}: {start} to {end} {outcome}"
    typer.echo(json.dumps(answer, ensure_ascii=False) if output == "json" else line)


def _ask(gaps: GapsOf, start: int, end: int) -> None:
    """Show the open gaps on standard error, and ask whether to continue."""
    gaps.check(start, end)
    typer.echo(f"Open gaps of {gaps.at}:", err=True)
    for gap in gaps.gaps_around(start, end):
        typer.echo(f"  {gap.start} to {gap.end}: {gap.reason}, since {gap.detected_at:%Y-%m-%d %H:%M} UTC", err=True)
    typer.confirm(f"Give up {end - start} offsets, {start} to {end}, for good?", abort=True, err=True)


@writes
def verify_copy(
    topic: Annotated[str | None, typer.Argument(help="A topic of the topics file; default: all.")] = None,
    renew: Annotated[
        bool, typer.Option("--renew", help="Write this copy's ETags into manifests whose objects are proved.")
    ] = False,
    topics: Topics = DEFAULT_TOPICS,
    cluster: Cluster = None,
    output: As = "text",
) -> None:
    """Check a copy of raw: all that manifests, watermarks and heads name must be there, with the same bytes.

    Reads the objects of all segments where the store does not know their CRC32C. Exits with 1 if anything is missing
    or differs. With --renew it needs the agent's rights.
    """
    deployment = load_topics(topics)
    chosen = [deployment.topic(topic, cluster)] if topic else deployment.topics_of(cluster)
    copies = [check_copy(open_topic_table(deployment, settings), renew=renew) for settings in chosen]
    if output == "json":
        typer.echo(json.dumps([copy.model_dump(mode="json") for copy in copies], ensure_ascii=False))
    else:
        for copy in copies:
            found = f"{copy.partitions} partitions, {copy.segments} segments, {copy.bytes} bytes"
            typer.echo(f"{copy.cluster}/{copy.topic}: {found}, {copy.renewed} manifests renewed")
            typer.echo("".join(f"  {finding}\n" for finding in copy.findings), nl=False)
    if any(copy.findings for copy in copies):
        raise typer.Exit(1)


class CopiedTopic(Model):
    """What a copy has of a topic; ``renewed`` counts manifests. Each of ``findings`` names an object and its fault."""

    cluster: str
    topic: str
    partitions: int
    segments: int
    bytes: int
    renewed: int
    findings: tuple[str, ...]


def check_copy(table: TopicTable, *, renew: bool) -> CopiedTopic:
    """What raw has of the topic of ``table``; with ``renew``, proved manifests get the ETags of their objects.

    The table, if there is one, tells of partitions and masks that the copy must have. Where the store does not know a
    CRC32C, the bytes are read.

    Raises:
        StoreError: a store did not answer, or refused.
        FormatError: an object does not parse.
    """
    raw, ledger = RawTopic(table, outages=True), committed_ledger(table)
    width = 1 + max((number for _, number in (*raw.entries, *ledger.by_partition)), default=-1)
    parts = [
        raw.partition((number, partition)) for number in range(len(raw.incarnations)) for partition in range(width)
    ]
    copied = in_parallel(lambda part: _check_partition(raw, part, ledger, renew=renew), parts)
    segments = [segment for found, _ in copied for segment in found]
    topic = table.topic
    nothing = () if parts else (f"{topic.cluster}/{topic.topic}: no partition is known: no index or table names one",)
    return CopiedTopic(
        cluster=topic.cluster,
        topic=topic.topic,
        partitions=sum(bool(found) for found, _ in copied),
        segments=len(segments),
        bytes=sum(size for size, _, _ in segments),
        renewed=sum(renewed for _, renewed, _ in segments),
        findings=(
            *nothing,
            *(finding for _, findings in copied for finding in findings),
            *(finding for _, _, findings in segments for finding in findings),
            *_missing_masks(raw, table, ledger),
            *raw.unread.messages,
        ),
    )


def _check_partition(
    raw: RawTopic, part: RawPartition, ledger: Ledger, *, renew: bool
) -> tuple[list[tuple[int, bool, tuple[str, ...]]], list[str]]:
    """(segments as in :func:`_check_segment`, findings about the partition as a whole)."""
    partition = raw.partition_store(part)
    names = [entry.name for entry in partition.manifests()]
    segments = [_check_segment(partition, name, renew=renew) for name in names]
    view, entry, state = raw.view(part), raw.entries.get(part.key), ledger.by_partition.get(part.key)
    if view is not None:
        return segments, [*_holes(raw, part, view)]
    missing = segments or (entry and entry.next_offset) or (state and state.next_offset)
    return segments, [f"{part.keys.watermark}: is missing"] if missing else []


def _check_segment(partition: PartitionStore, name: SegmentName, *, renew: bool) -> tuple[int, bool, tuple[str, ...]]:
    """(bytes, whether its manifest was renewed, findings)."""
    key, stored = partition.keys.manifest(name), objects.read_manifest(partition, name)
    if stored is None:
        return 0, False, (f"{key}: was removed just now; check again",)
    found: dict[str, ObjectSum] = {}
    findings: list[str] = []
    for file, described in stored.manifest.sums.items():
        proved = _proved(*partition.located(stored.manifest, file), described)
        if isinstance(proved, ObjectSum):
            found[file] = proved
        else:
            findings.append(f"{partition.located(stored.manifest, file)[1]}: {proved}")
    size = sum(described.size for described in found.values())
    if findings or found == stored.manifest.sums:
        return size, False, tuple(findings)
    if not renew:
        return size, False, (f"{key}: names other ETags than this copy's: --renew",)
    _renew(partition.store, key, stored, found)
    return size, True, ()


def _proved(store: Store, key: str, described: ObjectSum) -> ObjectSum | str:
    """The object under ``key`` as ``described``, with its present ETag; or its fault."""
    try:
        present = store.head(key)
    except NotFound:
        return "is missing, though its manifest is there"
    if present.size != described.size:
        return f"has {present.size} bytes, and its manifest names {described.size}"
    if present.etag != described.etag and (checksum := f"{stored_checksum(store, present):08x}") != described.crc32c:
        return f"has CRC32C {checksum}, and its manifest names {described.crc32c}"
    return described.model_copy(update={"etag": present.etag})


def _renew(store: Store, key: str, stored: StoredManifest, found: dict[str, ObjectSum]) -> None:
    store.put(key, stored.manifest.with_sums(found).to_bytes(), if_match=stored.etag)


def _holes(raw: RawTopic, part: RawPartition, view: StoredPartition) -> Iterator[str]:
    """The first offset that no segment or pack has, and no gap, tombstone or acknowledgement explains."""
    watermark = view.watermark
    start = raw.first(part, watermark.start_offset)
    explained = Intervals.of((*watermark.gaps, *watermark.acknowledged_gaps)) | raw.acknowledged(part)
    segments, _ = raw.segments(view, start, view.end, NO_LIMIT)
    lineage = whole_lineage(view.lineage, Lineage(), segments)
    _, hole = cover(segments, lineage, Intervals([(start, max(start, view.end))]) - explained)
    if hole is not None:
        by, lacks = ("it", "manifest") if hole.start < watermark.next_offset else ("a head", "pack")
        yield f"{part.keys.watermark}: {by} counts offsets {hole.start} to {hole.end - 1}, but no {lacks} here has them"


def _missing_masks(raw: RawTopic, table: TopicTable, ledger: Ledger) -> Iterator[str]:
    """Masks of erased records that the table follows or their index names, and that the copy lacks."""
    cluster = Storage(table.topic.cluster, table.deployment.raw, table.deployment.store).cluster_store()
    for incarnation in raw.incarnations:
        index = raw.masks(incarnation.place)
        if index.number < ledger.masks.get(incarnation.place, 0):
            followed = ledger.masks[incarnation.place]
            key = cluster.keys.mask_index(incarnation.place)
            yield f"{key}: has {index.number} masks, and the table follows {followed}"
        for mask in index.masks:
            try:
                cluster.store.head(index.key_of(cluster.keys, mask))
            except NotFound:
                yield f"{index.key_of(cluster.keys, mask)}: is missing, though its index names it"
