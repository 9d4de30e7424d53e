"""Rows of watermarks that were read one by one, laid over a scan of all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from tidemark_airflow.triggers.index_scanner import Scan
from tidemark_airflow.triggers.readiness import Row


class Overlay:
    """What is known of all topics: the last scan, and what is newer. A topic whose rows stay keeps its sequence."""

    def __init__(self) -> None:
        self._below = Scan({})
        self._newer: dict[tuple[str, int], Row] = {}
        self._topics = dict(self._below.topics)

    def rest_on(self, scan: Scan) -> None:
        """Take ``scan`` as what lies below, and forget what it knows too."""
        self._below, self._topics = scan, dict(scan.topics)
        newer, self._newer = self._newer, {}
        self.add(newer.values())

    def add(self, rows: Iterable[Row]) -> None:
        """Take in rows that are newer than what is known of their partitions; how large offsets are stays as it was."""
        by_topic: dict[str, list[Row]] = defaultdict(list)
        for row in rows:
            by_topic[row[0]].append(row)
        for topic, several in by_topic.items():
            known = {row[1]: row for row in self._topics.get(topic, ())}
            newer: dict[int, Row] = {}
            for row in several:
                before = known.get(row[1])
                # Incarnation, leader epoch and next offset: of two rows of a partition the higher one counts.
                if before is None or row[2:5] > before[2:5]:
                    known[row[1]] = newer[row[1]] = (*row[:5], before[5] if before else None, row[6])
            if newer:
                self._newer.update({(topic, partition): row for partition, row in newer.items()})
                self._topics = {**self._topics, topic: tuple(known.values())}

    def scan(self) -> Scan:
        """The whole."""
        return self._below._replace(topics=self._topics)
