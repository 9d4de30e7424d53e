"""A pass of erasure over one topic: searches what approved requests name, masks it, and takes it out of table and raw.

A pass may be killed anywhere and begun again: masks are named by their content, the index gets each once, and the run
that rewrites files lands once or not at all. Its report comes last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Final, NamedTuple

from tidemark.erasure.matcher import check_comparable, matchers
from tidemark.erasure.reports import (
    ErasureReport,
    RawReport,
    Remaining,
    RequestOutcome,
    done_in,
    last_pass,
    reports_of,
    write_report,
)
from tidemark.erasure.requests import ErasureFolder, all_requests, ends_of
from tidemark.erasure.secret import Secret
from tidemark.errors import ConfigError, PublishError
from tidemark.formats.raw.erasure import KEY_COLUMN, Approved, ErasureRequest, NotApproved
from tidemark.formats.raw.masks import MOST_OFFSETS, Mask, MaskIndex
from tidemark.formats.table.ledger import Ledger, new_attempt
from tidemark.formats.table.plan import PartitionPlan, RunPlan
from tidemark.kafka_log import Lineage
from tidemark.parsers.base import column_at, no_rows
from tidemark.planning import write_plan
from tidemark.planning.common import Key, following
from tidemark.planning.maintenance.erasure import plan_erasure
from tidemark.raw.masks import mask_of, read_index
from tidemark.raw_topic import RawTopic
from tidemark.store import put_once
from tidemark.store.update import update
from tidemark.table.delta_table import TopicTable
from tidemark.table.effective_evidence import EffectiveEvidence
from tidemark_spark.convert.partition_columns import topic_parser
from tidemark_spark.erasing.lake import Unseen, notes, state_files, unseen_files
from tidemark_spark.erasing.seals import erase_seals
from tidemark_spark.erasing.search import Hit, Searched, search_all
from tidemark_spark.model import Executor, Job
from tidemark_spark.run.driver import run
from tidemark_spark.run.vacuum import vacuum

MOST_SHARE: Final = 0.01
"""The share of a topic's offsets above which an approval must name the number of records."""


class Pass(NamedTuple):
    """The places and the executor of a pass. ``secrets`` are read only if there is something to search for."""

    table: TopicTable
    by: str
    secrets: Callable[[], Mapping[str, Secret]]
    executor: Executor

    @property
    def folder(self) -> ErasureFolder:
        """The place of the requests and masks."""
        return ErasureFolder.of(self.table.deployment, self.table.topic.cluster)


def erase(work: Pass, *, dry_run: bool) -> ErasureReport:
    """Carry out a pass, and write its report; a dry run only searches, also for requests that nobody has approved.

    Raises:
        ConfigError: a request's secret is missing, or its column cannot be compared.
        ContinuityError: the table's rows are not those of its evidence; nothing was committed.
        PublishError: the table moved on meanwhile; run it again.
        FormatError, StoreError: an object cannot be read.
    """
    table = work.table
    standing = EffectiveEvidence.of(table)
    ledger = standing.ledger
    reports = list(reports_of(table))
    waiting, ready = _sorted(work, ledger, done_in(reports), dry_run=dry_run)
    searched = Searched([], {}, 0, 0, {})
    if ready:
        requests = [asked.request for asked in ready]
        secrets = _secrets(table, requests, work)
        searched = search_all(table, standing, requests, secrets, _job(table, ledger), work.executor)
    hits = _through(searched.hits, {asked.request.id: asked.request for asked in ready}, table.topic.topic)
    hits = _unmasked(work, ready, hits)
    outcomes = {
        asked.request.id: _outcome(asked, hits.get(asked.request.id, []), ledger, dry_run=dry_run) for asked in ready
    }
    report = ErasureReport(
        cluster=table.topic.cluster,
        topic=table.topic.topic,
        table=table.topic.table,
        attempt=new_attempt(),
        at=table.store.now(),
        by=work.by,
        dry_run=dry_run,
        ledger_n=ledger.n,
        requests=(*waiting, *outcomes.values()),
        searched=searched.rows,
        bytes_read=searched.bytes_read,
        unsearchable=searched.unsearchable,
        gone=sum(offsets.size for offsets in searched.gone.values()),
    )
    if not dry_run:
        taken = [asked for asked in ready if outcomes[asked.request.id].status == "erased"]
        report = _carried_out(work, report, taken, hits)
        asked, last = bool(taken or done_in(reports)), last_pass(reports)
        named = (item.key for item in (*last.raw.remaining, *last.remaining)) if last else ()
        unseen = Unseen(searched.gone if taken else {}, frozenset(named))
        raw = erase_seals(table, report.attempt, work.executor, asked=asked, unseen=unseen)
        told = (*raw.remaining, *notes(table, report.attempt, erases=bool(taken)))
        raw = raw.model_copy(update={"remaining": told})
        remaining = _remaining(table, report, reports) if RawTopic(table).mask_numbers() else ()
        known = {item.key for item in remaining}
        remaining += tuple(item for item in unseen_files(table, unseen) if item.key not in known)
        report = report.model_copy(update={"raw": raw, "remaining": remaining})
    last = last_pass(reports)
    before = (last.raw, last.remaining) if last else (RawReport(), ())
    if report.requests or report.rows or (report.raw, report.remaining) != before:
        write_report(table, report)
    return report


def _secrets(table: TopicTable, requests: Sequence[ErasureRequest], work: Pass) -> Mapping[str, Secret]:
    """The secrets, once it is known that they and the topic's columns answer for all ``requests``.

    Tasks would find it out as well, each in its own worker.

    Raises:
        ConfigError: a secret is missing, or the topic has no such column, or one of a type that cannot be compared.
    """
    topic, secrets = table.topic, work.secrets()
    for matcher in matchers(topic.topic, requests, secrets):
        if matcher.column != KEY_COLUMN:
            try:
                kind = column_at(no_rows(topic_parser(topic).columns, 0), matcher.column).type
            except ValueError as error:
                place = f"topic {topic.cluster}/{topic.topic}"
                raise ConfigError(place, [("parser", f"{error} of the parser's, and a request names it")]) from error
            check_comparable(matcher.column, kind)
    return secrets


def _unmasked(
    work: Pass, asked: Sequence[Approved | NotApproved], hits: Mapping[str, list[Hit]]
) -> dict[str, list[Hit]]:
    """The ``hits`` of each request that no mask of another one names: these were found and approved before."""
    if not any(hits.values()):
        return {**hits}
    folder, raw = work.folder, RawTopic(work.table)
    own = {each.request.id: each.sha256 for each in asked if isinstance(each, Approved)}

    @cache
    def others(incarnation: int, partition: int, log: tuple[int, ...], approval: str | None) -> set[tuple[int, int]]:
        index = raw.masks(raw.incarnations[incarnation].place)
        return _masked(folder, index, partition, log, but=approval)

    return {
        request: [
            hit
            for hit in found
            if (hit.epoch, hit.offset) not in others(hit.incarnation, hit.partition, hit.log, own.get(request))
        ]
        for request, found in hits.items()
    }


def _remaining(table: TopicTable, report: ErasureReport, before: Sequence[ErasureReport]) -> tuple[Remaining, ...]:
    """Vacuum the table and what its bucket keeps; returns what remains in the lake."""
    erasing = [each.at for each in (*before, report) if each.rows or done_in([each])]
    return (*vacuum(table, versions=True).remaining, *state_files(table, max(erasing, default=report.at)))


def _sorted(
    work: Pass, ledger: Ledger, finished: Collection[str], *, dry_run: bool
) -> tuple[list[RequestOutcome], list[Approved | NotApproved]]:
    """The requests about the topic that are not ``finished``: (those that wait, those that can be carried out).

    Withdrawn ones are in neither.
    """
    topic, folder = work.table.topic.topic, work.folder
    ends = {(incarnation, partition): end for incarnation, partition, end in ends_of(work.table)}
    waiting: list[RequestOutcome] = []
    ready: list[Approved | NotApproved] = []
    for asked in all_requests(folder.cluster):
        request = asked.request
        if request.id in finished or asked.withdrawal or request.searched(topic) is None:
            continue
        if waits := _waits(asked, ledger, ends, topic, dry_run=dry_run):
            waiting.append(RequestOutcome(id=request.id, status="waiting", detail=waits))
        else:
            ready.append(asked)
    return waiting, ready


def _carried_out(
    work: Pass, report: ErasureReport, taken: Sequence[Approved | NotApproved], hits: Mapping[str, Sequence[Hit]]
) -> ErasureReport:
    """Mask the ``hits`` of the requests ``taken``, take all masked rows out of the table, and complete the report."""
    approvals = [asked.sha256 for asked in taken if isinstance(asked, Approved)]
    masked = _write_masks(work, [hit for asked in taken for hit in hits.get(asked.request.id, [])], approvals)
    report = report.model_copy(update={"masked": masked})
    plan = plan_erasure(work.table, attempt=report.attempt)
    if plan is None:
        return report
    write_plan(work.table, plan)
    result = run(work.table, plan, work.executor)
    if result.status != "landed":
        raise PublishError(f"{work.table.url}: it moved on since attempt {plan.attempt} was planned; run it again")
    return report.model_copy(update={"rows": result.erased, "ledger_n": result.ledger_n})


def _waits(asked: Approved | NotApproved, ledger: Ledger, ends: Mapping[Key, int], topic: str, *, dry_run: bool) -> str:
    """The reason why a request cannot be carried out yet; empty if it can. ``ends`` are those of the partitions now.

    An unclean election may have cut off what a partition had at the time of the request.
    """
    if isinstance(asked, NotApproved) and not dry_run:
        return asked.objection or "nobody has approved it"
    for incarnation, partition, end in asked.request.through[topic]:
        key = incarnation, partition
        state = ledger.by_partition.get(key)
        landed, wanted = state.next_offset if state else 0, min(end, ends.get(key, end))
        if landed < wanted:
            return f"partition {partition} has landed up to {landed}, and the request goes to {wanted}"
    return ""


def _through(hits: Sequence[Hit], requests: Mapping[str, ErasureRequest], topic: str) -> dict[str, list[Hit]]:
    """The ``hits`` below the ends of their requests, by request: each record once, from the table if it is there."""
    ends = {
        (name, end.incarnation, end.partition): end.end
        for name, request in requests.items()
        for end in request.through[topic]
    }
    chosen: dict[str, dict[tuple[int, int, tuple[int, ...], int, int], Hit]] = {}
    for hit in sorted(hits, key=lambda hit: hit.where):  # raw before table
        if hit.offset < ends.get((hit.request, hit.incarnation, hit.partition), 0):
            at = hit.incarnation, hit.partition, hit.log, hit.epoch, hit.offset
            chosen.setdefault(hit.request, {})[at] = hit
    return {request: list(found.values()) for request, found in chosen.items()}


def _outcome(asked: Approved | NotApproved, hits: Sequence[Hit], ledger: Ledger, *, dry_run: bool) -> RequestOutcome:
    offsets = sum(state.next_offset for state in ledger.partitions)
    limit = max(1, int(MOST_SHARE * offsets))
    named = asked.approval.records if isinstance(asked, Approved) else None
    update: dict[str, object] = {"status": "found" if dry_run else "erased"}
    if not dry_run and len(hits) > (limit if named is None else named):
        allowed = f"its approval allows {named}" if named is not None else f"more than 1 % of {offsets} offsets"
        rule = f"{len(hits)} records, and {allowed}: ask again, and approve with --records {len(hits)}"
        update = {"status": "refused", "detail": rule}
    return RequestOutcome.model_validate(
        {
            "id": asked.request.id,
            "records": dict(Counter(hit.where for hit in hits)),
            "dates": dict(Counter(hit.dt for hit in hits if hit.dt)),
            **update,
        }
    )


def _job(table: TopicTable, ledger: Ledger) -> Job:
    """The job of a search: all partitions of the ledger."""
    plans = tuple(PartitionPlan.of(state, 0, state.next_offset) for state in ledger.partitions)
    return Job.of(table, RunPlan(**following(table, ledger, 0), kind="erase", partitions=plans))


def _write_masks(work: Pass, hits: Sequence[Hit], approvals: Sequence[str]) -> int:
    """Write masks of ``hits`` and add them to the indexes; returns the number of newly masked offsets."""
    by_log: dict[tuple[Key, tuple[int, ...]], set[tuple[int, int]]] = {}
    for hit in hits:
        at = (hit.incarnation, hit.partition), hit.log
        by_log.setdefault(at, set()).add((hit.epoch, hit.offset))
    folder, raw = work.folder, RawTopic(work.table)
    fresh: dict[str, list[Mask]] = {}
    for (key, restores), pairs in sorted(by_log.items()):
        place = raw.incarnations[key[0]].place
        left = sorted(pairs - _masked(folder, raw.masks(place), key[1], restores))
        for start in range(0, len(left), MOST_OFFSETS):
            by_epoch: dict[int, list[int]] = {}
            for epoch, offset in left[start : start + MOST_OFFSETS]:
                by_epoch.setdefault(epoch, []).append(offset)
            mask = Mask.of(folder.cluster.keys.cluster, place, key[1], by_epoch, approvals, restores)
            fresh.setdefault(place, []).append(mask)
    for place, masks in fresh.items():
        for mask in masks:
            put_once(folder.cluster.store, mask.key(folder.cluster.keys), mask.to_bytes())
        _add(folder, place, masks)
    return sum(mask.count for masks in fresh.values() for mask in masks)


def _masked(
    folder: ErasureFolder, index: MaskIndex, partition: int, restores: tuple[int, ...], *, but: str | None = None
) -> set[tuple[int, int]]:
    """The (epoch, offset) pairs of a partition's log with ``restores`` masked already, ``but`` for an approval."""
    keys = (index.key_of(folder.cluster.keys, mask) for mask in index.masks if mask.partition == partition)
    masks = (mask_of(folder.cluster.store, key) for key in keys)
    return {
        (part.epoch, offset)
        for mask in masks
        if but not in mask.approvals
        for part in mask.epochs
        for offset in part.offsets
        if Lineage(restores=mask.restores).restores_below(offset) == restores
    }


def _add(folder: ErasureFolder, place: str, masks: Sequence[Mask]) -> None:
    """Add ``masks`` to the index of ``place``, whoever else does so at the same time."""

    def read() -> tuple[MaskIndex, str | None]:
        version = read_index(folder.cluster, place)
        return version or (MaskIndex(cluster=folder.cluster.keys.cluster, place=place), None)

    key = folder.cluster.keys.mask_index(place)
    update(folder.cluster.store, key, read, lambda index: index.also(masks), then="run it again")
