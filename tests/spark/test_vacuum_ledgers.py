"""Old ledgers and results go by a vacuum, and whatever may still be asked for is there: kills, races, time travel."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.spark.test_vacuum import Died, age_all, many
from tests.spark.world import World, in_process
from tests.tidemark.kafka_log.build import simple
from tidemark.errors import NotFound
from tidemark.formats.keys import TableKeys
from tidemark.formats.table.ledger import Ledger, Published
from tidemark.formats.table.plan import RunResult
from tidemark.monitoring.observation import samples_of
from tidemark.planning import plan_compaction
from tidemark.planning.maintenance import fold as rules
from tidemark.planning.maintenance.vacuum import RUN_OVER
from tidemark.store import LocalStore
from tidemark.table.delta_table import committed_ledger, ledger_of, oldest_ledger_in_log
from tidemark.timestamps import utc_now
from tidemark_spark.run import commit
from tidemark_spark.run import vacuum as cleaning
from tidemark_spark.run.driver import run
from tidemark_spark.run.vacuum import vacuum

PAST = RUN_OVER + timedelta(hours=1)


def land(world: World, count: int = 1) -> None:
    """Commits of three records each."""
    for _ in range(count):
        world.raw.segment([simple(world.raw.partition().end)])
        world.raw.publish()
        assert run(world.table, world.plan(), in_process).status == "landed"


def passed(world: World, root: Path, age: timedelta = PAST) -> None:
    """So much time has gone by: all that lies in the lake is older, by its own word and by the store's."""
    age_all(world, age)
    for path in [found for found in (root / "lake").rglob("*") if found.is_file()]:
        status = path.stat()
        os.utime(path, (status.st_atime - age.total_seconds(), status.st_mtime - age.total_seconds()))


def published(world: World) -> None:
    """Airflow has stored the events of all that is committed."""
    n, attempt = world.ledger.n, world.ledger.attempt
    world.table.store.put(world.table.keys.published, Published(n=n, attempt=attempt, at=utc_now()).to_bytes())


def cut_log(world: World, oldest: int) -> None:
    """Delta's log is cleaned up to version ``oldest``, from which on it can be read."""
    DeltaTable(world.table.url, version=oldest).create_checkpoint()
    for found in world.table.store.list(f"{world.table.keys.root}/_delta_log/"):
        name = found.key.rpartition("/")[2]
        if name[:20].isdigit() and int(name[:20]) < oldest:
            world.table.store.delete(found.key)


def numbers(world: World) -> list[int]:
    """The ledgers that are there."""
    names = [one.key.rpartition("/")[2] for one in world.table.store.list(world.table.keys.ledgers)]
    return sorted(int(name.partition("-")[0]) for name in names)


def backwards(function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """One after the other, the newest ledger first."""
    return [function(one) for one in reversed(items)]


@pytest.fixture
def old(tmp_path: Path) -> World:
    """A table of eight commits that are old and published, whose log begins with the sixth."""
    world = World(tmp_path)
    land(world, 8)
    passed(world, tmp_path)
    published(world)
    cut_log(world, 6)
    return world


def test_the_log_tells_the_oldest_ledger_that_a_reader_can_go_back_to(old: World) -> None:
    assert ledger_of(old.table, DeltaTable(old.table.url, version=6)).n == oldest_ledger_in_log(old.table) == 6
    fresh = World(old.topics_file.parent / "fresh")
    assert oldest_ledger_in_log(fresh.table) == 0
    land(fresh)
    assert oldest_ledger_in_log(fresh.table) == 0, "version 0 is from before the first run"


def test_a_log_that_cannot_be_read_lets_no_ledger_go(old: World) -> None:
    [checkpoint] = [one.key for one in old.table.store.list(old.table.keys.root) if ".checkpoint." in one.key]
    old.table.store.put(checkpoint, b"damaged")
    assert oldest_ledger_in_log(old.table) == 0


def test_old_ledgers_go_and_all_else_goes_on(old: World) -> None:
    assert vacuum(old.table, dry_run=True).ledgers == 4
    assert numbers(old) == list(range(1, 9))
    assert vacuum(old.table).ledgers == 4
    assert numbers(old) == [5, 6, 7, 8]
    for version in (6, 7, 8):
        assert ledger_of(old.table, DeltaTable(old.table.url, version=version)).n == version
    assert vacuum(old.table).ledgers == 0
    land(old)
    old.check()
    assert samples_of(old.table, old.ledger, seen=1)[0], "the watch looked last before they were removed"


def test_what_is_not_published_stays(old: World) -> None:
    old.table.store.delete(old.table.keys.published)
    assert vacuum(old.table).ledgers == 0
    assert numbers(old) == list(range(1, 9))


def test_what_is_young_stays(tmp_path: Path) -> None:
    world = World(tmp_path)
    land(world, 8)
    passed(world, tmp_path, RUN_OVER - timedelta(hours=1))
    published(world)
    cut_log(world, 8)
    assert vacuum(world.table).ledgers == 0


def test_a_restored_table_has_its_ledger(old: World) -> None:
    vacuum(old.table)
    DeltaTable(old.table.url).restore(6)
    assert committed_ledger(old.table).n == 8, "RESTORE takes back files, not what runs have said"
    DeltaTable(old.table.url).restore(8)
    land(old)
    old.check()


@pytest.mark.parametrize("survives", range(4))
def test_a_vacuum_that_dies_between_two_ledgers_is_done_by_the_next(
    old: World, monkeypatch: pytest.MonkeyPatch, survives: int
) -> None:
    real: Callable[..., None] = LocalStore.delete
    done: list[str] = []

    def dying(self: LocalStore, key: str, **options: Any) -> None:
        if len(done) == survives:
            raise Died
        real(self, key, **options)
        done.append(key)

    with monkeypatch.context() as patch:
        patch.setattr(cleaning, "in_parallel", backwards)
        patch.setattr(LocalStore, "delete", dying)
        with pytest.raises(Died):
            vacuum(old.table)
    assert len(numbers(old)) == 8 - survives
    land(old)
    published(old)
    assert vacuum(old.table).ledgers == 4 - survives
    assert numbers(old) == [5, 6, 7, 8, 9]
    old.check()


def test_runs_that_commit_while_ledgers_go_find_theirs(old: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One run wrote its ledger before the vacuum began, and commits it amid the deletions; others come after it."""
    old.raw.segment([simple(old.raw.partition().end)])
    old.raw.publish()
    plan = old.plan()
    with monkeypatch.context() as patch:
        patch.setattr(commit, "commit", dies)
        with pytest.raises(Died):
            run(old.table, plan, in_process)
    real: Callable[..., None] = LocalStore.delete
    raced: list[RunResult] = []

    def racing(self: LocalStore, key: str, **options: Any) -> None:
        real(self, key, **options)
        if not raced and "/ledger/" in key:
            raced.append(run(old.table, plan, in_process))
            published(old)
            land(old, 2)

    with monkeypatch.context() as patch:
        patch.setattr(cleaning, "in_parallel", backwards)
        patch.setattr(LocalStore, "delete", racing)
        vacuum(old.table)
    assert [one.status for one in raced] == ["landed"]
    assert numbers(old) == [*range(5, 9), 9, 10, 11]
    parents: list[int] = []
    found = old.ledger
    while found.parent is not None and found.parent.n >= 5:
        parents.append(found.parent.n)
        found = Ledger.load(old.table.store, old.table.keys.ledger(found.parent.n, found.parent.attempt))
    assert parents == [10, 9, 8, 7, 6, 5]
    old.check()


def dies(*_: object) -> None:
    """Instead of a commit."""
    raise Died


def test_an_attempt_whose_ledger_and_result_are_gone_has_landed_all_the_same(old: World) -> None:
    first = Ledger.load(old.table.store, next(one.key for one in old.table.store.list(old.table.keys.ledgers)))
    [plan] = [one for one in plans(old) if one.attempt == first.attempt]
    young = plan.model_copy(update={"created_at": utc_now()})
    old.table.store.delete(old.table.keys.result(plan.attempt))
    assert run(old.table, young, in_process).dates != ()
    old.table.store.delete(old.table.keys.result(plan.attempt))
    vacuum(old.table)
    found = run(old.table, young, in_process)
    assert (found.status, found.rows, found.dates, found.ledger_n) == ("landed", 3, (), plan.ledger_n)


def plans(world: World) -> list[Any]:
    """All plans that are stored."""
    from tidemark.planning import read_plan

    return [read_plan(world.table, one.key) for one in world.table.store.list(world.table.keys.attempts)]


def test_results_of_runs_that_had_nothing_to_do_go(world: World, tmp_path: Path) -> None:
    land(world)
    plan = plan_compaction(world.table)
    assert run(world.table, plan, in_process).status == "empty"
    key = world.table.keys.result(plan.attempt)
    vacuum(world.table)
    assert world.table.store.head(key), "its scheduler may still ask for it"
    passed(world, tmp_path)
    vacuum(world.table)
    with pytest.raises(NotFound):
        world.table.store.head(key)
    assert world.table.store.head(world.table.keys.result(world.ledger.attempt)), "of an attempt that the ledger lists"


def test_what_is_kept_of_runs_does_not_grow_with_days(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Days of landings, each with a compaction that finds nothing, one that died, a cleaned log and a vacuum."""
    monkeypatch.setattr(rules, "FOLD_FROM", 3)
    monkeypatch.setattr(rules, "KEPT", 1)
    counts: list[dict[str, int]] = []
    for _ in range(9):
        land(world, 3)
        run(world.table, plan_compaction(world.table), in_process)
        world.raw.segment([simple(world.raw.partition().end)])
        world.raw.publish()
        world.plan()
        published(world)
        cut_log(world, DeltaTable(world.table.url).version())
        passed(world, tmp_path, timedelta(days=1, hours=1))
        vacuum(world.table)
        counts.append(
            {folder: len(list(world.table.store.list(prefix))) for folder, prefix in folders(world.table.keys)}
        )
    world.check()
    for folder in counts[0]:
        later = [one[folder] for one in counts[4:]]
        assert max(later) <= max(one[folder] for one in counts[:5]) + 1, (folder, counts)


def folders(keys: TableKeys) -> list[tuple[str, str]]:
    """Of what each run writes one object."""
    return [
        ("attempts", keys.attempts),
        ("evidence", keys.evidence),
        ("ledgers", keys.ledgers),
        ("results", keys.results),
    ]


def test_folds_and_rebuilds_keep_what_they_need(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "FOLD_FROM", 2)
    monkeypatch.setattr(rules, "KEPT", 0)
    many(world)
    vacuum(world.table)
    for _ in range(3):
        passed(world, tmp_path)
        published(world)
        cut_log(world, DeltaTable(world.table.url).version())
        vacuum(world.table)
        world.check()
    assert numbers(world)[-1] == world.ledger.n
    assert len(numbers(world)) <= 4
