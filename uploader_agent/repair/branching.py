"""Goes on with the log of a restored broker, from the offset at which it parts from the stored history.

Kafka does not number restores: a broker that was restored from a backup gives out an epoch again. So ``offset.wm``
numbers them. Once the offset is in its ``restores``, whatever was stored before is of a dead branch from there on, as
after an unclean election, and the agent seals the disk's log under names of its own. Nothing is moved or removed.

A person starts it, on the leader's broker. Two objects are written: the statement of the person, then ``offset.wm``, by
If-Match. After a crash before that nothing has happened, and the command can be repeated; after it, it finds one
history (docs/agent-design.md, "Going on with a restored log").
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal, NamedTuple

from tidemark.errors import PreconditionFailed, TidemarkError
from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.manifest import ObjectSum
from tidemark.formats.raw.watermark import LogRestore, Watermark
from tidemark.intervals import Intervals
from tidemark.kafka_log import Lineage
from tidemark.storage import PartitionStore, StoredWatermark
from uploader_agent.broker.admin import Led
from uploader_agent.broker.authority import Authority
from uploader_agent.disk.segment_files import Bytes, PartitionFiles, checksum
from uploader_agent.packs.tail import TailSources
from uploader_agent.runtime import utc_now
from uploader_agent.stored import stored_log, watermark
from uploader_agent.stored.histories import Parting, find_parting, log_bounds
from uploader_agent.stored.objects import Summed, create, replace
from uploader_agent.upload.segment_upload import UploadRoute

Outcome = Literal["would branch", "branched", "one history"]

_PAUSE: Final = 5.0
"""Seconds between two questions about the cluster's metadata. A broker applies it within milliseconds."""

_QUESTIONS: Final = 12


class BranchRow(NamedTuple):
    """The outcome for a partition: its log is another one than the stored history from the offset ``at`` on.

    ``detail`` describes both. ``at`` is None if there is one history.
    """

    partition: str
    at: int | None
    stored_end: int
    log_end: int
    outcome: Outcome
    detail: str | None


class Statement(NamedTuple):
    """The statement of a person; ``written_as`` is the identity under which the store gets it."""

    by: str
    written_as: str
    reason: str


class _Histories(NamedTuple):
    """The state of a partition in the store and on the disk. ``at`` is where the two part; None if nowhere."""

    stored: StoredWatermark
    lineage: Lineage
    at: int | None
    stored_end: int
    log_start: int
    log_end: int
    difference: str


class Branching:
    """One partition, which this broker leads as ``led``. ``replicas`` are the brokers with a replica."""

    def __init__(
        self,
        tp: TopicPartition,
        led: Led,
        folder: Path,
        partition: PartitionStore,
        broker: int,
        replicas: tuple[int, ...],
    ) -> None:
        self._tp = tp
        self._led = led
        self._folder = folder
        self._partition = partition
        self._broker = broker
        self._replicas = replicas

    def look(self) -> BranchRow:
        """Find out where the histories part; writes nothing. Raises TidemarkError: it cannot be told."""
        return self._row(self._find(), "would branch")

    def go_on(self, said: Statement, confirm: Callable[[], bool], *, unproved: bool = False) -> BranchRow:
        """Go on with the disk's log, unless there is one history. ``confirm`` is True if this broker is the leader.

        With ``unproved`` also where the disk's log begins above the start of the stored one: the two may part below.

        Raises:
            TidemarkError: nothing was changed.
            PreconditionFailed: ``offset.wm`` has changed since it was read, and nothing else has; start again.
            StoreError, FormatError: the store failed, or an object does not parse; it is safe to start again.
        """
        found = self._find()
        if found.at is None:
            return self._row(found, "one history")
        start = found.stored.watermark.start_offset
        if found.at == found.log_start > start and not unproved:
            rule = f"the disk's log begins at {found.at}, where it differs already: they may part below"
            remedy = f"what the store has from {start} to {found.at} stays if you add --unproved"
            raise TidemarkError(f"{self._folder}: {rule}; {remedy}")
        if not confirm():
            rule = (
                f"the cluster does not confirm that this broker leads {self._tp} under epoch {self._led.leader_epoch}"
            )
            raise TidemarkError(f"{rule}: run this on the leader's broker, once it has the cluster's metadata")
        new = self._watermark(found, found.at)
        self._state(found, found.at, said)
        first = found.stored.base_offset
        if first >= new.next_offset:
            first = max(new.start_offset, stored_log.last_base_below(self._partition, new.next_offset))
        watermark.write(self._partition, first, new, found.stored)
        return self._row(found, "branched")

    def _find(self) -> _Histories:
        stored = watermark.read(self._partition)
        if stored is None or stored.watermark.topic_id != self._led.topic_id:
            raise TidemarkError(
                f"{self._partition.keys.watermark}: the store has nothing of this topic id yet: the agent begins"
            )
        before, epoch = stored.watermark, self._led.leader_epoch
        with PartitionFiles(self._folder, self._led.topic_id, before.restores) as files:
            lineage, bounds = files.lineage(), log_bounds(files)
            if bounds is None or (lineage.entries and lineage.entries[-1][0] != epoch):
                newest = lineage.entries[-1][0] if lineage.entries else None
                rule = f"the newest leader epoch of its log is {newest}, and this broker leads under {epoch}"
                raise TidemarkError(f"{self._folder}: {rule}: try again")
            later = max(epoch, before.leader_epoch) + 1  # nothing is cut off, and nothing fences: both are compared
            log = stored_log.load(
                self._partition,
                lineage,
                later,
                self._led.topic_id,
                self._broker,
                lambda _: False,
            )
            known = log.history(lineage)
            route = UploadRoute(self._tp, self._led.topic_id, self._folder, self._partition, self._broker)
            brokers = {self._broker, *self._replicas, *before.tail_brokers}
            ranges, end, shared = TailSources().history(route, brokers, known, log.end, log.shared)
            parting = find_parting(self._partition, files, known, ranges, end=end, shared=shared)
            if files.lineage() != lineage:
                raise TidemarkError(f"{self._folder}: its leader epochs changed while it was read: try again")
        stored_end = max(end, before.next_offset)
        at, difference = self._judge(before, lineage, parting, end)
        return _Histories(stored, lineage, at, stored_end, *bounds, difference)

    def _judge(self, before: Watermark, lineage: Lineage, parting: Parting | None, end: int) -> tuple[int | None, str]:
        """Where the histories part, and in which way they differ.

        A leader under an earlier epoch than the stored one follows restored metadata, even if all batches are equal. A
        leader under a later one cuts off by itself what its lineage leaves.
        """
        if parting is not None:
            cut = before.history.divergence(lineage, parting.at)
            return parting.at if cut is None else cut, str(parting)
        if self._led.leader_epoch > before.leader_epoch:
            return None, "the log on the disk is the stored one"
        cut = before.history.divergence(lineage, max(end, before.next_offset))
        if cut is None and self._led.leader_epoch == before.leader_epoch:
            return None, "the log on the disk is the stored one"
        theirs = f"the store has leader epoch {before.leader_epoch} and the lineage {list(map(list, before.lineage))}"
        ours = f"this broker leads under {self._led.leader_epoch} with {lineage.to_json()}"
        at = end if cut is None else cut
        return at, f"another history than the stored one from offset {at} on: {theirs}; {ours}"

    def _watermark(self, found: _Histories, at: int) -> Watermark:
        """``offset.wm`` with the restore, as if only what lies below ``at`` had been stored."""
        before = found.stored.watermark
        lineage = Lineage(found.lineage.entries, (*before.restores, at)).with_history(before.history)
        below = Intervals(before.ranges_above).clip(0, at)
        return before.model_copy(
            update={
                "leader_epoch": self._led.leader_epoch,
                "start_offset": min(at, before.start_offset),
                "next_offset": min(at, before.next_offset),
                "ranges_above": tuple(watermark.above(below, min(at, before.next_offset))),
                "lineage": lineage.entries,
                "gaps": tuple(watermark.below(before.gaps, at)),
                "acknowledged_gaps": tuple(watermark.below(before.acknowledged_gaps, at)),
                "tails": (),
                "broker": self._broker,
                "written_at": utc_now(),
            }
        ).restored(lineage.restores)

    def _state(self, found: _Histories, at: int, said: Statement) -> None:
        """Store the statement, in place of one that was followed by a crash: ``offset.wm`` lacks its restore."""
        before, keys = found.stored.watermark, self._partition.keys
        number = len(before.restores) + 1
        statement = LogRestore.model_validate(
            {
                "cluster": keys.cluster,
                "place": keys.place,
                "partition": keys.partition,
                "number": number,
                "from": at,
                "stored_end": found.stored_end,
                "log_end": found.log_end,
                "lineage": found.lineage.entries,
                "leader_epoch": self._led.leader_epoch,
                "broker": self._broker,
                "replaced": before,
                "etag": found.stored.etag,
                "difference": found.difference,
                "at": utc_now(),
                **said._asdict(),
            }
        )
        key = keys.control.restore(keys.place, keys.partition, number)
        content = Bytes("restore.json", statement.to_bytes())
        summed = Summed(content, checksum(content))
        created = create(self._partition.store, key, summed)
        if isinstance(created, ObjectSum):
            return
        again = watermark.read(self._partition)
        if again is None or again.etag != found.stored.etag:
            raise PreconditionFailed(keys.watermark, "was written in the meantime: start again")
        replace(self._partition.store, key, summed, created)

    def _row(self, found: _Histories, outcome: Outcome) -> BranchRow:
        outcome = "one history" if found.at is None else outcome
        return BranchRow(str(self._tp), found.at, found.stored_end, found.log_end, outcome, found.difference)


def confirmed(
    authority: Authority, tp: TopicPartition, broker: int, led: Led, sleep: Callable[[float], object]
) -> bool:
    """True if the cluster's metadata, as committed by now, has ``broker`` lead ``tp`` as ``led``.

    A deposed broker that lags behind would otherwise put its log in place of its successor's. Raises BrokerUnavailable.
    """
    mark = authority.mark()
    for _ in range(_QUESTIONS):
        sleep(_PAUSE)
        answer = authority.confirms(mark)
        if answer is None:
            mark = authority.mark()
        elif answer:
            leader = authority.leader(tp)
            return leader is not None and (leader.broker, leader.led) == (broker, led)
    return False
