from __future__ import annotations

import random

from tests.tidemark.kafka_log.build import empty, marker, simple, transactional
from tidemark.kafka_log import BatchHeader, OpenTransaction, SegmentScanner, carry_forward, scan_batches


def headers(*parts: bytes) -> list[BatchHeader]:
    return list(scan_batches([b"".join(parts)], "segment.log", 0))


def test_markers_close_what_data_opened() -> None:
    log = headers(
        transactional(0, 11, 3, epoch=2),
        transactional(3, 12, 2),
        simple(5, 1),
        transactional(6, 11, 2, epoch=2),
        marker(8, 11, commit=False, epoch=2),
        transactional(9, 13, 1),
    )
    assert carry_forward((), log) == (OpenTransaction(12, 0, 3), OpenTransaction(13, 0, 9))


def test_a_transaction_may_stay_open_over_segments() -> None:
    before = [OpenTransaction(11, 2, 40), OpenTransaction(12, 0, 30)]
    log = headers(transactional(100, 11, 3, epoch=2), marker(103, 12, commit=True))
    assert carry_forward(before, log) == (OpenTransaction(11, 2, 40),)


def test_a_producer_starts_again_after_its_marker() -> None:
    log = headers(transactional(0, 11, 3), marker(3, 11, commit=True), transactional(4, 11, 3, epoch=1))
    assert carry_forward((), log) == (OpenTransaction(11, 1, 4),)


def test_plain_batches_of_an_idempotent_producer_open_nothing() -> None:
    assert carry_forward((), headers(simple(0, 3, producer_id=5, producer_epoch=0))) == ()


def test_a_marker_without_its_data_closes_nothing() -> None:
    assert carry_forward((), headers(marker(0, 11, commit=True), empty(1, 0, attributes=0x30, producer_id=9))) == ()


def test_the_scanner_carries_the_same() -> None:
    before = (OpenTransaction(7, 0, 2),)
    parts = [transactional(10, 8, 1), marker(11, 7, commit=False), transactional(12, 9, 1)]
    scanner = SegmentScanner("segment.log", 10, open_before=before)
    scanner.feed(b"".join(parts))
    assert scanner.finish().open_transactions == carry_forward(before, headers(*parts))


def test_any_interleaving_equals_a_simple_model(rng: random.Random) -> None:
    model: dict[int, int] = {}
    parts, offset = [], 0
    for _ in range(400):
        producer = rng.randint(1, 6)
        if producer in model and rng.random() < 0.3:
            parts.append(marker(offset, producer, commit=rng.random() < 0.5))
            del model[producer]
            offset += 1
        else:
            parts.append(transactional(offset, producer, 2))
            model.setdefault(producer, offset)
            offset += 2
    opened = carry_forward((), headers(*parts))
    assert [(each.producer_id, each.first_offset) for each in opened] == sorted(model.items(), key=lambda item: item[1])
