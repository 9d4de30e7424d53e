"""Dates made again beside files that were made with other settings: no row is lost or stands twice, whatever changed.

A seeded walk: segments land, settings change, some dates are made again. A model that knows nothing of files says of
each record where it lies: rows of the dates that are made again where the settings of now put them, all others where
they were.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

import pytest

from tests.spark.convert.test_parsers import json_parser
from tests.spark.rebuild.rebuilds import HOUR, carry_out, changed, dates_of, planned_here
from tests.spark.run.test_runs import DAY
from tests.spark.world import World
from tests.tidemark.kafka_log.build import T0, Record, batch

STEPS: Final = 14
MIDNIGHT: Final = T0 - T0 % DAY
COLUMNS: Final = ("{name: a, type: timestamp(ms)}", "{name: b, type: timestamp(ms)}")


class Place(NamedTuple):
    """Where a record lies: the table or quarantine, and the date there, empty for none."""

    landed: bool
    dt: str


@dataclass(frozen=True)
class Settings:
    """What decides where a record lies: the zone, the column of the event's time, and from when on times are sane."""

    zone: str
    event: str | None
    earliest: date

    @property
    def lines(self) -> tuple[str, ...]:
        """As the topics file has them."""
        event = f", event_time: {{field: {self.event}}}" if self.event else ""
        sane = f"sane_timestamps: {{earliest: {self.earliest.isoformat()}}}"
        return json_parser(*COLUMNS, more=event), f"time_zone: {self.zone}", sane

    @classmethod
    def drawn(cls, rng: random.Random) -> Settings:
        """Any."""
        zone = rng.choice(["UTC", "Asia/Tokyo", "America/Los_Angeles"])
        earliest = rng.choice([date(1970, 1, 2), date(1970, 1, 2), date(2026, 2, 3)])
        return cls(zone, rng.choice([None, "a", "b"]), earliest)

    def place(self, one: Told) -> Place:
        """Where a record is put by these settings."""
        own = self._day(one.at)
        if one.events is None:
            return Place(landed=False, dt=own)
        event = one.events.get(self.event or "")
        day = own if event is None else self._day(event)
        return Place(landed=True, dt=day) if day else Place(landed=False, dt=own)

    def _day(self, at: int) -> str:
        day = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at)).astimezone(ZoneInfo(self.zone)).date()
        return day.isoformat() if day >= self.earliest else ""


class Told(NamedTuple):
    """What a record says: its time, and its events' times by column; None for what is no JSON."""

    at: int
    events: Mapping[str, int] | None

    @classmethod
    def drawn(cls, rng: random.Random) -> Told:
        """Times of four days, at hours that the zones put on different dates."""

        def time() -> int:
            return MIDNIGHT + rng.randrange(4) * DAY + rng.choice([1, 12, 20]) * HOUR

        events = {name: time() for name in ("a", "b") if rng.random() < 0.8}
        return cls(time(), None if rng.random() < 0.1 else events)

    @property
    def value(self) -> bytes:
        """As the log has it."""
        if self.events is None:
            return b"{"
        return b"{%s}" % b",".join(b'"%s":%d' % (name.encode(), at) for name, at in self.events.items())


@dataclass
class Model:
    """Where each record lies; its offset is its place in ``told``."""

    told: list[Told] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)

    def land(self, told: Iterable[Told], settings: Settings) -> None:
        """What ingest does."""
        for one in told:
            self.told.append(one)
            self.places.append(settings.place(one))

    def targets(self, dates: Iterable[str], settings: Settings) -> set[str]:
        """Where the rows that lie on ``dates`` go."""
        chosen = set(dates)
        pairs = zip(self.told, self.places, strict=True)
        return {settings.place(one).dt for one, lies in pairs if lies.dt in chosen}

    def others(self, dates: Iterable[str], settings: Settings) -> bool:
        """Whether rows beside ``dates`` lie where the settings would not put them."""
        chosen = set(dates)
        pairs = zip(self.told, self.places, strict=True)
        return any(lies.dt not in chosen and lies != settings.place(one) for one, lies in pairs)

    def rebuild(self, dates: Iterable[str], settings: Settings) -> None:
        """What lies on ``dates`` is put where the settings say."""
        chosen = set(dates)
        self.places = [
            settings.place(one) if lies.dt in chosen else lies for one, lies in zip(self.told, self.places, strict=True)
        ]

    @property
    def landed(self) -> dict[int, str]:
        """The date of each row of the table."""
        return {offset: one.dt for offset, one in enumerate(self.places) if one.landed}

    @property
    def refused(self) -> set[int]:
        """The offsets in quarantine."""
        return {offset for offset, one in enumerate(self.places) if not one.landed}


def walk(root: Path, rng: random.Random) -> int:
    """One walk, until table and model differ; how many rebuilds were beside rows that other settings put there."""
    beside = 0
    settings, model = Settings.drawn(rng), Model()
    world = World(root, *settings.lines)
    for step in range(STEPS):
        action = "land" if step == 0 else rng.choice(["land", "rebuild", "rebuild", "rebuild"])
        if step and rng.random() < 0.6:
            settings = Settings.drawn(rng)
            world = changed(world, *settings.lines)
        if action == "land":
            told = [Told.drawn(rng) for _ in range(rng.randrange(1, 7))]
            first = len(model.told)
            world.raw.segment([batch(first, [Record(i, one.at, b"k", one.value) for i, one in enumerate(told)])])
            world.land()
            model.land(told, settings)
        else:
            dates = sorted(rng.sample(sorted({one.dt for one in model.places if one.dt}) or [""], 1))
            found = planned_here(world, *dates)
            together = set(found.plan.dates)
            assert together >= {*dates, *model.targets(together, settings)}, (step, settings, dates)
            beside += model.others(together, settings)
            carry_out(world, found)
            model.rebuild(together, settings)
        assert dates_of(world) == model.landed, (step, action, settings)
        assert {row["kafka_offset"] for row in world.quarantine()} == model.refused, (step, action, settings)
    carry_out(world, planned_here(world, *sorted({one.dt for one in model.places})))
    model.rebuild({one.dt for one in model.places}, settings)
    assert (dates_of(world), {row["kafka_offset"] for row in world.quarantine()}) == (model.landed, model.refused)
    return beside


@pytest.mark.timeout(1800)
def test_no_row_is_lost_or_stands_twice_beside_other_settings(
    tmp_path: Path, rng: random.Random, tried: Callable[[str, int], None], *, full: bool
) -> None:
    walks = range(30 if full else 1)
    beside = [walk(tmp_path / f"{number}", random.Random(rng.getrandbits(64))) for number in walks]
    tried("rebuilds beside other settings", sum(beside))
    assert sum(beside) > 0 or not full
