"""Mirrors under kills at any point, lost replies, other processes, and catalogs that do not answer."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyiceberg
import pytest
from pyiceberg.catalog.glue import GlueCatalog
from pyiceberg.catalog.hive import HiveCatalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFile
from pyiceberg.table.update.snapshot import UpdateSnapshot, _OverwriteFiles
from sqlalchemy.exc import OperationalError

from tests.spark.compaction.test_compaction import merge
from tests.spark.convert.test_parsers import json_parser, records
from tests.spark.mirror.catalogs import check, iceberg, listed, mirrored, settings_of, sql_catalog
from tests.spark.mirror.conftest import REST
from tests.spark.rebuild.rebuilds import changed
from tests.spark.world import World
from tests.support.iceberg import RestCatalogs
from tests.support.proxy import Fault, FaultProxy, Rule
from tests.tidemark.kafka_log.build import T0, batch
from tidemark import connections
from tidemark.catalogs import CatalogSettings
from tidemark.concurrency import in_parallel
from tidemark.connections import NamedConnection
from tidemark.errors import ConfigError, MirrorError
from tidemark.formats.table.statuses import MirrorStatus
from tidemark.store.local import LocalStore
from tidemark.table.topic_columns import DT
from tidemark_spark.jobs.running import run_job
from tidemark_spark.mirror import catalog as rest
from tidemark_spark.mirror.catalog import open_catalog
from tidemark_spark.mirror.listed_table import ListedTable
from tidemark_spark.mirror.mirror import TRIES, mirror

DAY: Final = 86_400_000
NARROW: Final = json_parser("{name: id, type: int32}")
MORE: Final = json_parser("{name: id, type: int32}", "{name: price, type: 'decimal(9,2)'}")
pytestmark = pytest.mark.sampled(1)


class Died(BaseException):
    """The process is gone."""


Act = Callable[..., Any]


@contextmanager
def at_each_write(do: Callable[[Act], Act]) -> Iterator[None]:
    """Wrap what a mirror writes: objects of metadata, and commits of the catalog."""
    with pytest.MonkeyPatch.context() as patch:
        catalogs = (SqlCatalog, RestCatalog, GlueCatalog, HiveCatalog)
        commits = [(owner, name) for owner in catalogs for name in ("commit_table", "create_table")]
        for owner, name in ((LocalStore, "put"), *commits):
            patch.setattr(owner, name, do(getattr(owner, name)))
        yield


def history(tmp_path: Path) -> World:
    """A catalog that lists the first of four commits: then come new columns, a merge of files and more rows."""
    world = World(tmp_path, NARROW)
    for number in range(3):
        world.raw.segment([batch(2 * number, records(b'{"id":1}', b'{"id":2}', at=[T0, T0 + DAY]))])
        world.land()
        if number == 0:
            listed(world)
    world = changed(world, MORE)
    world.raw.segment([batch(6, records(b'{"id":3,"price":1.5}'))])
    world.land()
    merge(world)
    world.raw.segment([batch(7, records(b"{}"))])
    world.land()
    return world


@pytest.mark.sampled(1)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_mirror_killed_at_any_write_is_completed_by_the_next(
    tmp_path: Path, kind: str, after: bool, full: bool, rng: random.Random
) -> None:
    number = 0
    while True:
        number += 1
        world = history(tmp_path / str(number))
        left = number

        def killing(act: Act) -> Act:
            def wrapped(*arguments: Any, **options: Any) -> Any:
                nonlocal left
                left -= 1
                mine = left == 0  # manifests are written by several threads
                if mine and not after:
                    raise Died
                found = act(*arguments, **options)
                if mine:
                    raise Died
                return found

            return wrapped

        try:
            with at_each_write(killing):
                listed(world)
        except Died:
            listed(world)
        else:
            break
        if not full:
            number += rng.randrange(9)
    assert number > 10, "there are as many points and more"


@pytest.mark.usefixtures("kind")
def test_a_lost_reply_lists_nothing_twice(tmp_path: Path) -> None:
    world = history(tmp_path)
    lost = 0

    def losing(act: Act) -> Act:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            nonlocal lost
            found = act(*arguments, **options)
            if act.__name__ == "commit_table":
                lost += 1
                raise ConnectionError("the connection was reset")
            return found

        return wrapped

    with at_each_write(losing):
        listed(world)
    assert lost == len(iceberg(world).snapshots()) - 1


@pytest.mark.usefixtures("kind")
def test_a_reply_that_says_failed_though_it_was_not_leaves_all_metadata(tmp_path: Path) -> None:
    world = history(tmp_path)

    def lying(act: Act) -> Act:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            found = act(*arguments, **options)
            if act.__name__ == "commit_table":
                raise CommitFailedException("a proxy has sent the request twice")
            return found

        return wrapped

    with at_each_write(lying):
        listed(world)


@pytest.mark.parametrize("kind", ["sql", REST], indirect=True)  # moto's Glue does not tell who was faster
@pytest.mark.usefixtures("kind")
def test_of_two_processes_each_commit_is_listed_once(tmp_path: Path) -> None:
    world = history(tmp_path)
    settings = settings_of(world)
    inside = False

    def overtaken(act: Act) -> Act:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            nonlocal inside
            if act.__name__ == "commit_table" and not inside:
                inside = True
                mirror(ListedTable(world.table), settings, mirrored(world))
                inside = False
            return act(*arguments, **options)

        return wrapped

    before = len(iceberg(world).snapshots())
    with at_each_write(overtaken):
        listed(world)
    found = [one.summary["tidemark.delta-version"] for one in iceberg(world).snapshots() if one.summary]
    assert len(found) == len(set(found)) > before


@pytest.mark.usefixtures("kind")
def test_two_processes_create_the_table(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.raw.segment([batch(0, records(b"a"))])
    world.land()
    first, second = mirrored(world), mirrored(world)
    assert not first.load()
    assert not second.load()
    first.create(DT, partitioned=True)
    second.create(DT, partitioned=True)
    listed(world)


@pytest.mark.usefixtures("kind")
def test_a_catalog_that_fails_is_tried_again_and_then_told(tmp_path: Path) -> None:
    world = history(tmp_path)
    calls = 0

    def failing(act: Act) -> Act:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            if act.__name__ == "commit_table":
                calls += 1
                raise ConnectionError("no route to host")
            return act(*arguments, **options)

        return wrapped

    with at_each_write(failing), pytest.raises(MirrorError, match="catalog local: ConnectionError: no route to host"):
        listed(world)
    assert calls == TRIES
    listed(world)


def test_a_catalog_that_is_away_delays_its_mirror_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = World(tmp_path)
    world.raw.segment([batch(0, records(b"a"))])
    world.land()
    uri = f"sqlite:///{world.topics_file}/below/a/file.db"
    here, away = sql_catalog(tmp_path), sql_catalog(tmp_path, name="away", uri=uri)
    text = world.topics_file.read_text()
    lines = [f"  - {one.model_dump_json(exclude_none=True, exclude={'keep'})}" for one in (here, away)]
    world.topics_file.write_text(text.replace("topics:", "\n".join(["catalogs:", *lines, "topics:"])))
    arguments = ["--topics", str(world.topics_file), "--cluster", "east"]
    assert run_job("mirror", arguments) == 1
    check(world, here)
    output = capsys.readouterr()
    assert "orders in away: MirrorError: catalog away: " in output.err
    status = MirrorStatus.load(world.table.store, "_tidemark/_mirrors/east.json")
    assert [(one.catalog, one.ledger_n, bool(one.failing_since)) for one in status.tables] == [
        ("local", 1, False),
        ("away", 0, True),
    ]
    since = status.tables[1].failing_since
    assert run_job("mirror", arguments) == 1
    again = MirrorStatus.load(world.table.store, "_tidemark/_mirrors/east.json")
    assert again.tables[1].failing_since == since, "since the first failure"


def test_secrets_come_from_the_environment_and_are_never_told(tmp_path: Path) -> None:
    world = World(tmp_path)
    settings = sql_catalog(tmp_path, secrets={"password": "CATALOG_PASSWORD"})
    with pytest.raises(ConfigError, match="CATALOG_PASSWORD is not set"):
        open_catalog(world.table.deployment, settings, {})
    catalog = open_catalog(world.table.deployment, settings, {"CATALOG_PASSWORD": "secret"})
    assert catalog.properties["password"] == "secret"


def test_a_connection_comes_from_the_jobs_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path)
    named = sql_catalog(tmp_path, uri=None, connection="lake_catalog")
    monkeypatch.delenv(connections.VARIABLE, raising=False)
    with pytest.raises(ConfigError, match="lake_catalog: is a connection of Airflow's"):
        open_catalog(world.table.deployment, named)
    handed = tmp_path / "connections.json"
    monkeypatch.setenv(connections.VARIABLE, str(handed))
    handed.write_bytes(b'{"lake_catalog": "secret"}')
    with pytest.raises(ConfigError, match="cannot be read as connections") as raised:
        open_catalog(world.table.deployment, named)
    assert "secret" not in str(raised.value)
    for uri in (None, f"sqlite:///{tmp_path}/c.db"):
        said = NamedConnection(uri=uri, login="me", password="secret", extra={"pool": "2"})
        assert "secret" not in repr(said)
        handed.write_bytes(connections.dumped({"lake_catalog": said}))
        if uri is None:
            with pytest.raises(ConfigError, match="lake_catalog has no host"):
                open_catalog(world.table.deployment, named)
    found = open_catalog(world.table.deployment, named).properties
    assert (found["uri"], found["credential"], found["pool"]) == (uri, "me:secret", "2")


@pytest.mark.usefixtures("kind")
def test_a_setting_that_would_list_files_twice_is_put_right(tmp_path: Path) -> None:
    world = history(tmp_path)
    with iceberg(world).transaction() as transaction:
        transaction.set_properties({"commit.retry.num-retries": "4"})
    listed(world)
    assert iceberg(world).properties["commit.retry.num-retries"] == "0"


def test_a_rest_catalog_that_is_silent_is_left_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest, "SECONDS", 0.3)
    world = World(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as server:
        uri = f"http://127.0.0.1:{server.getsockname()[1]}"
        settings = CatalogSettings(name="main", kind="rest", uri=uri, namespace="kafka")
        with pytest.raises(MirrorError, match="catalog main: ReadTimeout: "):
            open_catalog(world.table.deployment, settings)
    with pytest.raises(MirrorError, match="catalog main: ConnectionError: "):
        open_catalog(world.table.deployment, settings)


FAULTS: Final = (Fault.LOSE_REPLY, Fault.CUT_MID_BODY, Fault.ERROR, Fault.UNAVAILABLE, Fault.CONFLICT)


def test_a_rest_catalog_behind_a_bad_network(
    tmp_path: Path, rest_catalogs: RestCatalogs, rng: random.Random, tried: Callable[[str, int], None]
) -> None:
    """Whatever happens to requests, and whether the catalog has done what they ask for: all is listed once at last."""
    world = World(tmp_path, NARROW)
    with rest_catalogs.catalog() as uri, FaultProxy(uri, rng, [Rule(one, 0.1) for one in FAULTS]) as proxy:
        there = CatalogSettings(name="local", kind="rest", uri=uri, namespace="kafka")
        settings = there.model_copy(update={"uri": proxy.endpoint})
        for number in range(6):
            world.raw.segment([batch(2 * number, records(b'{"id":1}', b'{"id":2}', at=[T0, T0 + DAY]))])
            world.land()
            if number == 4:
                merge(world)
            until_listed(world, settings)
            check(world, there)
        found = [one.summary["tidemark.delta-version"] for one in iceberg(world, there).snapshots() if one.summary]
        assert len(found) == len(set(found))
        tried("planted faults", len(proxy.injected))
        assert len(proxy.counts()) > 1


def until_listed(world: World, settings: CatalogSettings) -> None:
    """What the DAG does: call again."""
    for _ in range(20):
        try:
            state = mirror(ListedTable(world.table), settings, mirrored(world, settings))
        except MirrorError:
            continue
        assert state is not None
        return
    raise AssertionError("not listed in the end")


def test_all_snapshots_are_loaded_whatever_the_settings_say(tmp_path: Path, rest_catalogs: RestCatalogs) -> None:
    world = World(tmp_path)
    with rest_catalogs.catalog() as uri:
        more: dict[str, Any] = {"properties": {"snapshot-loading-mode": "refs"}}
        settings = CatalogSettings(name="local", kind="rest", uri=uri, namespace="kafka", **more)
        for number in range(2):
            world.raw.segment([batch(number, records(b"a"))])
            world.land()
            mirror(ListedTable(world.table), settings, mirrored(world, settings))
        assert len(iceberg(world, settings).snapshots()) == 1, "as the settings ask for"
        table = mirrored(world, settings)
        assert table.load()
        assert len(table.iceberg.snapshots()) == 2


def test_the_names_of_pyiceberg_that_are_not_public() -> None:
    """A new version of it may lack them: then the mirror is to be read again beside it."""
    assert callable(RestCatalog._create_session)
    assert {"overwrite", "merge_append"} <= set(vars(UpdateSnapshot))
    producer = UpdateSnapshot.overwrite.__annotations__["return"]
    assert str(producer) == "_OverwriteFiles"
    assert {"append_data_file", "delete_data_file"} <= set(dir(_OverwriteFiles))
    names = (
        "file_path",
        "record_count",
        "spec_id",
        "value_counts",
        "lower_bounds",
        "upper_bounds",
        "null_value_counts",
    )
    assert all(hasattr(DataFile, name) for name in names)
    assert pyiceberg.__version__ == "0.12.0"


def test_a_new_sql_catalog_is_opened_by_many_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each finds no tables of the catalog's own, and makes them: all but one find that they exist."""
    world = World(tmp_path)
    settings = sql_catalog(tmp_path)
    make, made = SqlCatalog.create_tables, []

    def late(catalog: SqlCatalog) -> None:
        make(catalog)
        made.append(catalog)
        if len(made) <= 2:  # as it is for who comes between another's look and its own
            raise OperationalError("CREATE TABLE", {}, Exception("table iceberg_tables already exists"))

    monkeypatch.setattr(SqlCatalog, "create_tables", late)
    monkeypatch.setattr(SqlCatalog, "_init_catalog", lambda catalog: catalog.create_tables())
    assert open_catalog(world.table.deployment, settings).list_namespaces() == []
    assert len(made) == 3
    monkeypatch.undo()
    for turn in range(3):
        new = sql_catalog(tmp_path, uri=f"sqlite:///{tmp_path}/{turn}.db")
        opened = in_parallel(lambda one: open_catalog(world.table.deployment, one), [new] * 8)
        assert [catalog.list_namespaces() for catalog in opened] == [[]] * 8
