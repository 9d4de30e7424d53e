"""The proxy does what it says, seen from a client with limits and from the server behind."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator

import pytest
from crc32c import crc32c

from tests.support.proxy import Fault, FaultProxy, Rule
from tests.support.s3 import S3Server
from tidemark.errors import AccessDenied, PreconditionFailed, SlowDown, StoreError, UnknownOutcome
from tidemark.store import Store, StoreOptions, open_store
from tidemark.store.s3.clients import forget_clients

BODY = random.Random(1).randbytes(300_000)
LANDS = {Fault.DELAY, Fault.HANG_BEFORE_REPLY, Fault.LOSE_REPLY, Fault.TRICKLE}
ANSWERED = {
    Fault.DELAY: None,
    Fault.SLOW_DOWN: SlowDown,
    Fault.FORBIDDEN: AccessDenied,
    Fault.CONFLICT: PreconditionFailed,
    Fault.PRECONDITION: PreconditionFailed,
    Fault.CORRUPT: StoreError,
}


@pytest.fixture(autouse=True)
def fresh(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in s3_server.env().items():
        monkeypatch.setenv(name, value)
    yield
    forget_clients()


def through(proxy: FaultProxy) -> Store:
    options = {"endpoint_url": proxy.endpoint, "path_style": True, "deadline": "1s"}
    return open_store("s3://raw", StoreOptions.model_validate(options))


@pytest.mark.essential
@pytest.mark.parametrize("fault", Fault)
def test_each_fault(s3_server: S3Server, rng: random.Random, fault: Fault) -> None:
    key = f"proxy/{uuid.uuid4().hex}"
    with FaultProxy(s3_server.endpoint, rng, [Rule(fault, where=lambda request: request.method == "PUT")]) as proxy:
        store = through(proxy)
        try:
            store.put(key, BODY, crc32c=crc32c(BODY))
            outcome: type[StoreError] | None = None
        except StoreError as error:
            outcome = type(error)
        assert outcome is ANSWERED.get(fault, UnknownOutcome)
        assert proxy.counts() == {fault: 1}
        assert proxy.injected[0].path == f"/raw/{key}"
        assert bool(list(store.list(key))) == (fault in LANDS)

        proxy.rules = ()
        store.put(key, BODY, crc32c=crc32c(BODY))
        assert store.get(key).body == BODY


@pytest.mark.usefixtures("quick_retries")
@pytest.mark.parametrize("fault", [Fault.CUT_MID_BODY, Fault.HANG_MID_BODY, Fault.CORRUPT])
def test_a_reply_that_is_cut_or_hangs_or_is_corrupt(s3_server: S3Server, rng: random.Random, fault: Fault) -> None:
    key = f"proxy/{uuid.uuid4().hex}"
    with FaultProxy(s3_server.endpoint, rng) as proxy:
        store = through(proxy)
        store.put(key, BODY, crc32c=crc32c(BODY))
        proxy.rules = lambda request: fault if request.method == "GET" else None
        with pytest.raises(UnknownOutcome):
            store.get(key)
        assert proxy.counts()[fault] >= 1
