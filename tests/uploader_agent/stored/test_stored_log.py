"""Which stored segments count for a leader, whose own log tells only a part of its past."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.raw_builder import RawBuilder
from tests.tidemark.kafka_log.build import simple
from tidemark.formats.raw.manifest import LineagePairs
from tidemark.intervals import Intervals
from tidemark.kafka_log import Lineage, SegmentScanner
from tidemark.kafka_log.batch import read_header
from tidemark.storage import PartitionStore
from tidemark.store import LocalStore
from uploader_agent.stored.lineage import BatchLineage, KnownLineages, OffLineage, lineage_of
from uploader_agent.stored.stored_log import StoredLog, load


@pytest.fixture
def raw(tmp_path: Path) -> RawBuilder:
    """Of epoch 0 up to offset 21, and of epoch 1 from there to 61."""
    made = RawBuilder(LocalStore(tmp_path / "store"))
    made.partition().lineage = ((0, 0), (1, 21))
    made.segment([simple(0, 21, leader_epoch=0), simple(21, 14, leader_epoch=1)])
    made.segment([simple(35, 26, leader_epoch=1)])
    return made


def loaded(raw: RawBuilder, lineage: LineagePairs) -> StoredLog:
    """What a leader with a log of this ``lineage`` finds."""
    topic_id = raw.lives.incarnations[-1].topic_id
    return load(PartitionStore(raw.store, raw.keys()), Lineage(lineage), lineage[-1][0], topic_id, 1, lambda _: False)


@pytest.mark.parametrize("counted", [21, 23])
@pytest.mark.parametrize("lineage", [((0, 0), (2, 44)), ((0, 23), (2, 44)), ((2, 53),)])
def test_a_branch_that_an_unclean_election_has_cut_off_does_not_count(
    raw: RawBuilder, lineage: LineagePairs, counted: int
) -> None:
    """The leader of epoch 2 goes on with epoch 0; also once retention has taken the log's past, or all of it."""
    raw.segment([simple(21, 2, leader_epoch=0)], base=21, lineage=((0, 0), (2, 44)))
    known = raw.partition()
    known.lineage, known.leader_epoch, known.next_offset, known.line1 = ((0, 0), (2, 44)), 2, counted, 0
    raw.publish()
    assert loaded(raw, lineage).present == Intervals([(0, 23)])


def test_epochs_that_came_after_those_of_offset_wm_count(raw: RawBuilder) -> None:
    """The agent of the leader of epoch 2 died before it wrote ``offset.wm``; retention has taken all of that since."""
    raw.publish()
    raw.segment([simple(61, 9, leader_epoch=1), simple(70, 10, leader_epoch=2)], lineage=((0, 0), (1, 21), (2, 70)))
    assert loaded(raw, ((4, 80),)).present == Intervals([(0, 80)])


def test_a_log_without_a_manifest_is_of_the_branch_that_its_batches_are_of() -> None:
    """``offset.wm`` tells all epochs up to its last one, however far it has counted."""
    lineages = KnownLineages(Lineage(((0, 0), (2, 44))), 21, Lineage(((4, 60),)))
    for base, epoch, own in ((21, 0, True), (21, 1, False), (43, 1, False), (44, 2, True), (50, 3, True)):
        batch = simple(base, 1, leader_epoch=epoch)
        scanner = SegmentScanner("a", base)
        list(scanner.batches(batch))
        summary = scanner.finish()
        if own:
            BatchLineage("a", lineages).follow(read_header(batch, 0, 0))
            assert lineage_of("a", summary, lineages).epoch_at(base) == epoch
            continue
        with pytest.raises(OffLineage):
            BatchLineage("a", lineages).follow(read_header(batch, 0, 0))
        with pytest.raises(OffLineage):
            lineage_of("a", summary, lineages)


def test_a_log_without_a_manifest_ends_below_the_batch_in_which_its_branch_was_cut() -> None:
    """The leader of epoch 1 begins at offset 4, which is its log's start, within a batch of the leader before."""
    lineages = KnownLineages(Lineage(()), 0, Lineage(((1, 4),)))
    data = simple(0, 3, leader_epoch=0) + simple(3, 4, leader_epoch=0)
    scanner = SegmentScanner("a", 0)
    branch = BatchLineage("a", lineages)
    for header in scanner.batches(data):
        branch.follow(header)
    assert branch.left_at == 3
    assert lineage_of("a", scanner.finish(), lineages, branch.left_at).entries == ((0, 0),)
