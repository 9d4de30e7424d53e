"""What tests of rebuilds share: plans, comparisons and changes of settings, all in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.spark.convert.test_parsers import json_parser, records
from tests.spark.run.test_runs import DAY
from tests.spark.world import World, in_process
from tests.tidemark.kafka_log.build import T0, batch
from tidemark.backfill.report import Comparison
from tidemark.decode import decode_batches
from tidemark.errors import SegmentError
from tidemark.formats.table.plan import RunResult
from tidemark.kafka_log import BatchHeader
from tidemark.planning import plan_rebuild, write_plan
from tidemark.table.delta_table import live_files, open_delta
from tidemark_spark.rebuild.affected_dates import Rebuild, planned
from tidemark_spark.rebuild.diff import comparison
from tidemark_spark.run.driver import run

HOUR = DAY // 24
DAYS = ("2026-02-01", "2026-02-02", "2026-02-03", "2026-02-04", "2026-02-05")
EVENT = json_parser("{name: at, type: timestamp(ms)}", more=", event_time: {field: at}")
PLAIN = json_parser("{name: at, type: timestamp(ms)}")


def compared(world: World, *dates: str) -> Comparison:
    """What a rebuild of ``dates``, or of all, would change."""
    return comparison(world.table, plan_rebuild(world.table, dates or None), in_process)


def planned_here(world: World, *dates: str, extend: bool = True) -> Rebuild:
    """The rebuild as the command line plans it."""
    return planned(world.table, dates, in_process, extend=extend)


def carry_out(world: World, found: Rebuild) -> RunResult:
    """Run it, and check that all is exact."""
    write_plan(world.table, found.plan)
    result = run(world.table, found.plan, in_process)
    world.check()
    return result


def changed(world: World, *settings: str) -> World:
    """The same stores with other settings of the topic."""
    other = World(world.topics_file.parent, *settings)
    other.raw = world.raw
    return other


def dates_of(world: World) -> dict[int, str]:
    """The date of each offset's row."""
    return {row["kafka_offset"]: row["dt"] for row in world.rows()}


def objects(world: World) -> dict[str, str]:
    """All objects of both stores."""
    return {
        f"{id(store)}:{one.key}": one.etag for store in (world.table.store, world.raw.store) for one in store.list("")
    }


def events(world: World, *days: Sequence[int]) -> None:
    """A segment for each date from 2026-02-02 on, with records whose events were so many days later."""
    at = 0
    for day, moved in enumerate(days):
        values = [b'{"at":%d}' % (T0 + (day + by) * DAY) for by in moved]
        world.raw.segment([batch(at, records(*values, at=[T0 + day * DAY] * len(values)))])
        at += len(values)


def bodies_of(world: World) -> list[bytes]:
    """The bytes of the live files, by date and partition."""
    delta = open_delta(world.table)
    assert delta is not None
    named = sorted((one.dt, one.path.rpartition("/")[2].split("_")[1:4], one.path) for one in live_files(delta))
    return [world.table.store.get(f"{world.table.keys.root}/{path}").body for *_, path in named]


def failing(window: bytes, headers: Any, *, on_refused: Any, **more: Any) -> Any:
    """A decoder that refuses the batch at offset 3."""
    good = headers["base_offset"] != 3
    for row in headers[~good]:
        header = BatchHeader(*row.item())
        on_refused(header, SegmentError(more["name"], header.position, header.base_offset, "planted"))
    return decode_batches(window, headers[good], on_refused=on_refused, **more)
