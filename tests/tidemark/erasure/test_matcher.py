from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.tidemark.erasure.asked import SECRET, asked
from tidemark.erasure.matcher import Matcher, find_probes, matchers
from tidemark.erasure.secret import VARIABLE, Secret, siphash
from tidemark.errors import ConfigError
from tidemark.formats.raw.erasure import ErasureRequest

OTHER = Secret("another secret of the tests, long enough")
SECRETS = {secret.fingerprint: secret for secret in (SECRET, OTHER)}
TEXTS = [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()]
INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint64()]

Rows = dict[str, list[int]]


def matched(requests: list[ErasureRequest], column: pa.Array[Any]) -> Rows:
    [matcher] = matchers("orders", requests, SECRETS)
    return {request: rows.tolist() for request, rows in matcher.rows(column).items()}


def canonical(value: Any) -> bytes | None:
    """The definition in plain Python."""
    return value if value is None or isinstance(value, bytes) else str(value).encode()


def reference(wanted: dict[str, set[bytes]], values: list[Any], *, confluent: bool) -> Rows:
    found: Rows = {}
    for row, whole in enumerate(map(canonical, values)):
        framed = confluent and whole is not None and len(whole) >= 5 and whole[0] == 0
        value = whole[5:] if framed and whole else whole
        for request in sorted(wanted):
            if value and value in wanted[request]:
                found.setdefault(request, []).append(row)
    return found


def test_the_loop_has_the_probes_of_the_secret(rng: random.Random) -> None:
    values = [rng.randbytes(size) for size in [*range(1, 70), 255, 256, 1000]]
    offsets = np.cumsum([0, *map(len, values)])
    data = np.frombuffer(b"".join(values), np.uint8)
    low, high = key = rng.randrange(1 << 64), rng.randrange(1 << 64)
    for row, value in enumerate(values):
        rows = np.empty(len(values), np.int64)
        wanted = np.array([siphash(key, value) & 0xFFFFFFFF])
        assert find_probes(offsets, data, np.uint64(low), np.uint64(high), False, wanted, rows) == 1
        assert rows[0] == row


def random_value(rng: random.Random, kind: pa.DataType) -> Any:
    if pa.types.is_integer(kind):
        return rng.randint(-100 if pa.types.is_signed_integer(kind) else 0, 100)
    size = rng.choice([0, 1, 3, 4, 5, 6, 8, 12, 40])
    if kind in (pa.string(), pa.large_string()):
        return "".join(rng.choice("ab€") for _ in range(size))
    return bytes(rng.choice(b"\0a") for _ in range(size))


@pytest.mark.parametrize("kind", [*TEXTS, *INTEGERS], ids=str)
def test_the_rows_are_those_of_a_plain_search(rng: random.Random, kind: pa.DataType) -> None:
    for _ in range(60):
        values = [rng.choice([None, random_value(rng, kind)]) for _ in range(rng.randint(0, 60))]
        confluent = rng.random() < 0.5
        wanted: dict[str, set[bytes]] = {}
        requests = []
        for number in range(rng.randint(1, 3)):
            chosen = [canonical(random_value(rng, kind)), *map(canonical, rng.sample(values, min(5, len(values))))]
            if confluent:
                chosen += [value[5:] for value in chosen if value]
            secret = rng.choice([SECRET, OTHER])
            some = {value for value in chosen if value} or {b"nobody"}
            requests.append(asked(some, secret, number, confluent=confluent))
            wanted[requests[-1].id] = some
        column = pa.array(values, kind)
        start = rng.randint(0, len(values))
        for array, plain in [
            (column, values),
            (column.slice(start), values[start:]),
            (column.dictionary_encode(), values),
        ]:
            assert matched(requests, array) == reference(wanted, plain, confluent=confluent)


def test_one_request_looks_behind_the_frame_and_another_does_not() -> None:
    framed = b"\0\0\0\0\x07ada"
    requests = [asked([b"ada"], number=1, confluent=True), asked([framed], number=2)]
    column = pa.array([framed, b"ada", b"\0\0\0\0", b"\0\0\0\0\x07", b"\x01\0\0\0\x07ada"])
    assert matched(requests, column) == {f"{1:016x}": [0, 1], f"{2:016x}": [0]}
    assert matched(requests[:1], column) == {f"{1:016x}": [0, 1]}


def test_null_and_empty_values_are_nobodys() -> None:
    """Even if a request names the empty value, and where the bytes under a null are wanted."""
    offsets, bits = np.array([0, 3, 6, 6], np.int32), b"\x06"
    column = pa.Array.from_buffers(
        pa.binary(), 3, [pa.py_buffer(bits), pa.py_buffer(offsets.data), pa.py_buffer(b"adaada")]
    )
    assert column.to_pylist() == [None, b"ada", b""]
    assert matched([asked([b"ada", b""])], column) == {f"{1:016x}": [1]}
    assert matched([asked([b""], confluent=True)], pa.array([b"\0\0\0\0\x07"])) == {}


def test_the_digest_decides_where_the_probe_is_that_of_another_value() -> None:
    request = asked([b"ada"])
    probe = f"{SECRET.probe(b'bob'):08x}"
    forged = request.model_copy(update={"values": (request.values[0].model_copy(update={"probe": probe}),)})
    assert matched([forged], pa.array([b"bob", b"ada"])) == {}


def test_a_value_of_many_rows_is_digested_once(monkeypatch: pytest.MonkeyPatch) -> None:
    digested = []
    digest = Secret.digest

    def counted(secret: Secret, value: bytes) -> str:
        digested.append(value)
        return digest(secret, value)

    request = asked([b"ada"])
    monkeypatch.setattr(Secret, "digest", counted)
    assert len(matched([request], pa.array([b"ada", b"bob"] * 1000))[request.id]) == 1000
    assert digested == [b"ada"]


def test_each_column_of_a_topic_has_a_matcher() -> None:
    requests = [asked([b"ada"], number=1), asked([b"7"], number=2, column="customer_id"), asked([b"bob"], number=3)]
    assert [matcher.column for matcher in matchers("orders", requests, SECRETS)] == ["kafka_key", "customer_id"]
    assert matchers("clicks", requests, SECRETS) == []
    by_key, by_column = matchers("orders", requests, SECRETS)
    assert [*by_key.rows(pa.array([b"bob", b"7", b"ada"]))] == [f"{3:016x}", f"{1:016x}"]
    assert [*by_column.rows(pa.array([7, 8]))] == [f"{2:016x}"]


def test_a_request_of_a_secret_that_is_not_there_is_refused() -> None:
    request = asked([b"ada"], OTHER)
    with pytest.raises(ConfigError, match=f"^{VARIABLE}: lacks the secret {OTHER.fingerprint} of request {request.id}"):
        matchers("orders", [request], {SECRET.fingerprint: SECRET})
    assert matchers("clicks", [request], {SECRET.fingerprint: SECRET}) == []


@pytest.mark.parametrize(
    "kind", [pa.float64(), pa.bool_(), pa.timestamp("us"), pa.date32(), pa.list_(pa.string()), pa.decimal128(5, 2)]
)
def test_values_of_other_types_are_refused(kind: pa.DataType) -> None:
    for column in (pa.array([None], kind), pa.array([], kind)):
        with pytest.raises(ConfigError, match=r"^column price: is .*; only texts \(string\), bytes \(binary\) and int"):
            Matcher("price").rows(column)


def test_a_column_that_points_out_of_its_data_is_refused() -> None:
    offsets = np.array([0, 3], np.int32)
    column = pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(offsets.data), pa.py_buffer(b"ada")])
    offsets[1] = 99
    with pytest.raises(ValueError, match="point outside"):
        matched([asked([b"ada"])], column)
