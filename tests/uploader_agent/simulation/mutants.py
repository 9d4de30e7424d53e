"""What can be planted in the agent: faults that the simulation must see, and losses that must do no harm."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.uploader_agent.simulation.disk import SimulatedWatcher, Watches
from tests.uploader_agent.simulation.fetch_mutants import FETCH_FAULTS, FETCH_LOSSES
from tests.uploader_agent.simulation.mutant import Mutant, Patches
from tests.uploader_agent.simulation.restore_mutants import RESTORES
from tests.uploader_agent.simulation.rule_mutants import RULES
from tidemark.errors import StoreError
from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.manifest import PackedPart
from tidemark.store import Store
from uploader_agent import components
from uploader_agent.broker.properties import BrokerDirs
from uploader_agent.components import Components
from uploader_agent.disk.log_dirs import PartitionFolder
from uploader_agent.disk.segment_files import OpenFile, batch_headers
from uploader_agent.packing import packer
from uploader_agent.packing.head_maintenance import Maintenance
from uploader_agent.packing.thread import Ticks
from uploader_agent.packs.broker_head import BrokerHead, EntryLines
from uploader_agent.partitions.jobs import Job, Observation
from uploader_agent.partitions.leadership import Leadership
from uploader_agent.partitions.led_partition import LedPartition
from uploader_agent.partitions.partition_uploader import PartitionUploader
from uploader_agent.partitions.poller import OffsetsAnswer, Poller, Question
from uploader_agent.runtime import UNTIL_WOKEN
from uploader_agent.scheduling.workers import Timers, UploadQueue
from uploader_agent.stored.objects import Summed, create
from uploader_agent.upload.local_run import PartsOfRun
from uploader_agent.watermark_index import IndexThread


def _log_end_is_the_high_watermark() -> Patches:
    """What ``offset_lag`` of DescribeLogDirs comes to on a leader."""
    yield patch.object(Observation, "log_end", property(lambda self: self.offsets.high_watermark))


def _answer_goes_to_the_last_question() -> Patches:
    """One slot for each partition: the first answer takes it, whatever was asked for last; the next finds none."""
    yield from _log_end_is_the_high_watermark()
    ask, observe = Leadership.ask, Leadership.observe
    slots: dict[TopicPartition, Question] = {}

    def remembering(self: Leadership, wanted: Iterable[TopicPartition]) -> dict[TopicPartition, Question]:
        questions = ask(self, wanted)
        slots.update(questions)
        return questions

    def confusing(self: Leadership, answer: OffsetsAnswer) -> set[TopicPartition]:
        asked = {at: slots.pop(at) for at in answer.asked if at in slots}
        return observe(self, replace(answer, asked=asked))

    yield patch.object(Leadership, "ask", remembering)
    yield patch.object(Leadership, "observe", confusing)


def _offsets_always_go_first() -> Patches:
    yield patch.object(Poller, "_leaders_next", property(lambda _: False, lambda _self, _value: None), create=True)


def _every_third_timer_is_lost() -> Patches:
    add, count = Timers.add, itertools.count()

    def losing(self: Timers[Any], key: Any, moment: float) -> None:
        if next(count) % 3:
            add(self, key, moment)

    yield patch.object(Timers, "add", losing)


def _what_the_timers_lost_is_not_looked_for() -> Patches:
    """As it was: a scan plans again where the disk has changed, or where there was a job or a gap."""
    yield from _every_third_timer_is_lost()
    plan = LedPartition.plan

    def planned(self: LedPartition, quiet_before: float | None) -> list[Job]:
        jobs = plan(self, quiet_before)
        self._is_busy = bool(jobs or self.remote.log.gaps)
        return jobs

    yield patch.object(LedPartition, "plan", planned)


def _the_poller_ends_at_an_error() -> Patches:
    def ending(self: Poller) -> float | None:
        if not self._answer_one():
            return UNTIL_WOKEN
        failed = any(answer.error for answer in self._answers)
        self._answered()
        return None if failed else 0.0

    yield patch.object(Poller, "_turn", ending)


def _the_scan_finds_nothing() -> Patches:
    """A directory is listed once."""
    look = PartitionFolder.look

    def deaf(self: PartitionFolder) -> bool:
        return look(self) if self.tail is None else False

    yield patch.object(PartitionFolder, "look", deaf)


def _the_index_is_shown_once() -> Patches:
    set_partitions = IndexThread.set_partitions

    def once(self: IndexThread, *shown: Any) -> None:
        if self._led is None:
            set_partitions(self, *shown)

    yield patch.object(IndexThread, "set_partitions", once)


def _inotify_tells_nothing() -> Patches:
    yield patch.object(Watches, "put", lambda _self, _event: None)


def _every_third_wake_up_is_lost() -> Patches:
    ring, count = SimulatedWatcher.wake, itertools.count()
    yield patch.object(SimulatedWatcher, "wake", lambda self: ring(self) if next(count) % 3 else None)


def _a_job_that_failed_is_not_looked_at_again() -> Patches:
    revisit = Components.revisit
    yield patch.object(Components, "revisit", lambda self, at, after: None if after else revisit(self, at, after))


def _a_back_off_that_ends_wakes_nobody() -> Patches:
    yield patch.object(UploadQueue, "_pause", lambda _self, _now: None)


def _a_pack_that_failed_counts_as_stored() -> Patches:
    def careless(store: Store, key: str, ours: Summed) -> None:
        with suppress(StoreError):
            create(store, key, ours)

    yield patch.object(packer, "create", careless)


def _all_that_is_on_the_disk_is_packed() -> Patches:
    """Also what is not committed."""

    def log_end(self: LedPartition) -> int | None:
        return self.observation.log_end if self.confirmed and self.observation else None

    yield patch.object(LedPartition, "high_watermark", property(log_end))


def _a_leader_packs_unlisted() -> Patches:
    """No ``offset.wm`` says that it may have packed: readers and the next leader do not look at its head."""
    yield patch.object(PartitionUploader, "announce_tail", lambda _self: None)
    yield patch.object(PartitionUploader, "may_pack", property(lambda _self: True))
    yield patch.object(LedPartition, "apply_freshness", lambda self, freshness: setattr(self, "freshness", freshness))


def _heads_are_not_compared() -> Patches:
    """A restarted agent knows where its tails end, and not since when they are packed."""
    yield patch.object(Maintenance, "_compare", lambda _self, _head, _led: None)


def _a_damaged_head_is_left_alone() -> Patches:
    """Until it can be read, nothing is packed."""
    yield patch.object(BrokerHead, "make_whole", BrokerHead.read)


def _a_damaged_head_is_begun_anew() -> Patches:
    """By a process that does not know it: what only packs have is found by nobody."""
    yield patch.object(components, "recover_entries", lambda *_: EntryLines())


def _a_head_is_not_looked_at_while_nothing_is_new() -> Patches:
    yield patch.object(BrokerHead, "check", lambda _self: None)


def _quiet_tails_are_given_to_nobody() -> Patches:
    yield patch.object(Ticks, "add_quiet", lambda *_: None)


def _what_cannot_be_packed_is_not_sealed() -> Patches:
    """Until Kafka rolls it: behind a gap, for example."""
    stuck = property(lambda self: self.offsets is not None and self.offsets.source == "checkpoint")
    yield patch.object(LedPartition, "seals_quiet_tail", stuck)


def _only_what_lies_before_the_last_batch_is_compared() -> Patches:
    """What compaction has removed from the end of a run is not looked for in packs."""
    differing = PartsOfRun.differing

    def short(self: PartsOfRun, log: OpenFile, end: int) -> list[PackedPart]:
        last = max((header.next_offset for header in batch_headers(log, 0)), default=0)
        return [part for part in differing(self, log, end) if part.next <= last]

    yield patch.object(PartsOfRun, "differing", short)


def _what_is_not_read_yet_is_not_packed() -> Patches:
    """A new leadership says where the stored offsets end before it has read what former ones have packed."""
    yield patch.object(LedPartition, "packs_known", property(lambda _: True))


def _a_disk_that_failed_is_forgotten() -> Patches:
    check, failed = BrokerDirs.check, set[int]()

    def unforgiving(self: BrokerDirs, log_dir: Path) -> None:
        if id(self) in failed:
            raise FileNotFoundError(str(log_dir))
        try:
            check(self, log_dir)
        except OSError:
            failed.add(id(self))
            raise

    yield patch.object(BrokerDirs, "check", unforgiving)


def _a_folder_that_fails_ends_the_loop() -> Patches:
    def look(self: PartitionFolder) -> bool:
        before, listed = self.tail, self._look()
        self.tail = tail if (tail := self._tail()) != before else before
        return listed

    yield patch.object(PartitionFolder, "look", look)


FAULTS = {
    "an answer goes to the last question": Mutant(_answer_goes_to_the_last_question, replicated=False),
    "a disk that failed is forgotten": Mutant(_a_disk_that_failed_is_forgotten),
    "a folder that fails ends the loop": Mutant(_a_folder_that_fails_ends_the_loop),
    "the log end is the high watermark": Mutant(_log_end_is_the_high_watermark, replicated=True),
    "offsets always go first": Mutant(_offsets_always_go_first),
    "what the timers lost is not looked for": Mutant(_what_the_timers_lost_is_not_looked_for),
    "the poller ends at an error": Mutant(_the_poller_ends_at_an_error),
    "the scan finds nothing": Mutant(_the_scan_finds_nothing),
    "the index is shown once": Mutant(_the_index_is_shown_once),
    "a pack that failed counts as stored": Mutant(_a_pack_that_failed_counts_as_stored),
    "a leader packs unlisted": Mutant(_a_leader_packs_unlisted),
    "heads are not compared": Mutant(_heads_are_not_compared),
    "a damaged head is left alone": Mutant(_a_damaged_head_is_left_alone),
    "a damaged head is begun anew": Mutant(_a_damaged_head_is_begun_anew),
    "a head is not looked at while nothing is new": Mutant(_a_head_is_not_looked_at_while_nothing_is_new),
    "quiet tails are given to nobody": Mutant(_quiet_tails_are_given_to_nobody),
    "what cannot be packed is not sealed": Mutant(_what_cannot_be_packed_is_not_sealed, careless=True),
    "only what lies before the last batch is compared": Mutant(_only_what_lies_before_the_last_batch_is_compared),
    "what is not read yet is not packed": Mutant(_what_is_not_read_yet_is_not_packed, replicated=True),
    "all that is on the disk is packed": Mutant(_all_that_is_on_the_disk_is_packed, replicated=True),
    **RULES,
    **FETCH_FAULTS,
    **RESTORES,
}
"""What must be seen."""

LOSSES = {
    "inotify tells nothing": Mutant(_inotify_tells_nothing),
    "every third wake-up by another thread is lost": Mutant(_every_third_wake_up_is_lost),
    "every third timer is lost": Mutant(_every_third_timer_is_lost),
    "a job that failed is not looked at again": Mutant(_a_job_that_failed_is_not_looked_at_again),
    "a back-off that ends wakes nobody": Mutant(_a_back_off_that_ends_wakes_nobody),
    **FETCH_LOSSES,
}
"""What must do no harm: something else looks again, and in the time that the settings promise."""


@contextmanager
def planted(name: str | None) -> Iterator[Mutant | None]:
    """Plant one of :data:`FAULTS` or :data:`LOSSES`; none if there is no name."""
    with ExitStack() as stack:
        mutant = (FAULTS | LOSSES)[name] if name else None
        for one in mutant.patches() if mutant else ():
            stack.enter_context(one)
        yield mutant
