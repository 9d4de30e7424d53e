"""The next jobs, as a table: what disk, store and packs have at one moment, and what follows."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pytest
from typing_extensions import override

from tidemark.formats.keys import SegmentName
from tidemark.intervals import Intervals
from uploader_agent.broker.admin import KafkaTier, Offsets
from uploader_agent.disk.log_dirs import LocalSegment
from uploader_agent.log_source import BrokerDisk
from uploader_agent.packs.tail import Tail, TailState
from uploader_agent.partitions.jobs import CHECK, SURVEY, Job, LocalLog, Plan, Standing, holes, missing, plan
from uploader_agent.stored.stored_log import RemoteState, StoredLog
from uploader_agent.upload.local_run import SealRun

SEGMENTS = (LocalSegment(0, 100, 10, 5.0), LocalSegment(100, 200, 10, 6.0), LocalSegment(200, None, 10, 7.0))
LOCAL = LocalLog(SEGMENTS, Offsets(250, log_start_offset=0), disk_start=0, observed_start=0)
STORED = StoredLog(1, surveyed=True, incarnation=0, below=Intervals([(0, 100)]))
INDEXED = StoredLog(1, incarnation=0, below=Intervals([(0, 200)]), trusted_next=200)
STANDING = Standing(
    is_parted=False,
    is_unchecked=False,
    is_claimed=True,
    awaits_start=False,
    is_in_doubt=False,
    needs_survey=False,
)

ROTATED = SealRun(100, 200, 100, 200)
ACTIVE = SealRun(200, 250, 200, None)


class Spool(BrokerDisk):
    """A directory that may fetch again what it lacks."""

    @override
    def lost_below(self, end: int, offsets: Offsets | None) -> int:
        return min(end, (offsets.log_start_offset or 0) if offsets else 0)


class Case(NamedTuple):
    """What is known, and the jobs that follow."""

    name: str
    jobs: list[Job]
    local: LocalLog = LOCAL
    stored: StoredLog = STORED
    tail: Tail = Tail()
    standing: Standing = STANDING
    quiet_before: float | None = None


CASES = [
    Case("a directory without a segment", [], LocalLog()),
    Case("a store that was never read", [SURVEY], stored=StoredLog(1)),
    Case(
        "another history, whatever else is known",
        [SURVEY],
        standing=replace(STANDING, is_parted=True, is_unchecked=True),
    ),
    Case("a log that may be another one", [CHECK], standing=replace(STANDING, is_unchecked=True, is_claimed=False)),
    Case("a broker that has not answered", [], replace(LOCAL, offsets=None)),
    Case("a first offset.wm that waits for the log's start", [], standing=replace(STANDING, awaits_start=True)),
    Case("a former index that has all", [], stored=INDEXED),
    Case("a former index, and something new", [SURVEY], stored=INDEXED, quiet_before=9.0),
    Case("a former index, and a late write", [SURVEY], stored=INDEXED, standing=replace(STANDING, is_in_doubt=True)),
    Case(
        "a former index, and Kafka's remote tier",
        [SURVEY],
        replace(LOCAL, offsets=Offsets(250, tier=KafkaTier(0, 0))),
        INDEXED,
    ),
    Case("no claim", [SURVEY], standing=replace(STANDING, is_claimed=False)),
    Case("a rotated segment", [ROTATED]),
    Case("a rotated segment above the high watermark", [], replace(LOCAL, offsets=Offsets(199))),
    Case("an offset.wm to be written as well", [SURVEY, ROTATED], standing=replace(STANDING, needs_survey=True)),
    Case("a quiet tail", [ROTATED, ACTIVE], quiet_before=7.0),
    Case("a tail that is not quiet yet", [ROTATED], quiet_before=6.9),
    Case("a quiet tail that is packed", [ROTATED], tail=Tail(trusted_end=250), quiet_before=7.0),
    Case("a tail of which much is packed", [ROTATED, ACTIVE._replace(end=230)], tail=Tail(seal_to=230)),
    Case(
        "a .log without a manifest",
        [ROTATED],
        stored=replace(STORED, logs=frozenset([SegmentName(100)])),
        quiet_before=7.0,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_follows(case: Case) -> None:
    lacked = missing(case.local, case.stored, BrokerDisk())
    found = plan(case.local, case.stored, case.tail, lacked, case.standing, case.quiet_before)
    assert found == Plan(case.jobs)


@pytest.mark.parametrize("stored", [STORED, INDEXED], ids=["surveyed", "by a former index"])
def test_what_may_still_be_fetched_is_no_hole(stored: StoredLog) -> None:
    """The directory begins above what is stored: a disk has lost that, and a spool begins again."""
    local = replace(LOCAL, segments=(LocalSegment(300, 400, 1, 5.0), LocalSegment(400, None, 1, 5.0)))
    end = stored.end
    assert missing(local, stored, BrokerDisk()) == (Intervals([(end, 300)]), Intervals())
    lacked = missing(local, stored, Spool())
    assert lacked == (Intervals(), Intervals([(end, 300)]))
    assert not holes(lacked[0], stored)
    found = plan(local, stored, Tail(), lacked, STANDING, None)
    assert (found.jobs[0], found.begins_again) == (SURVEY, True)


def test_a_state_is_the_same_object_while_nothing_has_changed() -> None:
    """By that the watermark index knows that it need not state it again."""
    remote, packed = RemoteState(1), TailState()
    before, tail = remote.log, packed.tail
    remote.set_gaps(())
    packed.end_packing()
    assert remote.log is before
    assert packed.tail is tail
    packed.begin_packing(7)
    assert (tail.packing_from, packed.tail.packing_from) == (None, 7)


def test_the_packs_ask_for_another_plan_until_the_next_one_begins() -> None:
    packed, wanted = TailState(), list[bool]()
    for _ in range(2):
        packed.seal_up_to(50)  # the second time, it is planned already
        wanted.append(packed.plan_wanted)
        packed.plan_begins()
        wanted.append(packed.plan_wanted)
    assert wanted == [True, False, False, False]
