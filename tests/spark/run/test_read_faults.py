"""All that reads the store, where 7 of 100 requests are cut, lost or refused: each ends with the right answer."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from botocore.client import BaseClient

from tests.spark.world import World, in_process
from tests.support.faulty_s3 import proxy
from tests.support.proxy import Choose, Fault, FaultProxy, Request, Rule
from tests.tidemark.kafka_log.build import simple
from tests.tidemark.remote.reader import Reader
from tidemark.cli.continuity import continuity_of
from tidemark.cli.read_models import files_of, status_of
from tidemark.concurrency import in_parallel
from tidemark.formats.keys import TopicPartition
from tidemark.monitoring.incident_store import watch
from tidemark.storage import Storage
from tidemark.store import StoreOptions, open_store, retrying
from tidemark.store.retrying import ATTEMPTS
from tidemark.table.delta_table import open_delta
from tidemark.timestamps import utc_now
from tidemark_spark.run.driver import run

SHARE = 0.07
CUTS = (Fault.CUT_MID_BODY, Fault.LOSE_REPLY, Fault.ERROR, Fault.UNAVAILABLE, Fault.SLOW_DOWN)
__all__ = ["proxy"]

FAULTS = (*CUTS, Fault.HANG_BEFORE_REPLY)
QUICK = ("deadline: 1s",)
"""So that a hung request is given up soon."""

BATCHES = 12


def faults(share: float) -> list[Rule]:
    """Each of the faults with the same chance, ``share`` together; hangs, which take long, more rarely."""
    weights = [0.2 if fault is Fault.HANG_BEFORE_REPLY else 1.0 for fault in FAULTS]
    return [Rule(fault, share * weight / sum(weights)) for fault, weight in zip(FAULTS, weights, strict=True)]


def uploaded(world: World) -> None:
    """Three partitions with some segments each."""
    for partition in range(3):
        for base in range(0, 3 * BATCHES, 9):
            world.raw.segment([simple(base + 3 * number) for number in range(3)], partition, base=base)
    world.raw.publish()


def consumed(world: World) -> dict[int, list[int]]:
    """The offsets that the consumer's remote tier gives."""
    storage = Storage("east", world.table.deployment.raw, world.table.deployment.store)
    found: dict[int, list[int]] = {}
    with Reader(storage) as reader:
        for partition in range(3):
            tp = TopicPartition("orders", partition)
            found[partition] = [one.offset for one in reader.read(0, tp)]
    return found


def readers(world: World) -> dict[str, Callable[[], object]]:
    """What each part of the system reads, and gives back."""
    table = world.table
    return {
        "status": lambda: status_of(table),
        "files": lambda: files_of(table, ()),
        "continuity": lambda: continuity_of(table, ()),
        "consume": lambda: consumed(world),
        "watch": lambda: [one.key for one in watch(table.deployment, "east", utc_now()).incidents if one.open],
    }


@pytest.mark.parametrize("rounds", [2, pytest.param(40, marks=pytest.mark.full)])
def test_every_run_ends_with_the_right_answer(
    rounds: int, proxy: FaultProxy, tmp_path: Path, tried: Callable[[str, int], None]
) -> None:
    for number in range(rounds):
        name = uuid.uuid4().hex
        world = World(tmp_path / str(number), raw=f"s3://raw/{name}", lake=f"s3://lake/{name}", store=QUICK)
        proxy.rules = []
        uploaded(world)
        proxy.rules = faults(SHARE)
        assert run(world.table, world.plan(), in_process).status == "landed"
        got = {what: read() for what, read in readers(world).items()}
        proxy.rules = []
        expected = {what: read() for what, read in readers(world).items()}
        assert got == expected
        world.check()
        assert world.ledger.rows == 3 * 3 * BATCHES
        tried("runs under 7 % faults, with all readers", 1)
    tried("requests under 7 % faults", proxy.requests)
    for fault, count in proxy.counts().items():
        tried(f"planted in requests: {fault.value}", count)
    assert proxy.counts().total() > rounds


def cuts(rng: random.Random) -> Choose:
    """Every second request is cut by chance, but never as many in a row as a read may try."""
    in_a_row = 0

    def choose(_request: Request) -> Fault | None:
        nonlocal in_a_row
        in_a_row = in_a_row + 1 if in_a_row < ATTEMPTS - 1 and rng.random() < 0.5 else 0
        return Fault.CUT_MID_BODY if in_a_row else None

    return choose


def test_a_body_goes_on_where_it_broke_off_and_only_there(proxy: FaultProxy, rng: random.Random) -> None:
    store = open_store("s3://raw", StoreOptions(endpoint_url=proxy.endpoint, region="us-east-1", path_style=True))
    data = rng.randbytes(3 << 20)
    key = uuid.uuid4().hex
    etag = store.put(key, data)
    proxy.rules = cuts(rng)
    for start, end in [(0, None), (17, 2 << 20), (1 << 20, None)] * 5:
        with store.stream(key, start, end, if_match=etag) as body:
            got, buffer = bytearray(), bytearray(100_000)
            assert body.size == len(data[start:end])
            while count := body.readinto(buffer):
                got += buffer[:count]
        assert bytes(got) == data[start:end]
    proxy.rules = [Rule(Fault.CUT_MID_BODY, 0.1)]  # these begin anew each time, six times at most
    assert store.get(key).body == data
    assert store.get_range(key, 5, 2 << 20) == data[5 : 2 << 20]
    assert proxy.counts()[Fault.CUT_MID_BODY] > 0


PAGE = 50
"""Keys of a page of a listing; by default 1,000, which take long to make."""


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers list PAGE keys at a time."""
    call: Callable[..., object] = vars(BaseClient)["_make_api_call"]

    def called(client: BaseClient, operation: str, parameters: dict[str, object]) -> object:
        more = {"MaxKeys": PAGE} if operation == "ListObjectsV2" else {}
        return call(client, operation, {**parameters, **more})

    monkeypatch.setattr(BaseClient, "_make_api_call", called)


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("share", [0.3])
def test_a_listing_goes_on_where_it_broke_off(proxy: FaultProxy, rng: random.Random, share: float) -> None:
    """Across folders too, which servers order in different ways, and over pages."""
    store = open_store("s3://raw", StoreOptions(endpoint_url=proxy.endpoint, region="us-east-1", path_style=True))
    root = uuid.uuid4().hex
    folders = ["orders", "orders-dlq", "orders.v2", "orders/deep/er"]
    keys = [f"{root}/{rng.choice(folders)}/{number:06d}" for number in range(PAGE + PAGE // 5)]
    in_parallel(lambda key: store.put(key, b""), keys)
    expected = [one.key for one in store.list(f"{root}/")]
    assert len(expected) == len(set(expected)) == len(keys)
    proxy.rules = [Rule(fault, share / 3) for fault in (Fault.CUT_MID_BODY, Fault.LOSE_REPLY, Fault.SLOW_DOWN)]
    while sum(proxy.counts().values()) < 5:
        assert [one.key for one in store.list(f"{root}/")] == expected


@pytest.mark.essential
def test_the_tables_log_is_read_under_faults(proxy: FaultProxy, tmp_path: Path) -> None:
    """delta-rs repeats its own requests, with the options that it is given; what it does not, opening it repeats."""
    name = uuid.uuid4().hex
    world = World(tmp_path, raw=f"s3://raw/{name}", lake=f"s3://lake/{name}", store=QUICK)
    world.raw.segment([simple(0)])
    world.land()
    proxy.rules = [Rule(fault, 0.05) for fault in (Fault.CUT_MID_BODY, Fault.LOSE_REPLY, Fault.ERROR, Fault.SLOW_DOWN)]
    while proxy.counts().total() < 4:  # an opening may be a single request, and pass without a fault
        delta = open_delta(world.table)
        assert delta is not None
        assert delta.version() == 1


def test_no_layer_below_repeats_a_read(proxy: FaultProxy) -> None:
    store = open_store("s3://raw", StoreOptions(endpoint_url=proxy.endpoint, region="us-east-1", path_style=True))
    proxy.rules = [Rule(Fault.SLOW_DOWN)]
    reads: list[Callable[[], object]] = [
        lambda: store.get("k"),
        lambda: store.head("k"),
        lambda: list(store.list("k")),
    ]
    for read in reads:
        before = proxy.requests
        with pytest.raises(Exception, match="k: "):
            read()
        assert proxy.requests - before == retrying.ATTEMPTS
