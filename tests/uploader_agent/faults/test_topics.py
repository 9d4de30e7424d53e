"""Topics that are made again, grow, are compacted, move between disks, or stand still."""

from __future__ import annotations

import signal

import pytest

from tests.support.kafka import KafkaCluster
from tests.support.waiting import wait_until
from tests.uploader_agent.faults.cluster import (
    add_partitions,
    await_led,
    bases,
    create,
    delete,
    folder,
    move_log_dir,
    topic_id,
)
from tests.uploader_agent.faults.conftest import MakeFleet
from tests.uploader_agent.faults.fleet import Fleet, assert_exact
from tests.uploader_agent.faults.load import Book, Load, send, under
from tests.uploader_agent.faults.oracle import Expected
from tidemark.formats.raw.manifest import SegmentManifest

SMALL = {"internal_segment_bytes": "32768"}


@pytest.mark.parametrize(
    ("suffix", "n"),
    [
        (".log", 2),
        pytest.param(".manifest.json", 2, marks=pytest.mark.full),
        pytest.param("offset.wm", 1, marks=pytest.mark.full),
    ],
)
def test_made_again_during_an_upload(kraft3: KafkaCluster, make_fleet: MakeFleet, suffix: str, n: int) -> None:
    """The agent stands in the middle of a PUT while its topic is deleted and made again under the same path."""
    topic = f"again-{suffix.strip('.').replace('.', '-')}"
    former, latter = Book(), Book()
    create(kraft3, topic, [[1, 2, 3]], **SMALL)
    fleet = make_fleet(kraft3, topic, [topic], nodes=[1])
    agent = fleet.agents[1]
    with fleet.running(start=False):
        send(kraft3, topic, former, 300)
        old = folder(agent.broker, topic, 0)
        old_id = topic_id(old)
        agent.start(plan=agent.plan(number="SIGSTOP", when="before", suffix=suffix, n=n))
        wait_until(lambda: agent.frozen, what="the agent to stand in an upload")
        delete(kraft3, topic)
        wait_until(lambda: not old.exists(), what="the old directory to be renamed")
        create(kraft3, topic, [[1, 2, 3]], **SMALL)
        send(kraft3, topic, latter, 300)
        new_id = topic_id(folder(agent.broker, topic, 0))
        assert new_id != old_id
        assert len(bases(folder(agent.broker, topic, 0))) > 1
        agent.send(signal.SIGCONT)
        fleet.await_rotated(topic)
        send(kraft3, topic, latter, 100)
        fleet.await_rotated(topic)
        fleet.settle()
    was = fleet.judge(topic, former, identity=old_id, expected=Expected(high=former.truth(0).end))
    verdicts = [*was, *fleet.judge(topic, latter)]
    assert_exact(verdicts, f"made again before PUT of {suffix}; {was[0].counts['compared']} of the former were there")


def test_grows_and_moves_and_stands_still(kraft3: KafkaCluster, make_fleet: MakeFleet) -> None:
    """Partitions are added, replicas move between log directories, under load; one partition is idle, then grows."""
    moving, idle = Book(), Book()
    create(kraft3, "moving", [[1, 2, 3]])
    create(kraft3, "idle", [[2, 3, 1]])
    fleet = make_fleet(kraft3, "moving", ["moving", "idle"], tail_after="2s")
    with fleet.running():
        send(kraft3, "idle", idle, 50)
        with under(Load(kraft3, "moving", moving, rate=300)):
            fleet.await_writer("moving", 1)
            before = folder(kraft3.brokers[0], "moving", 0)
            after = move_log_dir(kraft3, "moving", 0, kraft3.brokers[0])
            assert after.parent != before.parent
            add_partitions(kraft3, "moving", [[3, 1, 2]])
            await_led(kraft3, "moving", 2)
            with under(Load(kraft3, "moving", moving, partitions=2, rate=400)):
                fleet.await_writer("moving", 3, 1)
                move_log_dir(kraft3, "moving", 0, kraft3.brokers[0])
                fleet.await_rotated("moving", 2)
        wait_until(lambda: fleet.stored_end("idle") == 50, what="the idle tail to be in the store")
        send(kraft3, "idle", idle, 30)
        wait_until(lambda: fleet.stored_end("idle") == 80, what="the rest to be in the store")
        assert states(fleet, "idle") == [], "it is packed, and Kafka has rolled nothing"
        fleet.settle()
    assert states(fleet, "idle") == ["whole"]
    verdicts = [*fleet.judge("moving", moving, 2), *fleet.judge("idle", idle)]
    assert_exact(verdicts, "2 moves between log directories, 1 partition added, 2 idle tails packed, and sealed as one")


def states(fleet: Fleet, topic: str) -> list[str]:
    """The states of the stored segments."""
    keys = fleet.reader.keys(topic, topic_id(folder(fleet.leader(topic).broker, topic, 0)), 0)
    names = [info.key for info in fleet.store.list(keys.folder) if ".manifest.json" in info.key]
    return [SegmentManifest.from_bytes(fleet.store.get(name).body, name).state for name in names]


def test_compacted(kraft3: KafkaCluster, make_fleet: MakeFleet) -> None:
    """The cleaner runs before the agent has seen the segments, and while it uploads."""
    book = Book()
    create(
        kraft3,
        "compacted",
        [[1, 2, 3]],
        cleanup_policy="compact",
        min_cleanable_dirty_ratio="0.01",
        segment_ms="2000",
        **SMALL,
    )
    fleet = make_fleet(kraft3, "compacted", ["compacted"], nodes=[1])
    for _ in range(3):
        send(kraft3, "compacted", book, 300, keys=40)
    place = folder(kraft3.brokers[0], "compacted", 0)

    def size() -> int:
        return sum(path.stat().st_size for path in place.glob("*.log"))

    # The cleaner may have been there before the last record was sent.
    wait_until(lambda: size() < 900 * 400 // 2, what="the cleaner to have compacted")
    with fleet.running():
        with under(Load(kraft3, "compacted", book, rate=300, size=400, keys=40)):
            fleet.await_writer("compacted", 1)
            fleet.await_rotated("compacted")
        fleet.settle()
    [verdict] = fleet.judge("compacted", book, expected=Expected(compacted=True))
    assert verdict.counts["compared"] < book.acknowledged, "nothing was compacted before it was uploaded"
    assert_exact([verdict], f"{book.acknowledged} records of 40 keys")
