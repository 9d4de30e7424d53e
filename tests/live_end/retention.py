"""Retention of packs: the only one who deletes them, and only what seals have been proved to hold."""

from __future__ import annotations

from collections.abc import Sequence

from tests.live_end.model import Conflict, Range, Rules, Steps, UnknownOutcome
from tests.live_end.reader import Reader
from tests.live_end.store import Store, Stored, folder, log_key, watermark_key


class Retention:
    """Deletes a pack when seals hold each of its batches, and all runs that may read it have ended."""

    def __init__(self, store: Store, rules: Rules, topics: Sequence[str], reader: Reader) -> None:
        self._store = store
        self._rules = rules
        self._topics = topics
        self._reader = reader

    def run(self) -> Steps[None]:
        proved: dict[str, int] = {}
        while True:
            try:
                yield from self._visit(proved)
            except (Conflict, UnknownOutcome):
                continue

    def _visit(self, proved: dict[str, int]) -> Steps[None]:
        listed: list[tuple[str, str]] = yield self._store.list("_tails/")
        for key, _ in listed:
            found: Stored | None = yield self._store.get(key)
            ranges: tuple[Range, ...] = found.value if found else ()
            for one in ranges:
                if not (yield from self._held(one)):
                    proved.pop(key, None)
                    break
            else:
                since = proved.setdefault(key, self._reader.runs)
                waited = self._reader.runs > since + 1
                if waited or not self._rules("packs outlive the runs that may read them"):
                    yield self._store.delete(key)

    def _held(self, one: Range) -> Steps[bool]:
        """Whether live seals hold each batch of the range, byte by byte."""
        if not self._rules("packs go by proof"):
            found: Stored | None = yield self._store.get(watermark_key(one.topic))
            return found is not None and found.value.next >= one.next
        missing = set(one.log)
        listed: list[tuple[str, str]] = yield self._store.list(folder(one.topic))
        for key, _ in listed:
            if key.endswith(".manifest") and missing:
                manifest: Stored = yield self._store.get(key)
                log: Stored | None = yield self._store.get(log_key(one.topic, manifest.value.stem))
                assert log is not None, f"{key} describes nothing"
                missing -= set(log.value)
        return not missing
