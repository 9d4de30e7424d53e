"""Which answer of the broker counts for what, and what follows from a high watermark below the log end."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from itertools import pairwise

import pytest

from tests.support.ledgers import landed
from tests.support.waiting import wait_until
from tests.tidemark.planning.test_date_finality import DT, DUE, topic
from tests.uploader_agent.fakes import ID, OTHER_ID, FakeMetadata, T, World, records
from tests.uploader_agent.test_run import NEVER, running, stored_is
from tests.uploader_agent.tested_agent import TestedAgent
from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.watermark_index import IndexEntry, WatermarkIndex
from tidemark.formats.table.ledger import DateState, Ledger
from tidemark.kafka_log import BatchHeader
from tidemark.planning.date_finality import closing
from tidemark.timestamps import utc_now
from uploader_agent.broker.admin import BrokerUnavailable, Leader, Led, Offsets
from uploader_agent.disk.segment_files import ActiveReader
from uploader_agent.disk.watcher import Watcher
from uploader_agent.partitions.jobs import QUESTION_BACKOFF
from uploader_agent.partitions.led_partition import LedPartition
from uploader_agent.partitions.poller import LeadersAnswer, OffsetsAnswer, Poller, Question

SOON = timedelta(seconds=1)


def led(agent: TestedAgent) -> LedPartition:
    """The one partition, which the broker has said to be led, and whose offsets nobody has asked for yet."""
    agent.leadership.look_at_disks()
    agent.leadership.learn(LeadersAnswer(utc_now(), 0.0, {T: Leader(1, agent_leads(agent))}, {}))
    partition = agent.leadership.partitions[T]
    partition.look()
    return partition


def is_outdated(partition: LedPartition) -> bool:
    """As a call, so that the type checker expects another answer each time."""
    return partition.outdated


def agent_leads(agent: TestedAgent) -> Led:
    return agent.poller._metadata.leaders([T])[T].led


def ask(agent: TestedAgent) -> Mapping[TopicPartition, Question]:
    return agent.leadership.ask([T])


def answered(
    questions: Mapping[TopicPartition, Question], high_watermark: int, asked_at: datetime | None = None
) -> OffsetsAnswer:
    """What the poller makes of an answer that arrives now."""
    [question] = questions.values()
    active = question.partition.read_active()
    asked = {T: question}
    return OffsetsAnswer(asked_at or utc_now(), asked, {T: Offsets(high_watermark, high_watermark, 0)}, {T: active})


def index_entry(world: World) -> IndexEntry:
    key = world.control.index(1)
    [entry] = WatermarkIndex.from_bytes(world.store.inner.get(key).body, key).entries
    return entry


def test_an_answer_counts_for_the_tail_that_was_seen_before_its_question(world: World) -> None:
    """As in a demo that never settled: the answer to the first question was taken for that to the second one."""
    disk = world.disk.partition().fill(0, end=590)
    with world.agent() as agent:
        partition = led(agent)
        first = ask(agent)
        disk.segment(590, records(590, 600))
        partition.look()
        second = ask(agent)
        late = answered(first, 598)
        assert agent.leadership.observe(late) == {T}
        assert partition.outdated, "the disk shows more than when that was asked"
        assert agent.leadership.observe(answered(second, 600)) == {T}
        assert partition.offsets == Offsets(600, 600, 0)
        assert not partition.outdated


def test_what_was_appended_after_the_answer_and_before_it_was_taken_is_asked_for(world: World) -> None:
    """The answer tells of all that was there when it was given; a look has shown more since."""
    disk = world.disk.partition().segment(0, records(0, 590))
    with world.agent() as agent:
        partition = led(agent)
        answer = answered(ask(agent), 590)
        disk.segment(0, records(0, 600))
        partition.look()
        agent.leadership.observe(answer)
        assert partition.outdated


def test_late_and_repeated_answers_are_dropped(world: World) -> None:
    world.disk.partition().segment(0, records(0, 50))
    with world.agent() as agent:
        partition = led(agent)
        first, second, third = (ask(agent) for _ in range(3))
        assert agent.leadership.observe(answered(second, 50)) == {T}
        before = partition.observation
        assert agent.leadership.observe(answered(first, 20)) == set()
        assert agent.leadership.observe(answered(second, 30)) == set()
        assert partition.observation is before
        error = OffsetsAnswer(utc_now(), {T: third[T]}, error=BrokerUnavailable("told so"))
        agent.leadership.observe(error)
        assert agent.leadership.observe(answered(third, 50)) == set(), "nothing else is known by it"
        assert partition.observation is not before, "but since when"


def test_answers_about_another_leadership_are_dropped(world: World) -> None:
    world.disk.partition().segment(0, records(0, 50))
    with world.agent() as agent:
        former = led(agent)
        question = ask(agent)
        world.metadata.leads = {T: Led(4, ID)}
        partition = led(agent)
        assert partition is not former
        assert agent.leadership.observe(answered(question, 50)) == set()
        assert partition.offsets is None
        agent.leadership.learn(LeadersAnswer(utc_now(), 0.0, {}, {}))
        assert agent.leadership.observe(answered(question, 50)) == set(), "it is not led any more"


@pytest.mark.parametrize("epoch", [0, 3, 9])
def test_an_answer_about_a_deleted_topic_is_not_believed_for_its_re_creation(world: World, epoch: int) -> None:
    """Any broker may answer who leads, and one that lags behind still knows the topic that was deleted."""
    former = world.disk.partition().fill(0, end=100)
    world.metadata.leads = {T: Led(epoch, ID)}
    with world.agent() as agent:
        led(agent)
        said_before = answered(ask(agent), 100)
        former.folder.rename(former.folder.with_name("orders-0.f00-delete"))
        world.disk.partition(topic_id=OTHER_ID).segment(0, records(0, 10, epoch=0))
        world.metadata.leads = {T: Led(0, OTHER_ID)}
        partition = led(agent)
        late = LeadersAnswer(utc_now(), 0.0, {T: Leader(1, Led(epoch, ID))}, {})
        assert agent.leadership.learn(late) == set()
        assert agent.leadership.partitions == {T: partition}
        elsewhere = LeadersAnswer(utc_now(), 0.0, {T: Leader(2, Led(epoch, ID))}, {})
        assert agent.leadership.learn(elsewhere) == set(), "nor that another broker led it"
        assert agent.leadership.observe(said_before) == set()
        assert partition.offsets is None


def test_a_broker_that_lags_at_the_start_is_corrected(world: World) -> None:
    """What was said first is not taken for the later one because it was said first."""
    world.disk.partition(topic_id=OTHER_ID).segment(0, records(0, 10, epoch=0))
    now, past = Leader(1, Led(0, OTHER_ID)), Leader(1, Led(7, ID))
    with world.agent() as agent:
        agent.leadership.look_at_disks()
        for said in (now, past, now, past):
            agent.leadership.learn(LeadersAnswer(utc_now(), 0.0, {T: said}, {}))
        assert agent.leadership.partitions[T].led == now.led


class SlowMetadata:
    """Answers each question for offsets with what ``high`` says, after ``appended`` has happened."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.appended: Callable[[], object] = lambda: None
        self.real = world.metadata.offsets
        world.metadata.offsets = self.offsets  # type: ignore[method-assign]

    def offsets(self, led: Mapping[TopicPartition, Led]) -> dict[TopicPartition, Offsets]:
        found = self.real(led)
        self.appended()
        return found


def test_the_log_end_is_read_after_the_high_watermark(world: World) -> None:
    """What is appended while the broker answers is seen, and the high watermark asked for again."""
    disk = world.disk.partition().segment(0, records(0, 590))
    world.metadata.default_high = 590
    slow = SlowMetadata(world)
    slow.appended = lambda: disk.segment(0, records(0, 600))
    with world.agent() as agent:
        agent.refresh()
        partition = agent.leadership.partitions[T]
        assert partition.observation is not None
        assert (partition.observation.offsets.high_watermark, partition.observation.log_end) == (590, 600)
        assert partition.outdated


@pytest.mark.parametrize("high_watermark", [0, 598, 599])
def test_a_high_watermark_below_the_log_end_is_outdated_until_it_has_come_there(
    world: World, high_watermark: int
) -> None:
    world.disk.partition().segment(0, records(0, 600))
    with world.agent() as agent:
        partition = led(agent)
        for high in (high_watermark, high_watermark, 600):
            assert is_outdated(partition)
            agent.leadership.observe(answered(ask(agent), high))
        assert not is_outdated(partition)


def test_a_log_end_that_cannot_be_read_is_not_taken_for_the_high_watermark(world: World) -> None:
    """A batch that is being written, or a directory that is gone."""
    disk = world.disk.partition().segment(0, records(0, 50) + records(50, 60)[:30])
    with world.agent() as agent:
        partition = led(agent)
        agent.leadership.observe(answered(ask(agent), 50))
        assert is_outdated(partition)
        disk.segment(0, records(0, 60))
        partition.look()
        agent.leadership.observe(answered(ask(agent), 60))
        assert not is_outdated(partition)
        disk.folder.rename(disk.folder.with_name("gone"))
        partition.look()
        assert is_outdated(partition)


def test_what_was_appended_costs_what_was_appended(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second look at a long segment reads its end alone."""
    disk, taken = world.disk.partition(), [0]
    real = ActiveReader._take

    def take(self: ActiveReader, header: BatchHeader) -> None:
        taken[0] += 1
        real(self, header)

    monkeypatch.setattr(ActiveReader, "_take", take)
    disk.segment(0, records(0, 10_000))
    with world.agent() as agent:
        partition = led(agent)
        partition.read_active()
        taken[0] = 0
        partition.read_active()
        assert taken[0] == 0
        disk.segment(0, records(0, 10_020))
        partition.read_active()
        assert taken[0] == 2


def test_a_tail_goes_when_followers_fetch_after_the_only_look_at_the_last_append(world: World) -> None:
    """No scan, no poll, no event and no timer: the answer below the log end alone makes the agent ask again."""
    world.disk.partition().segment(0, records(0, 600))
    world.metadata.default_high = 0
    with running(world, Watcher(), scan_interval=NEVER, metadata_interval=NEVER, tail_after="0s") as agent:
        wait_until(lambda: _pause(agent) > 2 * QUESTION_BACKOFF.first, what="several answers in vain")
        world.metadata.default_high = 600
        world.store.await_put(lambda: stored_is(world, 600))


def _pause(agent: TestedAgent) -> float:
    found = agent.leadership.partitions.get(T)
    return found.question_pause if found else 0.0


def test_followers_that_are_down_cost_ever_fewer_questions(world: World) -> None:
    world.disk.partition().fill(0, end=600)
    with world.agent() as agent:
        partition = led(agent)
        pauses = []
        for _ in range(12):
            agent.leadership.observe(answered(ask(agent), 590))
            pauses.append(partition.question_pause)
        assert pauses[0] == QUESTION_BACKOFF.first
        assert all(later >= earlier for earlier, later in pairwise(pauses))
        assert pauses[-1] == QUESTION_BACKOFF.longest
        agent.leadership.observe(answered(ask(agent), 595))
        assert partition.question_pause == QUESTION_BACKOFF.first, "they have come back, and a segment waits for them"


def test_a_partition_that_is_always_written_to_is_not_asked_for_at_the_first_pace(world: World) -> None:
    """Its high watermark moves with each answer and is always behind, yet nothing waits for it."""
    disk = world.disk.partition()
    with world.agent() as agent:
        disk.segment(0, records(0, 10))
        partition = led(agent)
        for end in range(20, 200, 10):
            disk.segment(0, records(0, end))
            partition.look()
            agent.leadership.observe(answered(ask(agent), end - 10))
        assert partition.question_pause == QUESTION_BACKOFF.longest


@pytest.mark.parametrize(
    "after", ["truncated", "truncated, and rolled", "truncated, and appended to by another leader"]
)
def test_the_end_of_a_log_that_was_truncated_meanwhile_is_not_believed(world: World, after: str) -> None:
    """The broker answers as leader, loses the leadership, and truncates before its log is read."""
    disk = world.disk.partition().segment(0, records(0, 50))
    answer = world.metadata.offsets

    def lose(led: Mapping[TopicPartition, Led]) -> dict[TopicPartition, Offsets]:
        said = answer(led)
        disk.segment(0, records(0, 30) + (records(30, 60, epoch=4) if "appended" in after else b""))
        if "rolled" in after:
            disk.segment(30, b"")
        return said

    poller = Poller(world.metadata, lambda: None)
    world.metadata.high[T] = 20
    with world.agent() as agent:
        partition = led(agent)
        world.metadata.offsets = lose  # type: ignore[method-assign]  # for this answer
        poller.ask_offsets(ask(agent))
        [said] = poller.answer_all()
        assert isinstance(said, OffsetsAnswer)
        assert agent.leadership.observe(said) == set()
        assert partition.observation is None

        world.metadata.offsets = answer  # type: ignore[method-assign]  # it leads again
        agent.leadership.learn(LeadersAnswer(utc_now(), 0.0, {T: Leader(1, Led(5, ID))}, {}))
        world.metadata.leads[T] = Led(5, ID)
        poller.ask_offsets(ask(agent))
        [said] = poller.answer_all()
        assert isinstance(said, OffsetsAnswer)
        assert agent.leadership.observe(said) == {T}
        observed = agent.leadership.partitions[T].observation
        assert observed is not None
        assert observed.log_end == (60 if "appended" in after else 30)


def test_who_leads_is_asked_though_offsets_are_always_asked_for(world: World) -> None:
    poller = Poller(world.metadata, lambda: None)
    world.disk.partition().segment(0, b"")
    with world.agent() as agent:
        led(agent)
        poller.ask_leaders([T])
        kinds = []
        for _ in range(4):
            poller.ask_offsets(agent.leadership.ask([T]))
            poller._answer_one()
            kinds += [type(one) for one in poller.take()]
        assert kinds[0] is OffsetsAnswer
        assert kinds.count(LeadersAnswer) == 1
        assert kinds[1] is LeadersAnswer, "not more than one question of the other kind goes before"


def test_a_date_is_not_final_by_a_high_watermark_that_stands_still(world: World) -> None:
    """From the disk to the date: 600 records are on the broker, 590 are committed and landed, minutes ago."""
    disk = world.disk.partition().segment(0, records(0, 590))
    world.metadata.default_high = 590
    asked_at = DUE - SOON
    with world.agent() as agent:
        partition = led(agent)
        agent.leadership.observe(answered(ask(agent), 590, asked_at))
        question = ask(agent)
        disk.segment(0, records(0, 600))
        partition.look()
        agent.leadership.observe(answered(question, 590, asked_at))
        partition.uploader.learn()
        agent.index._indexes.write_if_due([partition], DUE + SOON, now=True)
        entry = read_entry(world)
        assert (entry.high_watermark, entry.log_end_offset, entry.observed_at) == (590, 600, asked_at)
        assert not closes(entry, end=590)
        agent.leadership.observe(answered(ask(agent), 590, DUE + SOON))
        agent.index._indexes.write_if_due([partition], DUE + SOON, now=True)
        entry = read_entry(world)
        assert entry.observed_at == DUE + SOON
        assert not closes(entry, end=590), "10 records are on the broker"
        agent.leadership.observe(answered(ask(agent), 600, DUE + SOON))
        agent.index._indexes.write_if_due([partition], DUE + SOON, now=True)
        assert closes(read_entry(world), end=600)


def read_entry(world: World) -> IndexEntry:
    key = world.control.index(1)
    [entry] = WatermarkIndex.from_bytes(world.store.get(key).body, key).entries
    return entry


def closes(entry: IndexEntry, end: int) -> bool:
    """Whether the date of the records is final by ``entry``, of which all below ``end`` is landed."""
    ledger = Ledger.genesis("east", "orders", "orders")
    ledger = ledger.model_copy(update={"partitions": (landed(end),), "dates": {DT: DateState(rows=end, state="open")}})
    # The segment begins before the date ends, so that its end alone can show that all is landed.
    entry = entry.model_copy(update={"active_first_timestamp": 0})
    return DT in closing(ledger, {(0, 0): entry}, topic(), DUE + 2 * SOON)


def test_an_answer_about_a_topic_that_was_made_again_counts_for_nothing(world: World) -> None:
    """ListOffsets goes by name: what the broker says may be about the topic that took the name meanwhile."""
    world.disk.partition().fill(0, end=100)

    class MadeAgain(FakeMetadata):
        def offsets(self, led: Mapping[TopicPartition, Led]) -> dict[TopicPartition, Offsets]:
            world.disk.partition(topic_id=OTHER_ID).fill(0, end=10)
            return super().offsets(led)

    world.metadata = MadeAgain(default_high=10)
    with world.agent() as agent:
        partition = led(agent)
        agent.poller.ask_offsets(ask(agent))
        [answer] = agent.poller.answer_all()
        assert isinstance(answer, OffsetsAnswer)
        assert agent.leadership.observe(answer) == set()
        assert partition.offsets is None


@pytest.mark.parametrize("older", [True, False])
def test_a_checkpoint_that_is_older_than_a_directory_says_nothing_about_it(world: World, *, older: bool) -> None:
    """It may still have the high watermark of a deleted topic of that name."""
    disk = world.disk.partition().fill(0, end=100)
    made = (disk.folder / "partition.metadata").stat().st_mtime
    checkpoint = world.disk.log_dirs[0] / "replication-offset-checkpoint"
    checkpoint.write_text("0\n1\norders 0 1000\n")
    written = made - 1 if older else made + 1
    os.utime(checkpoint, (written, written))
    with world.agent() as agent:
        partition = led(agent)
        agent.leadership.fall_back([T])
        assert partition.offsets == (None if older else Offsets(1000, source="checkpoint"))


def test_a_checkpoint_about_a_topic_that_was_made_again_says_nothing_about_the_former_one(world: World) -> None:
    """The broker has not said yet that there is another one."""
    world.disk.partition().fill(0, end=100)
    with world.agent() as agent:
        partition = led(agent)
        world.disk.partition(topic_id=OTHER_ID)
        (world.disk.log_dirs[0] / "replication-offset-checkpoint").write_text("0\n1\norders 0 1000\n")
        assert agent.leadership.fall_back([T]) == set()
        assert partition.offsets is None


def test_what_was_observed_before_a_restart_is_not_said_with_an_older_checkpoint(world: World) -> None:
    world.disk.partition().fill(0, end=100)
    world.metadata.default_high = 100
    world.once()
    former = index_entry(world)
    with world.agent() as agent:
        indexes = agent.index._indexes
        indexes.read()
        partition = led(agent)
        partition.uploader.learn()
        partition.fall_back(Offsets(50, source="checkpoint"))
        indexes.write_if_due([partition], None, now=True)
        now = index_entry(world)
    said = (now.high_watermark, now.log_end_offset, now.observed_at)
    assert said == (former.high_watermark, former.log_end_offset, former.observed_at)


def test_an_answer_without_a_log_end_takes_nothing_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was observed as of an earlier answer is said as of that one, with its log end."""
    world.disk.partition().segment(0, records(0, 60))
    with world.agent() as agent:
        partition = led(agent)
        first = answered(ask(agent), 50)
        agent.leadership.observe(first)
        monkeypatch.setattr(partition, "read_active", lambda: None)
        agent.leadership.observe(answered(ask(agent), 55))
        observed = partition.observation
        assert observed is not None
        assert (observed.offsets.high_watermark, observed.log_end, observed.asked_at) == (55, 60, first.asked_at)
