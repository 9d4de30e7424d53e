"""Knows the true log by (offset, epoch), and what must never happen to the store and to the table."""

from __future__ import annotations

from tests.live_end.broker import Cluster, Topic
from tests.live_end.model import UNKNOWN, Batch, Entry, Log, Watermark, is_live, live_batches, live_until, scan
from tests.live_end.reader import Table, Told
from tests.live_end.store import Store, Stored, folder, watermark_key
from tidemark.kafka_log import Lineage


class Oracle(Told):
    """Collects what is ``wrong``."""

    def __init__(self, cluster: Cluster) -> None:
        self.wrong: list[str] = []
        self.store: Store | None = None
        self._cluster = cluster
        self._kept: dict[tuple[str, int, int], set[str]] = {}
        self._told: dict[str, set[Entry]] = {}

    # -- the store -----------------------------------------------------------------------------------------------------

    def watch(self, key: str, before: Stored | None, after: Stored | None) -> None:
        """Judge a change of an object."""
        if before is not None and after is not None and before.value != after.value:
            self._replaced(key, before, after)
        for batch, topic in self._batches(key, before):
            self._kept[topic, batch.base, batch.epoch].discard(key)
        for batch, topic in self._batches(key, after):
            self._kept.setdefault((topic, batch.base, batch.epoch), set()).add(key)
        for batch, topic in self._batches(key, before):
            if not self._kept[topic, batch.base, batch.epoch]:
                self._say(f"the only copy of {topic} {batch.base} (epoch {batch.epoch}) went with {key}")
        for entry in after.value if after is not None and key.startswith("_heads/") else ():
            self._told.setdefault(entry.topic, set()).add(entry)
        for start, end in after.value.gaps if after is not None and key.startswith("wm/") else ():
            self._missing(key.removeprefix("wm/"), start, f"the agent records a gap to {end}")

    def _replaced(self, key: str, before: Stored, after: Stored) -> None:
        if not key.startswith(("wm/", "_heads/")):
            self._say(f"{key} was written twice")
        if isinstance(before.value, Watermark):
            old, new = before.value, after.value
            if new.line1 >= new.next > 0:
                self._say(f"{key}: line 1 is {new.line1}, and the next offset {new.next}")
            if (new.epoch, new.next) < (old.epoch, old.next):
                self._say(f"{key} went back from {old.epoch}, {old.next} to {new.epoch}, {new.next}")

    def _batches(self, key: str, stored: Stored | None) -> list[tuple[Batch, str]]:
        if stored is None:
            return []
        if key.endswith(".log"):
            return [(batch, key.split("/")[1]) for batch in stored.value]
        if key.endswith(".pack"):
            return [(batch, one.topic) for one in stored.value for batch in one.log]
        return []

    def _objects(self) -> dict[str, Stored]:
        assert self.store is not None
        return self.store.objects

    # -- the reader ----------------------------------------------------------------------------------------------------

    def lost(self, topic: str, offset: int) -> None:
        self._missing(topic, offset, "the reader reports LOST")

    def gone(self, topic: str, pack: str) -> None:
        self._say(f"a run that lands {topic} does not find {pack}")

    def _missing(self, topic: str, offset: int, what: str) -> None:
        """Nothing is ever lost here: retention on the brokers takes only what the store has and finds."""
        self._say(f"{what}: {topic} {offset}")

    def committed(self, topic: str, table: Table, written: Watermark) -> None:
        """What has landed was committed once, and is on the lineage by which the run was planned."""
        known, live = self._topic(topic), live_until(table.lineage, written.lineage, 0, table.next)
        for offset, row in table.rows.items():
            if offset >= live and not is_live(offset, row.epoch, written.lineage):
                self._say(f"{topic} {offset} of epoch {row.epoch} stays, and {written.lineage.entries} has cut it off")
            if not any((base, row.epoch) in known.committed for base in range(offset, offset - 4, -1)):
                self._say(f"{topic} {offset} of epoch {row.epoch} has landed and was never committed")

    # -- in the end ----------------------------------------------------------------------------------------------------

    def end(self, tables: dict[str, Table], *, compacted: bool, faults: bool) -> None:
        """After quiet: all that is committed has landed, as the true log decides it, and is found in the store."""
        for topic in self._cluster.topics:
            table = tables.get(topic.name, Table())
            if topic.deleted:
                stored = self._objects().get(watermark_key(topic.name))
                lineage = stored.value.lineage if stored else Lineage()
                log, end = self._cluster.branch(topic, lineage, UNKNOWN), self._promised(topic, stored)
                self._compare(topic, table, log, end, compacted=compacted)
            else:
                log = self._cluster.true_log(topic)
                self._compare(topic, table, log, UNKNOWN, compacted=compacted)
                self._sealed(topic)
            self._kept_by_raw(topic, table)
        self._entries()
        if not faults and not (compacted and len(self._cluster.topic.replicas) > 1):
            self._packs()

    def _packs(self) -> None:
        """Retention has deleted the packs that were sealed, where no reply was lost and nobody was killed.

        Where two replicas have cleaned the same range differently, one of two packs may stay for good.
        """
        for key, pack in self._objects().items():
            for one in pack.value if key.endswith(".pack") else ():
                stored = self._objects().get(watermark_key(one.topic))
                live = stored is not None and live_batches(one.log, stored.value.lineage)
                if stored is not None and live and one.next <= stored.value.next:
                    self._say(f"{key} stays, although {one.topic} is sealed to {stored.value.next}")

    def _promised(self, topic: Topic, stored: Stored | None) -> int:
        """How far heads and ``offset.wm`` went for a deleted topic, on the last lineage that ``offset.wm`` had."""
        if stored is None:
            return 0
        tails = self._told.get(topic.name, ())
        written: Watermark = stored.value
        return max([written.next, *(live_until(one.lineage, written.lineage, 0, one.tail_end) for one in tails)])

    def _entries(self) -> None:
        """No head keeps what is sealed."""
        for key, head in self._objects().items():
            for entry in head.value if key.startswith("_heads/") else ():
                topic = self._topic(entry.topic)
                if topic.deleted or entry.epoch != topic.epoch:
                    self._say(f"{key} keeps {entry.topic} of epoch {entry.epoch}")

    def _compare(self, topic: Topic, table: Table, log: Log, end: int, *, compacted: bool) -> None:
        """The table against ``log``: all below ``end`` that is decided there has landed as it should."""
        expected, _ = verdicts(log)
        _, decided = verdicts(tuple(batch for batch in log if batch.next <= end))
        if table.next < decided or (table.next > decided and end == UNKNOWN and not compacted):
            self._say(f"{topic.name} is landed to {table.next}, and decided to {decided}")
        expected = {offset: row for offset, row in expected.items() if offset < table.next}
        for offset in sorted({*expected, *table.rows}):
            there, should = table.rows.get(offset), expected.get(offset)
            if there is None and compacted:
                continue
            if there is None or should is None or (there.epoch, there.uid, there.verdict) != should:
                self._say(f"{topic.name} {offset} is {there}, and should be {should}")
                return

    def _sealed(self, topic: Topic) -> None:
        """The agents were eager in the end: all is sealed, and ``offset.wm`` says so."""
        stored = self._objects().get(watermark_key(topic.name))
        high = topic.replicas[topic.leader].hw
        there = stored.value.next if stored else 0
        if there < high:
            self._say(f"{topic.name} is sealed to {there}, and committed to {high}")

    def _kept_by_raw(self, topic: Topic, table: Table) -> None:
        """No row has landed that the seals lack: raw answers for the table."""
        stored = self._objects().get(watermark_key(topic.name))
        if stored is None:
            return
        logs = [
            log.value
            for key, log in self._objects().items()
            if key.startswith(folder(topic.name)) and key.endswith(".log")
        ]
        kept = {(row, batch.epoch) for log in logs for batch in log for row in batch.rows}
        for offset, row in table.rows.items():
            if offset < stored.value.next and (offset, row.epoch) not in kept:
                self._say(f"{topic.name} {offset} of epoch {row.epoch} has landed, and no seal keeps it")

    def _topic(self, name: str) -> Topic:
        return next(topic for topic in self._cluster.topics if topic.name == name)

    def _say(self, what: str) -> None:
        self.wrong.append(what)


def verdicts(log: Log) -> tuple[dict[int, tuple[int, int, str]], int]:
    """(epoch, uid, verdict) of each row of ``log`` that is decided, and how far all is."""
    opened, aborts = scan(log, ())
    end = log[-1].next if log else 0
    decided = min([end, *(one.first for one in opened)])
    found: dict[int, tuple[int, int, str]] = {}
    for batch in log:
        if batch.next > decided or batch.marker is not None:
            continue
        hit = any(one.producer == batch.producer and one.first <= batch.base < one.last for one in aborts)
        for row in batch.rows:
            found[row] = (batch.epoch, batch.uid, "aborted" if hit else "row")
    return found, decided
