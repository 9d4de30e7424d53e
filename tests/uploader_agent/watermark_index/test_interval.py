"""The index tells of news so soon that readers can keep the promise of the topic with the shortest freshness."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from tidemark.storage import Storage
from uploader_agent.tuning import STANDARD
from uploader_agent.watermark_index import IndexPublisher


@pytest.mark.parametrize(
    ("seconds", "interval"),
    [([], 10.0), ([900], 10.0), ([60], 10.0), ([60, 20], 20 / 6), ([3], 0.5)],
    ids=str,
)
def test_news_wait_for_a_sixth_of_the_shortest_freshness_at_most(
    tmp_path: Path, seconds: list[int], interval: float
) -> None:
    freshness = [timedelta(seconds=one) for one in seconds]
    storage = Storage.at(f"file://{tmp_path}", "east")
    publisher = IndexPublisher(storage, 1, "", STANDARD, tuple, freshness=lambda: freshness)
    assert publisher.interval == pytest.approx(interval)
