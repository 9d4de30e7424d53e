"""Rules of agents that fetch, switched off one by one: a spool is no broker's disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from tests.uploader_agent.simulation import schedule
from tests.uploader_agent.simulation.fetching import Brokers
from tests.uploader_agent.simulation.mutant import Mutant, Patches
from tidemark.formats.keys import TopicPartition
from tidemark.kafka_log import Lineage
from uploader_agent.broker.admin import AdminMetadata, Led, Offsets
from uploader_agent.intake import follower as follower_module
from uploader_agent.intake.fetching import FetchedPart, Wanted
from uploader_agent.intake.follower import FollowerState, PartitionFollower, StoredEnd
from uploader_agent.intake.metadata import SlotMetadata
from uploader_agent.intake.replica import SlotReplica
from uploader_agent.intake.spool import PartitionSpool
from uploader_agent.partitions.jobs import Observation


def _what_the_spool_lacks_is_lost() -> Patches:
    """As on a broker's disk; and a spool begins at the end of the leader's log, so that it lacks something."""
    yield from _a_spool_begins_at_the_log_end()
    yield patch.object(SlotReplica, "lost_below", lambda _self, end, _offsets: end)


def _a_spool_begins_at_the_log_end() -> Patches:
    """Above the end of the stored offsets."""
    yield patch.object(SlotReplica, "_stored_end", lambda *_: StoredEnd(1 << 40))


def _the_log_ends_where_the_spool_does() -> Patches:
    offsets = SlotMetadata.offsets

    def of_spool(self: SlotMetadata, led: Mapping[TopicPartition, Led]) -> dict[TopicPartition, Offsets]:
        return {tp: replace(found, log_end=None) for tp, found in offsets(self, led).items()}

    yield patch.object(SlotMetadata, "offsets", of_spool)


def _a_spool_shows_each_append() -> Patches:
    """What was stated is true as long as the spool does not grow."""
    yield patch.object(Observation, "is_stated", property(lambda _: False))


def _the_log_end_is_asked_for_last() -> Patches:
    """After the high watermark, of which nobody knows then whether it is at that end."""
    ends, offsets = AdminMetadata.log_ends, AdminMetadata.offsets_from
    before: dict[TopicPartition, Offsets] = {}

    def asked(self: AdminMetadata, broker: int, led: Mapping[TopicPartition, Led]) -> dict[TopicPartition, int]:
        before.update(offsets(self, broker, led))
        return {tp: end for tp, end in ends(self, broker, led).items() if tp in before}

    def told(_: AdminMetadata, _broker: int, led: Mapping[TopicPartition, Led]) -> dict[TopicPartition, Offsets]:
        return {tp: before[tp] for tp in led}

    yield patch.object(AdminMetadata, "log_ends", asked)
    yield patch.object(AdminMetadata, "offsets_from", told)


def _logs_are_cut_by_offset() -> Patches:
    """At the leader's log end, and not where the epochs diverge."""

    class Agreeing(Lineage):
        def divergence(self, other: Lineage, end: int | None = None) -> int | None:
            return None

    own: Any = PartitionFollower.known
    yield patch.object(PartitionFollower, "known", property(lambda self: Agreeing(own.fget(self).entries)))


def _topics_are_fetched_by_name() -> Patches:
    """Topics are often deleted, and made again."""
    yield patch.dict(schedule._FETCHING, {"delete": 20, "create": 20})
    yield patch.object(Brokers, "_is_of", lambda *_: True)


def _a_lineage_needs_no_proof() -> Patches:
    """It counts before the leader has answered for the topic id."""
    take = PartitionFollower.take_log

    def believed(self: PartitionFollower, leader: object, log: object, now: float) -> None:
        take(self, leader, log, now)  # type: ignore[arg-type]
        if self.state is FollowerState.PROVING and self.leader is not None:
            proof = Wanted(self.tp, self.topic_id, self.leader.broker, False, 0, 0, 0)
            self._prove(FetchedPart(proof, diverges=True))

    yield patch.object(PartitionFollower, "take_log", believed)


def _empty_segments_mark_nothing() -> Patches:
    yield patch.object(SlotReplica, "marks_gaps", False)


def _segments_tell_nothing_open() -> Patches:
    """Neither where the store tells it, nor where the spool has it."""
    yield patch.object(PartitionSpool, "_write_snapshot", lambda *_: None)


def _all_segments_but_the_last_are_dropped() -> Patches:
    """Whether ``offset.wm`` accounts for them or not; and nothing looks for what is lacking."""
    drop = PartitionSpool.drop_below
    yield patch.object(PartitionSpool, "drop_below", lambda self, _offset: drop(self, 1 << 62))
    yield patch.object(SlotReplica, "begin_again", lambda *_: None)


def _spools_are_never_begun_again() -> Patches:
    yield from _a_spool_begins_at_the_log_end()
    yield patch.object(SlotReplica, "begin_again", lambda *_: None)


def _a_full_spool_rests() -> Patches:
    """Even from elections; and all spools are small."""
    yield patch.object(schedule, "_fetching", lambda _rng: schedule.Fetching(1, 150, 800, 1000))
    yield patch.object(SlotReplica, "_rests", lambda self, follower: self._full or follower.ended)


def _deleted_topics_are_waited_for() -> Patches:
    yield patch.object(follower_module, "_DENIED_SECONDS", float("inf"))


def _a_spool_begins_where_the_log_does() -> Patches:
    """Below the end of the stored offsets."""
    yield patch.object(SlotReplica, "_stored_end", lambda *_: StoredEnd(0))


FETCH_FAULTS = {
    "what the spool lacks is lost": Mutant(_what_the_spool_lacks_is_lost, fetching=True),
    "a spool begins at the log end": Mutant(_a_spool_begins_at_the_log_end, fetching=True),
    "the log ends where the spool does": Mutant(_the_log_ends_where_the_spool_does, fetching=True),
    "a spool shows each append": Mutant(_a_spool_shows_each_append, fetching=True),
    "logs are cut by offset": Mutant(_logs_are_cut_by_offset, fetching=True, replicated=True, unclean=True),
    "topics are fetched by name": Mutant(_topics_are_fetched_by_name, fetching=True),
    "a lineage needs no proof": Mutant(_a_lineage_needs_no_proof, fetching=True),
    "empty segments mark nothing": Mutant(_empty_segments_mark_nothing, fetching=True, careless=True),
    "segments tell nothing open": Mutant(_segments_tell_nothing_open, fetching=True),
    "all segments but the last are dropped": Mutant(_all_segments_but_the_last_are_dropped, fetching=True),
    "spools are never begun again": Mutant(_spools_are_never_begun_again, fetching=True),
    "a full spool rests": Mutant(_a_full_spool_rests, fetching=True, replicated=True),
    "deleted topics are waited for": Mutant(_deleted_topics_are_waited_for, fetching=True),
}
"""What must be seen where agents fetch."""

FETCH_LOSSES = {
    "the log end is asked for last": Mutant(_the_log_end_is_asked_for_last, fetching=True, replicated=True),
    "a spool begins where the log does": Mutant(_a_spool_begins_where_the_log_does, fetching=True),
}
"""What must do no harm there: it is only fetched again."""
