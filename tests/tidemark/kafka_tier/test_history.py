"""Which copies count, by leader epochs alone, in random histories with clean and unclean elections."""

from __future__ import annotations

import random

import pytest

from tidemark.kafka_log import Lineage
from tidemark.kafka_tier.copies import belongs, continued, newness
from tidemark.kafka_tier.manifest import SegmentMetadata


def segment(start: int, end: int, epochs: dict[int, int]) -> SegmentMetadata:
    """What Kafka says of the offsets ``[start, end)``."""
    return SegmentMetadata.model_validate(
        {
            "remoteLogSegmentId": {
                "topicIdPartition": {"topicId": "t", "topicPartition": {"topic": "orders", "partition": 0}},
                "id": "s",
            },
            "startOffset": start,
            "endOffset": end - 1,
            "brokerId": 1,
            "eventTimestampMs": 0,
            "segmentLeaderEpochs": epochs,
        }
    )


def of(lineage: Lineage, start: int, end: int) -> SegmentMetadata:
    """The segment of a log with this lineage."""
    first = lineage.epoch_at(start)
    assert first is not None
    within = {epoch: at for epoch, at in lineage.entries if start < at < end}
    return segment(start, end, {first: start, **within})


HISTORY = Lineage(((0, 0), (2, 100), (3, 150)))


@pytest.mark.parametrize(
    ("start", "end", "epochs"),
    [
        (0, 100, {0: 0}),
        (50, 100, {0: 50}),
        (50, 120, {0: 50, 2: 100}),
        (0, 200, {0: 0, 2: 100, 3: 150}),
        (100, 150, {2: 100}),
        (160, 999, {3: 160}),
    ],
)
def test_a_segment_of_the_history(start: int, end: int, epochs: dict[int, int]) -> None:
    assert belongs(segment(start, end, epochs), HISTORY)


@pytest.mark.parametrize(
    ("start", "end", "epochs"),
    [
        (0, 101, {0: 0}),
        (0, 120, {0: 0, 1: 100}),
        (0, 120, {0: 0, 2: 90}),
        (0, 120, {0: 0, 2: 110}),
        (90, 120, {2: 90}),
        (0, 200, {0: 0, 3: 150}),
        (100, 151, {2: 100}),
        (160, 200, {4: 160}),
    ],
)
def test_a_segment_of_another_history(start: int, end: int, epochs: dict[int, int]) -> None:
    assert not belongs(segment(start, end, epochs), HISTORY)


def test_the_log_start_may_lie_within_a_segment() -> None:
    """Kafka cuts its epochs there, and the first one then begins there."""
    assert belongs(segment(275, 300, {0: 275}), Lineage(((0, 284),)))
    assert belongs(segment(0, 120, {0: 0, 2: 100}), Lineage(((2, 110), (3, 150))))
    assert not belongs(segment(0, 160, {0: 0, 2: 100}), Lineage(((2, 110), (3, 150))))


def test_random_elections(rng: random.Random) -> None:
    """Segments of the log as it was before each election, and of the log that is left."""
    for _ in range(300):
        lineage, end, epoch = Lineage(((0, 0),)), rng.randrange(1, 100), 0
        before: list[tuple[Lineage, int]] = []
        for _ in range(rng.randrange(6)):
            before.append((lineage, end))
            epoch += rng.randrange(1, 3)
            cut = end if rng.random() < 0.5 else rng.randrange(0, end + 1)  # else unclean
            kept = [entry for entry in lineage.entries if entry[1] < cut]
            lineage = Lineage((*kept, (epoch, cut)))
            end = cut + rng.randrange(1, 100)
        for old, old_end in [*before, (lineage, end)]:
            start = rng.randrange(old_end)
            stop = rng.randrange(start + 1, old_end + 1)
            shared = old.divergence(lineage, min(stop, end))
            same = shared is None and stop <= end
            assert belongs(of(old, start, stop), lineage) == same, (old, start, stop, lineage, end)


def test_newer_epochs_of_a_copy_whose_index_is_lost_continue_the_history() -> None:
    later = [segment(150, 200, {1: 150, 4: 180}), segment(120, 150, {5: 120})]
    assert continued(Lineage(((0, 0), (1, 100))), later[:1]).entries == ((0, 0), (1, 100), (4, 180))
    assert continued(Lineage(((0, 0), (1, 100))), later).entries == ((0, 0), (1, 100), (5, 120)), "unclean"
    assert max(later, key=newness) == later[1]
