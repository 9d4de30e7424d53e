"""A follower of a scripted cluster: the spool becomes the leader's log, whatever the brokers answer meanwhile."""

from __future__ import annotations

import errno
import itertools
import os
import random
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest

from tests.tidemark.kafka_log.build import empty, simple
from tests.uploader_agent.intake.scripted import (
    BROKERS,
    ID,
    TOPIC,
    ScriptedCluster,
    T,
    assert_follows,
    batches_in,
    header_of,
    lineage_in,
)
from tests.uploader_agent.intake.test_spool import WRITES, Killed, Killer
from tests.uploader_agent.intake.topic_copy import CopyRow, TopicCopy
from tidemark.errors import BrokerError, FormatError
from tidemark.formats.keys import TopicPartition
from tidemark.kafka_log import Lineage
from uploader_agent.broker.admin import BrokerUnavailable, Leader, Led
from uploader_agent.intake.fetching import FetchedPart, FrameTooLarge, PartitionRefused, Refusal, TopicLeaders, Wanted
from uploader_agent.intake.follower import FollowerState, PartitionFollower
from uploader_agent.intake.leader_logs import LeaderLog, LogAsked, leader_logs
from uploader_agent.intake.spool import PartitionSpool

ALL = ("cut", "twice", "lost", "damaged", "throttled", "evicted", "slow")


def copied(cluster: ScriptedCluster, root: Path, turns: int | None = None, *, follow: bool = False) -> CopyRow:
    """The partition's row after a copy, or after so many of its turns."""
    cluster.throttled_until.clear()
    with closing(TopicCopy(cluster, TOPIC, root, segment_bytes=500, follow=follow, clock=lambda: cluster.now)) as copy:
        counted = itertools.count()
        copy.run(lambda: turns is not None and next(counted) >= turns)
        return copy.rows()[0]


def learn(follower: PartitionFollower, topic: TopicLeaders | None, cluster: ScriptedCluster, now: float) -> None:
    """Have the follower hear of its topic, and ask a new leader for its log."""
    leader = follower.hear(topic, now)
    if leader is not None:
        asked = {follower.tp: LogAsked(leader, follower.known)}
        [log] = cluster.run(leader_logs(cluster, leader.broker, asked)).values()
        follower.take_log(leader, log, now)


def test_a_log_is_copied_and_continued(tmp_path: Path) -> None:
    cluster = ScriptedCluster().produce(30)
    row = copied(cluster, tmp_path)
    assert row == CopyRow(str(T), "copied", 0, cluster.log.end, cluster.log.end, row.bytes, 1, 0, None)
    assert row.bytes == sum(map(len, cluster.log.batches))
    assert_follows(tmp_path / str(T), cluster)
    asked, batches = len(cluster.asked), list(cluster.log.batches)
    cluster.produce(3)
    copied(cluster, tmp_path)
    assert_follows(tmp_path / str(T), cluster)
    last = header_of(batches[-1])
    assert cluster.asked[asked].offset == last.base_offset, "nothing is fetched twice but the last batch, to compare"
    assert all(wanted.offset >= last.next_offset for wanted in cluster.asked[asked + 1 :])


def test_an_empty_log_has_an_empty_segment(tmp_path: Path) -> None:
    assert copied(ScriptedCluster(), tmp_path).state == "copied"
    assert [path.name for path in (tmp_path / str(T)).glob("*.log")] == [f"{0:020d}.log"]


@pytest.mark.parametrize("fault", ALL)
def test_a_faulty_answer_costs_a_request_and_no_batch(tmp_path: Path, fault: str) -> None:
    cluster = ScriptedCluster().produce(40)
    cluster.mischief = {fault: 0.3}
    assert copied(cluster, tmp_path).state == "copied"
    assert_follows(tmp_path / str(T), cluster)


def test_partitions_take_turns_to_come_first(tmp_path: Path) -> None:
    """The first one of a request has room for a batch of any size."""
    cluster = ScriptedCluster(partitions=3).produce(40)
    with closing(TopicCopy(cluster, TOPIC, tmp_path, clock=lambda: cluster.now)) as copy:
        copy.run(lambda: False)
        assert {row.state for row in copy.rows()} == {"copied"}
    assert [wanted.tp.partition for wanted in cluster.asked_first[:6]] == [0, 1, 2, 0, 1, 2]


def test_batches_above_the_high_watermark_are_left(tmp_path: Path) -> None:
    cluster = ScriptedCluster().produce(5)
    high = cluster.log.end
    cluster.produce(5, commit=False)
    row = copied(cluster, tmp_path)
    assert (row.state, row.next_offset, row.high_watermark) == ("copied", high, high)
    assert_follows(tmp_path / str(T), cluster)


def test_a_batch_above_the_high_watermark_of_its_own_answer_is_not_taken(tmp_path: Path) -> None:
    """No broker sends one: its offset is damaged, which no checksum covers."""
    cluster = ScriptedCluster().produce(2)
    cluster.log.batches.append(simple(1000, leader_epoch=0))
    cluster.log.high_watermark = 2000
    send = cluster._part

    def lower(*args: object, **options: object) -> FetchedPart:
        return send(*args, **options)._replace(high_watermark=999)  # type: ignore[arg-type]

    cluster._part = lower  # type: ignore[method-assign]
    row = copied(cluster, tmp_path, 40)
    assert row.next_offset == cluster.log.end
    assert "reaches above the high watermark 999" in str(row.why)


def test_epochs_are_walked_down_to_the_log_start(tmp_path: Path) -> None:
    """Epochs without a batch are none; the answer below the first epoch repeats its start."""
    cluster = ScriptedCluster()
    for broker in (2, 3, 1, 2, 2, 1):
        cluster.produce(3)
        cluster.elect(broker)
        if broker == 3:
            cluster.elect(1)
    cluster.produce(2)
    copied(cluster, tmp_path)
    assert_follows(tmp_path / str(T), cluster)
    cluster.delete_below(cluster.log.lineage.entries[3][1] + 1)
    fresh = tmp_path / "fresh"
    copied(cluster, fresh)
    assert lineage_in(fresh / str(T)) == cluster.log.lineage
    assert_follows(fresh / str(T), cluster)


def test_a_broker_is_asked_once_an_epoch_for_all_its_partitions(tmp_path: Path) -> None:
    """Log starts, and then an epoch of each partition; a later walk ends at the epoch that the spool has."""
    cluster = ScriptedCluster(partitions=5)
    cluster.answer_bytes = 1 << 20
    for _ in range(1000):
        cluster.produce(commit=False)
        cluster.elect(1)
    cluster.produce()
    with closing(TopicCopy(cluster, TOPIC, tmp_path, clock=lambda: cluster.now)) as copy:
        copy.run(lambda: cluster.questions != [])
        assert cluster.questions == [5] * 1002, "the log starts, the log ends, and 1,000 starts of epochs"
    copied(cluster, tmp_path)
    for again in (False, True):
        cluster.elect(3 if again else 2)
        cluster.produce()
        cluster.questions.clear()
        copied(cluster, tmp_path)
        assert cluster.questions == [5] * 4
        assert_follows(tmp_path / str(T), cluster)


def test_a_lineage_is_walked_below_a_spool_that_begins_above_the_log_start(tmp_path: Path) -> None:
    """An unclean election may bring back a lower log start: the spool has the newest epochs alone."""
    cluster = ScriptedCluster()
    for broker in (2, 3, 1):
        cluster.produce(3)
        cluster.elect(broker)
    cluster.produce(3)
    cluster.log.delete_below(cluster.log.lineage.entries[2][1] + 1)
    copied(cluster, tmp_path)
    cluster.elect(2)
    cluster.produce()
    cluster.questions.clear()
    copied(cluster, tmp_path)
    assert len(cluster.questions) == 6
    assert lineage_in(tmp_path / str(T)) == cluster.log.lineage


def test_a_clean_election_keeps_the_spool(tmp_path: Path) -> None:
    cluster = ScriptedCluster().produce(10)
    copied(cluster, tmp_path)
    cluster.elect(2)
    cluster.produce(10)
    row = copied(cluster, tmp_path)
    assert (row.leader, row.leader_epoch) == (2, 1)
    assert_follows(tmp_path / str(T), cluster)


def diverged(cluster: ScriptedCluster, root: Path) -> None:
    """Broker 1 commits alone, and is copied; then broker 2, which lacks that, leads."""
    cluster.produce(10)
    cluster.produce(10, commit=False)
    cluster.commit(1)
    copied(cluster, root)
    cluster.elect(2)


@pytest.mark.parametrize("produced", [0, 3, 30])
def test_an_unclean_election_cuts_the_spool(tmp_path: Path, produced: int) -> None:
    cluster = ScriptedCluster()
    diverged(cluster, tmp_path)
    before = len(batches_in(tmp_path / str(T)))
    cluster.produce(produced, commit=False)
    cluster.commit(2, 3)
    copied(cluster, tmp_path)
    assert_follows(tmp_path / str(T), cluster)
    assert before == 20
    assert len(batches_in(tmp_path / str(T))) == 10 + produced


def test_an_unclean_election_while_it_follows(tmp_path: Path) -> None:
    """The leader fences the old epoch; a copy that has an end does not wait for offsets that are gone."""
    cluster = ScriptedCluster().produce(10)
    cluster.produce(30, commit=False)
    cluster.commit(1)
    with closing(TopicCopy(cluster, TOPIC, tmp_path, segment_bytes=500, clock=lambda: cluster.now)) as copy:
        counted = itertools.count()
        copy.run(lambda: next(counted) > 5)
        assert 0 < (copy.rows()[0].next_offset or 0) < cluster.log.end
        cluster.elect(3)
        cluster.commit(3)
        copy.run(lambda: False)
        assert copy.rows()[0].state == "copied"
    assert_follows(tmp_path / str(T), cluster)


def test_a_replica_that_has_not_truncated_is_not_believed(tmp_path: Path) -> None:
    """Broker 1 still has the dead branch, below its old high watermark, and is the near replica of the new leader."""
    cluster = ScriptedCluster().produce(10)
    cluster.produce(10, commit=False)
    cluster.commit(1)
    dead = cluster.log.batches[10:]
    cluster.elect(2)
    cluster.produce(4, commit=False)
    cluster.commit(2, 3)
    cluster.near = 1
    # It does not check the epoch of what comes before either, as before version 12 of Fetch.
    part = cluster._part

    def without_check(wanted: object, *, first: bool) -> FetchedPart:
        assert hasattr(wanted, "_replace")
        found = part(wanted._replace(last_epoch=-1), first=first)
        return found._replace(wanted=wanted)  # type: ignore[arg-type]

    cluster._part = without_check  # type: ignore[method-assign]
    assert copied(cluster, tmp_path).state == "copied"
    assert {wanted.broker for wanted in cluster.asked} == {1, 2}
    assert not set(dead) & set(batches_in(tmp_path / str(T)))
    assert_follows(tmp_path / str(T), cluster)


def test_a_near_replica_serves_and_one_that_lags_is_left(tmp_path: Path) -> None:
    cluster = ScriptedCluster().produce(20)
    cluster.near = 3
    assert copied(cluster, tmp_path).state == "copied"
    assert len([wanted for wanted in cluster.asked if wanted.broker == 3]) > 5
    cluster.produce(5, commit=False)
    cluster.commit(1, 2)
    cluster.asked.clear()
    copied(cluster, tmp_path)
    assert_follows(tmp_path / str(T), cluster)
    assert [wanted.near for wanted in cluster.asked if wanted.broker == 1][-1] is False, "the leader was read itself"


def test_partitions_with_and_without_a_near_replica_take_turns(tmp_path: Path) -> None:
    cluster = ScriptedCluster(partitions=30).produce(2)
    with closing(TopicCopy(cluster, TOPIC, tmp_path, follow=True, clock=lambda: cluster.now)) as copy:
        copy.fetcher.followers[TopicPartition(TOPIC, 7)]._shun_until = 1e9
        copy.run(lambda: len(cluster.asked_first) > 3)
    assert {wanted.tp.partition for wanted in cluster.asked if not wanted.near} == {7}


def test_a_request_without_news_is_repeated_without_a_look_at_its_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, looks = ScriptedCluster(partitions=30), list[TopicPartition]()
    real = PartitionFollower.wanted

    def wanted(self: PartitionFollower, now: float) -> Wanted | None:
        looks.append(self.tp)
        return real(self, now)

    monkeypatch.setattr(PartitionFollower, "wanted", wanted)
    cluster.produce(2)
    with closing(TopicCopy(cluster, TOPIC, tmp_path, follow=True, clock=lambda: cluster.now)) as copy:
        copy.run(lambda: cluster.now > 2)
        cluster.asked_first.clear()
        looks.clear()
        copy.run(lambda: cluster.now > 22)
        assert len(cluster.asked_first) > 190
        assert len(looks) <= 30 * 2
        cluster.produce(1)
        copy.run(lambda: cluster.now > 23)
        assert {follower.spool.end for follower in copy.fetcher.line} == {cluster.log.end}
        looks.clear()
        copy.run(lambda: cluster.now > 62)
        assert not looks, "who leads was asked twice since, and stays so"
        copy.fetcher.followers[TopicPartition(TOPIC, 7)]._shun_until = 1e9
        copy.fetcher.unasked = True
        cluster.asked.clear()
        copy.run(lambda: cluster.now > 63)
        assert {wanted.near for wanted in cluster.asked} == {True, False}, "both kinds still take turns"


def test_a_near_replica_that_stands_still_is_left(tmp_path: Path) -> None:
    cluster = ScriptedCluster().produce(20)
    cluster.near = 3
    with closing(TopicCopy(cluster, TOPIC, tmp_path, follow=True, clock=lambda: cluster.now)) as copy:
        copy.run(lambda: cluster.now > 60)
        cluster.produce(5, commit=False)
        cluster.commit(1, 2)
        copy.run(lambda: cluster.now > 80)
    assert_follows(tmp_path / str(T), cluster)


def test_a_near_replica_that_is_down_is_left(tmp_path: Path) -> None:
    cluster = ScriptedCluster().produce(20)
    cluster.near = 3
    cluster.down = {3}
    assert copied(cluster, tmp_path).state == "copied"
    assert_follows(tmp_path / str(T), cluster)


def test_retention_that_passes_the_copy_leaves_a_range_out(tmp_path: Path) -> None:
    cluster = ScriptedCluster().produce(10)
    before = copied(cluster, tmp_path).next_offset or 0
    kept = batches_in(tmp_path / str(T))
    cluster.produce(20)
    cluster.delete_below(before + 20)
    copied(cluster, tmp_path)
    found = batches_in(tmp_path / str(T))
    assert found[: len(kept)] == kept, "the batches below the log start were committed, and stay"
    assert lineage_in(tmp_path / str(T)) == Lineage(((0, 0),)), "and so does their epoch"
    assert_follows(tmp_path / str(T), cluster)


def test_retention_that_passes_a_copy_that_runs(tmp_path: Path) -> None:
    cluster = ScriptedCluster().produce(40)
    with closing(TopicCopy(cluster, TOPIC, tmp_path, segment_bytes=500, clock=lambda: cluster.now)) as copy:
        counted = itertools.count()
        copy.run(lambda: next(counted) > 5)
        reached = copy.rows()[0].next_offset or 0
        cluster.delete_below(reached + 20)
        copy.run(lambda: False)
        assert copy.rows()[0].state == "copied"
    assert_follows(tmp_path / str(T), cluster)


@pytest.mark.parametrize("first_known", [2, 3])
def test_a_leader_that_has_lost_a_log_start_with_its_epochs(tmp_path: Path, first_known: int) -> None:
    """DeleteRecords has moved both; a crash before the checkpoint of log starts gives batches back, and no epochs."""
    cluster = ScriptedCluster()
    for broker in (2, 3, 1, 2):
        cluster.produce(5)
        cluster.elect(broker)
    cluster.produce(5)
    whole = cluster.log.lineage.entries
    start = header_of(cluster.log.batches[first_known * 5 + 1]).base_offset
    for replica in cluster.replicas.values():
        replica.lineage = Lineage(((first_known, start), *whole[first_known + 1 :]))
    assert copied(cluster, tmp_path).state == "copied"
    assert batches_in(tmp_path / str(T)) == cluster.log.batches
    assert lineage_in(tmp_path / str(T)).entries == whole
    cluster.elect(1)
    cluster.produce(1)
    assert copied(cluster, tmp_path).state == "copied"
    assert batches_in(tmp_path / str(T)) == cluster.log.batches
    assert lineage_in(tmp_path / str(T)).entries == (*whole, cluster.log.lineage.entries[-1])


def test_epochs_that_a_leader_does_not_state_must_rise(tmp_path: Path) -> None:
    cluster = ScriptedCluster()
    cluster.log.lineage = Lineage(((5, 6),))
    for base, epoch in ((0, 2), (3, 1), (6, 5)):
        cluster.log.append(simple(base, 3, leader_epoch=epoch))
    cluster.epoch = 5
    cluster.log.high_watermark = cluster.log.end
    row = copied(cluster, tmp_path, 40)
    assert row.next_offset == 3
    assert "epoch 2 from 0 cannot follow 1 from 3" in str(row.why)


def test_a_topic_that_is_made_again_ends_its_copy(tmp_path: Path) -> None:
    cluster = ScriptedCluster().produce(10)
    with closing(TopicCopy(cluster, TOPIC, tmp_path, follow=True, clock=lambda: cluster.now)) as copy:
        counted = itertools.count()
        copy.run(lambda: next(counted) > 30)
        kept = batches_in(tmp_path / str(T))
        assert len(kept) == 10
        cluster.make_again()
        cluster.produce(3)
        copy.run(lambda: False)
        [row] = copy.rows()
    assert row.state == "over"
    assert "was deleted, or made again" in str(row.why)
    assert batches_in(tmp_path / str(T)) == kept
    with pytest.raises(FormatError, match="made again; move the directory away"):
        copied(cluster, tmp_path)


def test_a_lineage_of_a_topic_that_is_made_again_cuts_nothing(tmp_path: Path) -> None:
    """Questions about epochs name the topic: they are answered for the successor, under the same epoch 0."""
    cluster = ScriptedCluster().produce(10)
    copied(cluster, tmp_path)
    kept = batches_in(tmp_path / str(T))
    asked, start = cluster.log_starts, lineage_in(tmp_path / str(T))

    async def made_again(*args: object) -> object:
        cluster.make_again()
        cluster.produce(2)
        return await asked(*args)  # type: ignore[arg-type]

    cluster.log_starts = made_again  # type: ignore[method-assign, assignment]
    assert copied(cluster, tmp_path).state == "over"
    assert batches_in(tmp_path / str(T)) == kept
    assert lineage_in(tmp_path / str(T)) == start


def test_a_broker_that_has_not_heard_of_the_topic_ends_nothing(tmp_path: Path) -> None:
    """Metadata from a broker that is behind, while the leader answers."""
    cluster = ScriptedCluster().produce(20)
    topic, counted = cluster.topic, itertools.count()
    cluster.topic = lambda name: None if next(counted) in {1, 2, 3} else topic(name)  # type: ignore[method-assign]
    assert copied(cluster, tmp_path).state == "copied"
    assert_follows(tmp_path / str(T), cluster)


def test_a_leader_that_is_behind_is_waited_for(tmp_path: Path) -> None:
    """It knows neither the topic id nor the epoch yet: three times each, and then it answers."""
    cluster = ScriptedCluster().produce(20)
    part, counted = cluster._part, itertools.count()

    def behind(*args: object, **options: object) -> FetchedPart:
        found = part(*args, **options)  # type: ignore[arg-type]
        number = next(counted)
        if number >= 6:
            return found
        refusal = Refusal.TOPIC if number < 3 else Refusal.LATER
        return FetchedPart(found.wanted, refused=PartitionRefused(T, refusal, "behind"))

    cluster._part = behind  # type: ignore[method-assign]
    assert copied(cluster, tmp_path).state == "copied"
    assert next(counted) > 6


def test_errors_name_partition_rule_and_remedy(tmp_path: Path) -> None:
    cluster = ScriptedCluster().produce(3)
    cluster.exists = False
    with pytest.raises(BrokerError, match="orders: there is no such topic, or this user lacks DESCRIBE"):
        copied(cluster, tmp_path)
    cluster.exists = True
    part = cluster._part
    cluster._part = lambda wanted, **_: FetchedPart(  # type: ignore[method-assign]
        wanted, refused=PartitionRefused(T, Refusal.RIGHT, "TOPIC_AUTHORIZATION_FAILED")
    )
    row = copied(cluster, tmp_path)
    assert row.state == "stopped"
    assert row.why == "orders-0: the right READ is missing: give it to this user on the topic"
    cluster._part = part  # type: ignore[method-assign]
    cluster.mischief = {"damaged": 1.0}
    why = copied(cluster, tmp_path).why or ""
    assert "the leader sent damage 5 times: orders-0 from broker 1: at byte 0, offset 0: the checksum is not" in why
    assert "look at that broker's disk" in why
    cluster.mischief, cluster.down = {}, {*BROKERS}
    with pytest.raises(BrokerUnavailable, match="is down"):
        copied(cluster, tmp_path)


def test_a_copy_with_an_end_gives_up_on_brokers_that_stay_away(tmp_path: Path) -> None:
    cluster = ScriptedCluster().produce(3)
    cluster.mischief = {"lost": 1.0}
    with pytest.raises(BrokerUnavailable, match="orders-0: no batch came for 60 s: lost on the way"):
        copied(cluster, tmp_path)


def test_an_answer_beyond_the_limit_stops_its_partition(tmp_path: Path) -> None:
    cluster = ScriptedCluster().produce(3)
    answers = cluster.answers
    error = FrameTooLarge(T, 0, 200, 100)
    cluster.answers = lambda seconds: [  # type: ignore[method-assign]
        answer._replace(parts=[], error=error) for answer in answers(seconds)
    ]
    row = copied(cluster, tmp_path)
    assert row.state == "stopped"
    assert row.why == (
        "orders-0: the answer from offset 0 on has 200 bytes, and at most 100 are accepted: "
        "a batch there is larger than the largest message that was expected; raise fetch.largest_message"
    )


def test_an_answer_of_zeros_is_damage(tmp_path: Path) -> None:
    cluster = ScriptedCluster().produce(3)
    cluster._records = lambda *_, **__: bytes(300)  # type: ignore[method-assign]
    row = copied(cluster, tmp_path)
    assert "the answer from offset 0 on has no whole batch" in str(row.why)


def test_a_log_whose_last_batches_were_compacted_away_ends(tmp_path: Path) -> None:
    cluster = ScriptedCluster().produce(10)
    cluster.log.batches = cluster.log.batches[:7]
    row = copied(cluster, tmp_path)
    assert row.state == "copied"
    assert (row.next_offset or 0) < (row.high_watermark or 0)


def test_a_leader_whose_log_is_shorter_cuts_the_spool(tmp_path: Path) -> None:
    """Under the same epoch, as no broker of today does it."""
    cluster = ScriptedCluster().produce(10)
    copied(cluster, tmp_path)
    cut = header_of(cluster.log.batches[6]).base_offset
    for replica in cluster.replicas.values():
        replica.truncate(cut)
    copied(cluster, tmp_path)
    assert_follows(tmp_path / str(T), cluster)
    assert len(batches_in(tmp_path / str(T))) == 6


def test_a_range_that_was_left_out_is_fetched_if_the_log_is_cut_within_it(tmp_path: Path) -> None:
    """Retention had moved the start of one replica alone; the one that is elected uncleanly still has the range."""
    cluster = ScriptedCluster().produce(10)
    copied(cluster, tmp_path)
    cluster.produce(10)
    cluster.produce(10, commit=False)
    cluster.log.delete_below(cluster.log.end)
    cluster.produce(5, commit=False)
    cluster.commit(1)
    copied(cluster, tmp_path)
    cluster.elect(2)
    cluster.produce(3, commit=False)
    cluster.commit(2)
    copied(cluster, tmp_path)
    assert len(batches_in(tmp_path / str(T))) == 23
    assert_follows(tmp_path / str(T), cluster)


def test_a_batch_that_overlaps_the_spool_is_not_taken(tmp_path: Path) -> None:
    cluster = ScriptedCluster().produce(3)
    end = cluster.log.end
    with closing(TopicCopy(cluster, TOPIC, tmp_path, follow=True, clock=lambda: cluster.now)) as copy:
        copy.run(lambda: copy.rows()[0].next_offset == end)
        cluster.log.batches[:] = [simple(end - 1, 4, leader_epoch=0)]
        cluster.log.end = cluster.log.high_watermark = end + 3
        copy.run(lambda: bool(copy.rows()[0].why))
        [row] = copy.rows()
    assert row.next_offset == end
    assert f"overlaps what is already there, up to {end}" in str(row.why)


def restored(cluster: ScriptedCluster) -> None:
    """Give all replicas other batches at the same offsets, under the same epochs."""
    for broker in BROKERS:
        replica = cluster.replicas[broker]
        headers = [header_of(raw) for raw in replica.batches]
        replica.batches = [
            simple(header.base_offset, header.record_count, leader_epoch=header.leader_epoch, producer_id=77)
            for header in headers
        ]


@pytest.mark.parametrize("elected", [False, True])
def test_another_log_with_the_same_offsets_and_epochs_is_refused(tmp_path: Path, *, elected: bool) -> None:
    """As after a restore of the brokers from a backup, and new records: at a start and at an election."""
    cluster = ScriptedCluster().produce(20)
    with closing(TopicCopy(cluster, TOPIC, tmp_path, follow=True, clock=lambda: cluster.now)) as copy:
        copy.run(lambda: copy.rows()[0].next_offset == cluster.log.end)
        kept = batches_in(tmp_path / str(T))
        restored(cluster)
        cluster.produce(5)
        if elected:
            cluster.elect(2)
            copy.run(lambda: copy.rows()[0].state == "stopped")
    row = copied(cluster, tmp_path, 20)
    assert row.state == "stopped"
    last = header_of(kept[-1])
    assert f"the leader has a batch at {last.base_offset} under epoch 0 with CRC" in str(row.why)
    assert "another log has this topic's id" in str(row.why)
    assert batches_in(tmp_path / str(T)) == kept


def test_what_compaction_has_left_of_the_last_batch_is_the_same_log(tmp_path: Path) -> None:
    """It removes records and batches, and keeps the base offsets of those that are left."""
    for left in ([], [0], [1], [0, 1]):
        cluster, root = ScriptedCluster(), tmp_path / str(left)
        cluster.produce(10)
        copied(cluster, root)
        *others, last = cluster.log.batches
        header = header_of(last)
        rewritten = [empty(header.base_offset, header.last_offset_delta, leader_epoch=0)]
        for broker in BROKERS:
            cluster.replicas[broker].batches = [*(others if 0 in left else []), *(rewritten if 1 in left else [])]
        cluster.produce(3)
        assert copied(cluster, root).state == "copied"
        assert batches_in(root / str(T))[-3:] == cluster.log.batches[-3:]


def test_news_of_an_older_leadership_and_late_answers_count_for_nothing(tmp_path: Path) -> None:
    """A deposed leader still answers under its epoch."""
    cluster = ScriptedCluster().produce(3)
    old = cluster.topic(TOPIC)
    with closing(PartitionSpool(tmp_path, T, ID, 1000)) as spool:
        follower = PartitionFollower(T, ID, spool)
        learn(follower, old, cluster, 0.0)
        before = follower.wanted(0.0)
        assert before is not None
        cluster.elect(2)
        learn(follower, cluster.topic(TOPIC), cluster, 1.0)
        assert follower.state is FollowerState.PROVING
        follower.take(FetchedPart(before, high_watermark=999), 1.0)
        assert (follower.state, follower.high_watermark) == (FollowerState.PROVING, None)
        follower.unanswered(BrokerUnavailable("gone"), 1.0)
        late = follower.hear(cluster.topic(TOPIC), 2.0)
        assert late is not None
        cluster.elect(3)
        learn(follower, cluster.topic(TOPIC), cluster, 2.0)
        follower.take_log(late, LeaderLog(0, 999, Lineage(((0, 0), (1, 5)))), 2.0)
        assert (follower.leader, follower.log_end) == (Leader(3, Led(2, ID), BROKERS), cluster.log.end)
        follower.unanswered(BrokerUnavailable("gone"), 2.0)
        cluster.leader, cluster.epoch = 1, 0
        learn(follower, old, cluster, 3.0)
        assert (follower.state, follower.leader and follower.leader.broker) == (FollowerState.WAITING, 3)


def test_a_disk_that_is_full_at_any_write_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy begins, and goes on after an unclean election; each time a call that needs room fails, as do the next."""
    calls: dict[str, Callable[..., object]] = {name: getattr(os, name) for name in WRITES}
    for last in itertools.count():
        cluster, root, errors = ScriptedCluster(last), tmp_path / str(last), list[OSError]()
        cluster.produce(6)
        cluster.produce(6, commit=False)
        cluster.commit(1)
        for broker in (1, 2):
            if broker != cluster.leader:
                cluster.elect(broker)
                cluster.produce(8)
            killer = Killer(last, full=True)
            with monkeypatch.context() as patch:
                for name, call in calls.items():
                    patch.setattr(os, name, killer.around(name, call))
                try:
                    copied(cluster, root)
                except OSError as error:
                    errors.append(error)
        for refused in errors:
            assert (refused.errno, refused.filename) == (errno.ENOSPC, str(root / str(T)))
            assert "the spool cannot be written: No space left on device" in str(refused)
        assert copied(cluster, root).state == "copied"
        assert_follows(root / str(T), cluster)
        if not errors:
            break
    assert last > 20


def misfortune(cluster: ScriptedCluster, rng: random.Random) -> None:
    """Something that may happen to a cluster."""
    match rng.randrange(9):
        case 0 | 1 | 2:
            cluster.produce(rng.randint(1, 6))
        case 3:
            cluster.produce(rng.randint(1, 4), commit=False)
            cluster.commit(cluster.leader)
        case 4:
            in_sync = [broker for broker in BROKERS if cluster.replicas[broker].end >= cluster.log.high_watermark]
            cluster.elect(rng.choice(in_sync))
        case 5:
            broker = rng.choice(BROKERS)
            cluster.elect(broker)
            cluster.log.high_watermark = min(cluster.log.high_watermark, cluster.log.end)
        case 6:
            cluster.delete_below(rng.randint(cluster.log.start, cluster.log.high_watermark))
        case 7:
            cluster.near = rng.choice((None, *BROKERS))
        case 8:
            cluster.down = set(rng.sample(BROKERS, rng.randint(0, 1)))


def test_a_mute_broker_holds_up_no_other(tmp_path: Path) -> None:
    """It leads a partition, and accepts questions and requests without an answer."""
    cluster = ScriptedCluster(partitions=2)
    cluster.leaders[0] = 3
    cluster.mute = {3}
    with closing(TopicCopy(cluster, TOPIC, tmp_path, follow=True, clock=lambda: cluster.now)) as copy:
        for until in (2.0, 4.0, 40.0, 42.0):
            cluster.produce(5)
            copy.run(lambda until=until: cluster.now >= until)  # type: ignore[misc]
            mute, other = copy.rows()
            assert (mute.state, mute.next_offset, other.next_offset) == ("waiting", None, cluster.log.end)
        assert copy.rows()[0].why == "broker 3 does not answer"
        cluster.mute = set()
        copy.run(lambda: copy.rows()[0].next_offset == cluster.log.end)
        cluster.mute = {3}
        for _ in range(3):
            cluster.produce(5)
            until = cluster.now + 2
            copy.run(lambda until=until: cluster.now >= until)  # type: ignore[misc]
            assert copy.rows()[1].next_offset == cluster.log.end


@pytest.mark.parametrize("case", range(10))
def test_random_misfortunes_while_questions_are_on_their_way(tmp_path: Path, seed: int, case: int) -> None:
    """One copy goes on through elections, retention and faults, of which answers may know or not."""
    rng = random.Random(f"{seed}:{case}:amid")
    cluster = ScriptedCluster(rng.randrange(1 << 30))
    following = TopicCopy(cluster, TOPIC, tmp_path, segment_bytes=500, follow=True, clock=lambda: cluster.now)
    with closing(following) as copy:
        for _ in range(60):
            misfortune(cluster, rng)
            cluster.mute = set(rng.sample(BROKERS, rng.randint(0, 1)))
            cluster.mischief = {"slow": 0.5} | {fault: rng.choice((0.0, 0.0, 0.2)) for fault in ALL}
            counted, turns = itertools.count(), rng.randint(1, 6)
            copy.run(lambda counted=counted, turns=turns: next(counted) >= turns)  # type: ignore[misc]
        cluster.mischief, cluster.down, cluster.mute = {}, set(), set()
        cluster.commit()
        until = cluster.now + 300
        copy.run(lambda: copy.rows()[0].next_offset == cluster.log.end or cluster.now > until)
        copy.run(lambda end=cluster.now + 5: cluster.now > end)  # type: ignore[misc]
    assert_follows(tmp_path / str(T), cluster)


@pytest.mark.parametrize("case", range(40))
def test_random_misfortunes(tmp_path: Path, seed: int, case: int, monkeypatch: pytest.MonkeyPatch, full: bool) -> None:
    """Elections, clean and unclean, retention, replicas that have not truncated, bad answers, kills; then peace."""
    through_misfortunes(tmp_path, random.Random(f"{seed}:{case}"), monkeypatch, 60 if full else 15)


def test_a_log_start_within_a_batch_of_a_later_epoch_than_the_spool_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader states no epochs below its log start, so that the spool's dead end is seen by that batch alone."""
    through_misfortunes(tmp_path, random.Random("413306165:22"), monkeypatch, 15)


def through_misfortunes(tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch, rounds: int) -> None:
    """Copy in ``rounds`` among misfortunes, and then without; the copy is the leader's log."""
    cluster = ScriptedCluster(rng.randrange(1 << 30))
    calls: dict[str, Callable[..., object]] = {name: getattr(os, name) for name in WRITES}
    for _ in range(rounds):
        for _ in range(rng.randint(0, 3)):
            misfortune(cluster, rng)
        cluster.mischief = {fault: rng.choice((0.0, 0.0, 0.2)) for fault in ALL}
        killer = Killer(rng.choice((1000, rng.randint(0, 12))))
        with monkeypatch.context() as patch:
            for name, call in calls.items():
                patch.setattr(os, name, killer.around(name, call))
            with suppress(Killed, BrokerUnavailable):
                copied(cluster, tmp_path, rng.randint(1, 12))
    cluster.mischief, cluster.down = {}, set()
    cluster.commit()
    assert copied(cluster, tmp_path).state == "copied"
    assert_follows(tmp_path / str(T), cluster)


def test_the_epoch_of_a_compacted_replica_begins_above_the_log_start() -> None:
    """A replica that copied a compacted log knows an epoch only from its first batch that is left."""
    cluster = ScriptedCluster().produce(4)
    cluster.log.lineage = Lineage(((2, 5),))
    cluster.epoch = 2
    topic = cluster.topic(TOPIC)
    assert topic is not None
    [log] = cluster.run(leader_logs(cluster, 1, {T: LogAsked(topic.leaders[0], Lineage())})).values()
    assert log == LeaderLog(0, cluster.log.end, Lineage(((2, 5),)))
