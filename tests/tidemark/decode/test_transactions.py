from __future__ import annotations

import random

import numpy as np

from tests.tidemark.decode.reference import decoded
from tests.tidemark.kafka_log.build import marker, simple, transactional
from tidemark.decode import aborted_mask, scan_headers
from tidemark.kafka_log import AbortedTransaction

P, Q = 11, 12


def test_read_committed_leaves_out_what_was_aborted() -> None:
    data = b"".join(
        [
            transactional(0, P, 3),
            transactional(3, Q, 2),
            simple(5, 1),
            transactional(6, P, 2),
            marker(8, P, commit=False),
            transactional(9, Q, 1),
            marker(10, Q, commit=True),
            transactional(11, P, 2),
            marker(13, P, commit=True),
            transactional(14, Q, 2),
        ]
    )
    headers = scan_headers(data, "segment.log", 0)
    mask = aborted_mask(headers, [AbortedTransaction(P, 0, 8)])
    assert headers["base_offset"][mask].tolist() == [0, 6]
    rows = decoded(data, select=~mask, to_offset=14)  # from 14 on a transaction is open
    assert [row.offset for row in rows] == [3, 4, 5, 9, 11, 12]


def test_plain_batches_of_the_same_producer_stay() -> None:
    data = simple(0, 1, producer_id=P, producer_epoch=0) + transactional(1, P, 1) + marker(2, P, commit=False)
    headers = scan_headers(data, "segment.log", 0)
    assert aborted_mask(headers, [AbortedTransaction(P, 0, 2)]).tolist() == [False, True, False]


def test_nothing_aborted_and_nothing_there() -> None:
    headers = scan_headers(transactional(0, P, 1), "segment.log", 0)
    assert not aborted_mask(headers, []).any()
    assert aborted_mask(headers[:0], [AbortedTransaction(P, 0, 2)]).tolist() == []


def test_any_log_equals_the_consumers_way_of_following_it(rng: random.Random) -> None:
    """As Kafka's consumer: a producer is aborted from the first offset of an entry until its abort marker."""
    for _ in range(30):
        parts, aborted, opened, offset = [], [], dict[int, int](), 0
        for _ in range(rng.randint(1, 120)):
            producer = rng.randint(1, 5)
            if producer in opened and rng.random() < 0.4:
                commit = rng.random() < 0.5
                parts.append(marker(offset, producer, commit=commit))
                if not commit:
                    aborted.append(AbortedTransaction(producer, opened[producer], offset))
                del opened[producer]
                offset += 1
            else:
                parts.append(transactional(offset, producer, 2) if rng.random() < 0.8 else simple(offset, 2))
                if parts[-1][22] & 0x10:
                    opened.setdefault(producer, offset)
                offset += 2
        headers = scan_headers(b"".join(parts), "segment.log", 0)
        rng.shuffle(aborted)
        assert aborted_mask(headers, aborted).tolist() == as_the_consumer(headers, aborted)


def as_the_consumer(headers: np.ndarray, aborted: list[AbortedTransaction]) -> list[bool]:
    pending = sorted(aborted, key=lambda transaction: transaction.first_offset)
    producers: set[int] = set()
    mask = []
    for header in headers:
        last = header["base_offset"] + header["last_offset_delta"]
        while pending and pending[0].first_offset <= last:
            producers.add(pending.pop(0).producer_id)
        control, transaction = bool(header["attributes"] & 0x20), bool(header["attributes"] & 0x10)
        if control and any(entry.last_offset == header["base_offset"] for entry in aborted):
            producers.discard(int(header["producer_id"]))
        mask.append(transaction and not control and int(header["producer_id"]) in producers)
    return mask
