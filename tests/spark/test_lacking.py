"""A segment that lacks rows which landed from a pack: the agent's repair, the audit, a rebuild and retention agree."""

from __future__ import annotations

from tests.spark.audit.test_audit import audited
from tests.spark.retention.test_packs import WEEK, age, left, reported
from tests.spark.run.test_runs import rebuild
from tests.spark.world import World
from tests.support.live_end import Packer
from tests.tidemark.kafka_log.build import simple
from tidemark.formats.keys import TopicPartition
from tidemark.storage import Storage
from uploader_agent.repair.from_packs import Completion
from uploader_agent.stored.incarnations import Incarnations


def test_a_segment_that_was_made_whole_proves_the_rows_and_lets_the_pack_go(world: World) -> None:
    packer = Packer(world.raw)
    packed = packer.pack([simple(0), simple(3), simple(6)], compacted=True)
    world.land()
    packer.drop()
    world.raw.segment([simple(3)], next_offset=9, compacted=True)
    world.raw.segment([simple(9)])
    world.land()
    rows = world.rows()
    age(world, WEEK)
    assert [one.kind for one in audited(world).findings] == ["raw_lacks"]
    assert (reported(world).removed, left(world)) == (0, {packed.key})
    storage = Storage("east", world.table.deployment.raw, opener=lambda _url: world.raw.store)
    [row] = Completion(Incarnations(storage, record=False), TopicPartition("orders", 0)).run()
    assert (row.outcome, row.base_offset, row.next_offset) == ("brought", 0, 9)
    assert audited(world).passed
    age(world, WEEK)
    assert (reported(world).removed, left(world)) == (1, set())
    rebuild(world, "2026-02-02")
    assert world.rows() == rows
    assert audited(world).passed
