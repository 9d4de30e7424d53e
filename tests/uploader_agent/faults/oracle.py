"""The oracle: what producers know against what the store holds, read as a reader reads it and decoded by kafka-python.

It shares no code with the agent. A stored batch counts iff the watermark's lineage gives its offset to its epoch; what
the planner would read of the same objects must come to the same records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

from crc32c import crc32c
from kafka.record.memory_records import MemoryRecords

from tidemark.errors import NotFound, TidemarkError
from tidemark.formats.keys import ControlKeys, Endpoint, PartitionKeys
from tidemark.formats.raw.incarnations import TopicIncarnations
from tidemark.formats.raw.manifest import SegmentManifest
from tidemark.formats.raw.watermark import Watermark, parse
from tidemark.intervals import Intervals
from tidemark.kafka_log import BatchHeader, Lineage, scan_batches
from tidemark.raw.segments import SegmentPiece, cover, segment_of, whole_lineage
from tidemark.storage import PartitionStore
from tidemark.store import Store

Digest = bytes
"""What stands for a record: a hash of its key and its value."""


def digest(key: bytes | None, value: bytes | None) -> Digest:
    """The record's digest; null and empty differ."""
    lengths = b"%d:%d:" % (-1 if key is None else len(key), -1 if value is None else len(value))
    return blake2b(lengths + (key or b"") + (value or b""), digest_size=12).digest()


@dataclass
class Truth:
    """What producers know of one partition of one incarnation: by offset what was acknowledged, and all they sent.

    ``keys`` is filled for compacted topics: the key of each acknowledged offset.
    """

    acknowledged: dict[int, Digest] = field(default_factory=dict)
    sent: set[Digest] = field(default_factory=set)
    keys: dict[int, bytes] = field(default_factory=dict)

    @property
    def end(self) -> int:
        """The offset after the last acknowledged one."""
        return max(self.acknowledged, default=-1) + 1


@dataclass(frozen=True)
class Expected:
    """What must hold beyond the records: ``end`` is the least that ``next_offset`` must be, ``high`` the most.

    ``log`` is what the leader's own log holds by offset: a producer may not know of all that it wrote.
    """

    end: int = 0
    high: int | None = None
    gaps: tuple[tuple[int, int, str], ...] = ()
    compacted: bool = False
    log: Mapping[int, Digest] | None = None


@dataclass(frozen=True)
class StoredLog:
    """One manifest, the batches of its log as far as they are sound, and by batch the data records: offset, digest."""

    manifest: SegmentManifest
    key: str
    headers: tuple[BatchHeader, ...]
    records: dict[int, list[tuple[int, Digest]]]


@dataclass
class Verdict:
    """What is wrong, and what was looked at."""

    name: str
    problems: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def wrong(self, text: str) -> None:
        self.problems.append(f"{self.name}: {text}")


def total(verdicts: Iterable[Verdict]) -> str:
    """One line of counts over all."""
    counts: Counter[str] = Counter()
    for verdict in verdicts:
        counts.update(verdict.counts)
        counts["partitions"] += 1
    return ", ".join(f"{number} {what}" for what, number in sorted(counts.items()))


class Reader:
    """Reads one deployment's store."""

    def __init__(self, store: Store, prefix: str, cluster: str) -> None:
        self._store = store
        self._cluster = cluster
        self._endpoint = Endpoint(store.url, prefix)
        self._control = ControlKeys(prefix, cluster)

    def keys(self, topic: str, topic_id: str | None, partition: int) -> PartitionKeys:
        """Where the partition of that incarnation lies, as the store itself says."""
        key = self._control.incarnations(topic)
        lives = TopicIncarnations.from_bytes(self._store.get(key).body, key)
        found = lives.find(topic_id)
        assert found is not None, f"{key} does not list topic id {topic_id}"
        return PartitionKeys(self._endpoint, self._cluster, found[1].place, partition)

    def knows(self, topic: str) -> bool:
        """Whether an agent has seen the topic."""
        return bool(list(self._store.list(self._control.incarnations(topic))))

    def watermark(self, keys: PartitionKeys) -> tuple[int, Watermark] | None:
        """``offset.wm``; None if there is none."""
        try:
            base, found = parse(self._store.get(keys.watermark).body, keys.watermark)
        except NotFound:
            return None
        assert found is not None
        return base, found

    def judge(self, keys: PartitionKeys, topic_id: str | None, truth: Truth, expected: Expected) -> Verdict:
        """Compare everything of one partition."""
        verdict = Verdict(f"{keys.place}-{keys.partition}")
        try:
            _Judge(PartitionStore(self._store, keys), truth, expected, verdict).run(self.watermark(keys), topic_id)
        except TidemarkError as error:
            verdict.wrong(f"cannot be read: {error}")
        return verdict


class _Judge:
    """The steps of :meth:`Reader.judge`."""

    def __init__(self, partition: PartitionStore, truth: Truth, expected: Expected, verdict: Verdict) -> None:
        self._store = partition.store
        self._keys = partition.keys
        self._truth = truth
        self._expected = expected
        self._verdict = verdict

    def run(self, found: tuple[int, Watermark] | None, topic_id: str | None) -> None:
        self._verdict.counts["acknowledged"] += len(self._truth.acknowledged)
        if found is None:
            if self._expected.end:
                self._verdict.wrong(f"no offset.wm, but {self._expected.end} offsets are due")
            return
        base, watermark = found
        if watermark.topic_id != topic_id:
            self._verdict.wrong(f"offset.wm is of topic id {watermark.topic_id}, not {topic_id}")
        logs = list(self._logs(topic_id))
        self._check_watermark(base, watermark, logs)
        live = self._live(logs, watermark)
        seen = self._check_reader(logs, watermark, live)
        self._check_records(watermark, seen if self._expected.compacted else live)
        self._verdict.counts.update(segments=len(logs), gaps=len(watermark.gaps))

    def _logs(self, topic_id: str | None) -> Iterator[StoredLog]:
        """Each manifest with its objects proved."""
        for info in self._store.list(self._keys.folder):
            named = self._keys.segment_of(info.key)
            if named is None and info.key != self._keys.watermark:
                self._verdict.wrong(f"{info.key} has no business there")
            if named is None or named[1] != "manifest.json":
                continue
            manifest = SegmentManifest.from_bytes(self._store.get(info.key).body, info.key)
            if (manifest.topic_id, manifest.partition) != (topic_id, self._keys.partition):
                self._verdict.wrong(f"{info.key} speaks of another partition: {manifest.topic_id}")
            body = self._body(manifest)
            self._verdict.counts[manifest.state] += 1
            headers = tuple(scan_batches([body], info.key, manifest.base_offset))
            yield StoredLog(manifest, info.key, headers, _records(body))

    def _body(self, manifest: SegmentManifest) -> bytes:
        """The log as far as it is sound; every object proved."""
        fetched = {name: self._store.get(self._keys.file(name)) for name in manifest.objects}
        log = manifest.log_name
        for name, known in manifest.objects.items():
            content, etag = fetched[name]
            proved = (len(content), f"{crc32c(content):08x}", etag)
            if proved != (known.size, known.crc32c, known.etag):
                self._verdict.wrong(f"{name} is {proved}, and its manifest says {known}")
        return fetched[log].body[: manifest.damage.position if manifest.damage else manifest.objects[log].size]

    def _check_watermark(self, base: int, watermark: Watermark, logs: list[StoredLog]) -> None:
        end, expected = watermark.next_offset, self._expected
        if end < expected.end:
            self._verdict.wrong(f"next_offset is {end}, and everything below {expected.end} is due")
        if expected.high is not None and end > expected.high:
            self._verdict.wrong(f"next_offset {end} is above the high watermark {expected.high}")
        if not any(one.manifest.base_offset == base < end for one in logs) and end > watermark.start_offset:
            self._verdict.wrong(f"line 1 names {base}, which is no segment below {end}")
        gaps = tuple((gap.start, gap.end, gap.reason) for gap in watermark.gaps)
        if gaps != expected.gaps:
            self._verdict.wrong(f"gaps are {gaps}, not {expected.gaps}")
        if any(gap.start < end for gap in watermark.gaps):
            self._verdict.wrong(f"next_offset {end} is beyond a gap: {gaps}")
        present = Intervals((one.manifest.base_offset, self._end_of(one)) for one in logs)
        for start, stop in watermark.ranges_above:
            if present.missing(start, stop):
                self._verdict.wrong(f"range above [{start}, {stop}) is not there")

    def _end_of(self, log: StoredLog) -> int:
        if log.manifest.damage is None and log.manifest.compacted:
            return log.manifest.next_offset
        return log.headers[-1].next_offset if log.headers else log.manifest.base_offset

    def _live(self, logs: list[StoredLog], watermark: Watermark) -> dict[int, Digest]:
        """The live records below ``next_offset`` by offset; every copy of one must be the same."""
        lineage = Lineage(watermark.lineage)
        live: dict[int, Digest] = {}
        spoken: list[tuple[int, int]] = []
        for log in logs:
            batches = {header.base_offset: header for header in log.headers}
            alive = {base for base, header in batches.items() if lineage.is_live(base, header.leader_epoch)}
            self._verdict.counts.update(batches=len(batches), dead_batches=len(batches) - len(alive))
            spoken += [(base, batches[base].next_offset) for base in alive]
            if log.manifest.compacted and len(alive) == len(batches):
                spoken.append((log.manifest.base_offset, self._end_of(log)))
            for offset, record in (one for base in alive for one in log.records[base]):
                if offset < watermark.next_offset and live.setdefault(offset, record) != record:
                    self._verdict.wrong(f"offset {offset} is there twice with different content")
        passed = Intervals.of(watermark.acknowledged_gaps)
        for hole in (Intervals(spoken) | passed).missing(watermark.start_offset, watermark.next_offset):
            self._verdict.wrong(f"offsets [{hole.start}, {hole.end}) lie below next_offset and are not there")
        return live

    def _check_reader(
        self, logs: list[StoredLog], watermark: Watermark, live: Mapping[int, Digest]
    ) -> Mapping[int, Digest]:
        """The planner, which goes by manifests alone, must come to the same records, each offset once.

        Of a compacted log it may come to fewer: copies overlap, and from one the cleaner had taken more.
        """
        segments = [segment_of(one.manifest, one.key, self._store.url) for one in logs]
        by_segment = {id(segment): log for segment, log in zip(segments, logs, strict=True)}
        lineage = whole_lineage(Lineage(watermark.lineage), Lineage(), segments)
        passed = Intervals.of(watermark.acknowledged_gaps)
        wanted = Intervals([(watermark.start_offset, watermark.next_offset)]) - passed
        pieces, hole = cover(segments, lineage, wanted)
        if hole is not None:
            self._verdict.wrong(f"a reader finds a hole at {hole}")
        seen: dict[int, Digest] = {}
        for piece in pieces:
            log = by_segment[id(piece.segment)]
            for offset, record in (one for base in _within(log, piece) for one in log.records[base]):
                if piece.start <= offset < piece.end and seen.setdefault(offset, record) != live.get(offset):
                    self._verdict.wrong(f"a reader takes offset {offset} from a dead branch")
        odd = sorted(seen.keys() - live.keys() if self._expected.compacted else seen.keys() ^ live.keys())
        if hole is None and odd:
            self._verdict.wrong(f"a reader finds other offsets than are live: {odd[:5]}, {len(odd)} in all")
        self._verdict.counts["compared"] += len(seen)
        return seen

    def _check_records(self, watermark: Watermark, live: Mapping[int, Digest]) -> None:
        truth = self._truth
        lost = Intervals.of((*watermark.gaps, *watermark.acknowledged_gaps))
        newest = {key: offset for offset, key in sorted(truth.keys.items())}
        missing = []
        for offset, record in truth.acknowledged.items():
            if not watermark.start_offset <= offset < watermark.next_offset or offset in lost:
                continue
            if offset in live:
                if live[offset] != record:
                    self._verdict.wrong(f"offset {offset} is there with other content than was acknowledged")
            elif not (self._expected.compacted and newest[truth.keys[offset]] > offset):
                missing.append(offset)
        if missing:
            self._verdict.wrong(f"{len(missing)} acknowledged offsets are missing, the first is {min(missing)}")
        self._check_sent(live)

    def _check_sent(self, live: Mapping[int, Digest]) -> None:
        """Also what nobody was told of must be something that was sent, and what the leader's log has there."""
        log, compacted = self._expected.log, self._expected.compacted
        unknown = [offset for offset, record in live.items() if record not in self._truth.sent]
        if unknown:
            self._verdict.wrong(f"{len(unknown)} records were never sent, the first at {min(unknown)}")
        other = [] if log is None else [offset for offset, record in live.items() if log.get(offset) != record]
        if other:
            self._verdict.wrong(f"{len(other)} records are not those of the leader's log, the first at {min(other)}")
        twice = len(live) - len(set(live.values()))
        if twice and log is None and not compacted:
            self._verdict.wrong(f"{twice} records are there at two offsets")
        self._verdict.counts["twice_in_the_log"] += twice  # written again when a broker died before it answered


def log_on_disk(place: Path) -> dict[int, Digest]:
    """The data records of a partition's directory by offset."""
    found: dict[int, Digest] = {}
    for path in sorted(place.glob("*.log")):
        for records in _records(path.read_bytes()).values():
            found.update(records)
    return found


def _within(log: StoredLog, piece: SegmentPiece) -> list[int]:
    return [one.base_offset for one in log.headers if one.base_offset < piece.end and one.next_offset > piece.start]


def _records(body: bytes) -> dict[int, list[tuple[int, Digest]]]:
    """Data records by the offset at which their batch starts, as kafka-python reads them."""
    return {
        batch.base_offset: []
        if batch.is_control_batch
        else [(record.offset, digest(record.key, record.value)) for record in batch]
        for batch in MemoryRecords(body)
    }
