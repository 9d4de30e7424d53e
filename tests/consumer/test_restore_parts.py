"""Parts of a restore that need no broker: progress as it is committed, and the sum that proves two copies equal."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.tidemark.decode.real_logs import random_records
from tidemark.errors import FormatError, LaterFormat
from tidemark.formats.raw.hashsum import combine
from tidemark.offset_bounds import END, Bound, OffsetBounds
from tidemark.restore.progress import RestoreProgress
from tidemark.restore.records import Record, hash_sum, records_of, rows_of
from tidemark.restore.run import RestoreRequest

PROGRESS = RestoreProgress("a" * 16, 1, 10, 1000, 500, 3, 400, 390, (1 << 128) - 5, 7)


def test_progress_comes_back_as_it_was_committed() -> None:
    metadata = PROGRESS.to_metadata()
    assert RestoreProgress.of(500, metadata, "group") == PROGRESS
    assert len(metadata) < 400
    assert (PROGRESS.done, replace(PROGRESS, next=1000).done) == (False, True)


@pytest.mark.parametrize(
    "metadata",
    ["", "consumer-1", "{}", "[]", '{"format":1}', PROGRESS.to_metadata().replace('"format":1', '"format":0')],
)
def test_what_is_no_progress_names_the_group(metadata: str) -> None:
    with pytest.raises(FormatError, match="group g: does not hold the progress"):
        RestoreProgress.of(500, metadata, "group g")


def test_progress_of_a_later_version() -> None:
    """A field that it adds is ignored, and a later format is none of another kind: nobody should delete it."""
    more = PROGRESS.to_metadata()[:-1] + ',"more":1}'
    assert RestoreProgress.of(500, more, "group") == PROGRESS
    with pytest.raises(LaterFormat, match=r"^group g: has format 2 of RestoreProgress, .* install Tidemark 1\.4"):
        RestoreProgress.of(500, '{"format":2,"needs":"1.4"}', "group g")


def some_records(rng: random.Random) -> list[Record]:
    found = random_records(rng, 50, librdkafka=True)
    odd = [Record(None, None, [], -1), Record(b"", b"", [("", None), ("", b"")], 1 << 62)]
    return [Record(one.key, one.value, list(one.headers), one.timestamp) for one in found] + odd


def test_records_are_the_same_as_columns(rng: random.Random) -> None:
    made = some_records(rng)[:-1]  # a time that no column can hold does not come back
    assert records_of(rows_of(made)) == made
    assert records_of(rows_of([])) == []


def test_the_sum_grows_by_pieces_and_covers_everything(rng: random.Random) -> None:
    made = some_records(rng)
    whole = hash_sum(rows_of(made), 3, 0)
    cut = rng.randrange(len(made))
    assert combine(hash_sum(rows_of(made[:cut]), 3, 0), hash_sum(rows_of(made[cut:]), 3, cut)) == whole
    first, *others = made
    variants = [
        [*others, first],
        made[:-1],
        [first._replace(key=b"other"), *others],
        [first._replace(value=b"other"), *others],
        [first._replace(headers=[*first.headers, ("more", None)]), *others],
        [first._replace(timestamp=first.timestamp + 1), *others],
    ]
    assert all(hash_sum(rows_of(one), 3, 0) != whole for one in variants)
    assert hash_sum(rows_of(made), 4, 0) != whole


def test_other_words_are_another_restore() -> None:
    one = RestoreRequest("east", "orders", "target")
    same = replace(one, on_gap="skip", append=True, codec="none")
    assert same.asked(0) == one.asked(0)
    others = (
        replace(one, topic="sales"),
        replace(one, last=OffsetBounds(Bound("offset", 5))),
        replace(one, committed=False),
        replace(one, transactional=True),  # each finds what a killed process left in its own way
    )
    assert len({one.asked(0), one.asked(1), *(other.asked(0) for other in others)}) == 6
    assert replace(one, last=OffsetBounds(END, {1: Bound("offset", 5)})).asked(0) == one.asked(0)
    assert one.group == "tidemark-restore.east.orders.target"
