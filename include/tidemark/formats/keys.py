"""The keys of segments, watermarks and all other objects in the store, and the parsing of keys.

Keys below a partition are those of Pinterest's tiered-storage, whose consumer must be able to read them
(``ts-common`` ``S3StorageServiceEndpoint``): ``<prefix>/[<bits>/]<cluster>/<topic>-<partition>/<file>``. The
``bits`` are the first digits of an MD5 in binary (``ts-common`` ``Utils.getBinaryHashForClusterTopicPartition``)
and spread partitions over S3's key space. No key that is not a segment's may end in ``.log``, ``.index`` or
``.timeindex``. Objects that Tidemark alone knows lie under ``_…`` in the deployment's default bucket.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

OFFSET_DIGITS = 20
WATERMARK_NAME = "offset.wm"
MANIFEST_EXTENSION = "manifest.json"
ALL_DATES = "all"

_MOST_OF_TOPIC = 255 - len(f"@{'i' * 22}-{2**31 - 1}")
"""Characters of a topic's name that leave room for its id and any number of a partition in the name of a directory."""
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_TOPIC_ID = re.compile(r"[A-Za-z0-9_-]{22}")
_CLUSTER = re.compile(r"[A-Za-z0-9._-]{1,100}")
_REPORT = re.compile(r"[0-9a-f]{16}")
_PREFIX = re.compile(r"(?:[A-Za-z0-9._=-]+(?:/[A-Za-z0-9._=-]+)*)?")
_ERASURE = r"e[1-9][0-9]{0,8}"
_BRANCH = r"[0-9]{1,10}(?:-r[1-9][0-9]{0,3})?|r[1-9][0-9]{0,3}"
_SEGMENT_FILE = re.compile(
    rf"([0-9]{{20}})\.([a-z]+(?:\.[a-z]+)*)(?:-((?:{_BRANCH})(?:-{_ERASURE})?|{_ERASURE}|damaged-[0-9a-f]{{8}}))?",
    re.ASCII,
)
_PACK = re.compile(r"(0|[1-9][0-9]{0,9})/([0-9a-f]{32})\.pack", re.ASCII)


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class SegmentName(NamedTuple):
    """The common name of a segment's objects: ``<base>.<extension>``, or ``<base>.<extension>-<suffix>``.

    An object is never replaced. So if another branch of the log already has a segment's plain name, the segment's name
    has the leader epoch of its first batch as well (``…42.log-7``), and the name of damaged bytes has their CRC32C
    (``…42.corrupt-damaged-9a3f01c2``). An offset and an epoch identify one record batch, so every object with this name
    begins with that batch. After a restore of a broker, which may give out an epoch again, names have the number of the
    restore (``…42.log-r1``, ``…42.log-7-r1``). A segment that was rewritten without erased records has a number after
    that (``…42.log-e1``, ``…42.log-7-e1``). The suffix comes last, because Pinterest's consumer takes all before
    ``.log`` for a number, and ignores other names.
    """

    base: int
    suffix: str = ""

    @classmethod
    def of_history(cls, base: int, restored: int) -> SegmentName:
        """The first name of a segment of a log with so many restores."""
        return cls(base, f"r{restored}" if restored else "")

    @classmethod
    def of_branch(cls, base: int, epoch: int, restored: int = 0) -> SegmentName:
        """The name of a segment beside one of another branch; ``epoch`` is the leader epoch of its first batch."""
        return cls(base, f"{epoch}-r{restored}" if restored else f"{epoch}")

    @classmethod
    def of_damage(cls, base: int, crc32c: int) -> SegmentName:
        """The name of damaged bytes."""
        return cls(base, f"damaged-{crc32c:08x}")

    @classmethod
    def parse(cls, file: str) -> tuple[SegmentName, str] | None:
        """(segment, extension) of an object's name; None if no segment has such an object."""
        match = _SEGMENT_FILE.fullmatch(file)
        return (cls(int(match[1]), match[3] or ""), match[2]) if match else None

    @property
    def erasure(self) -> int:
        """The number of the rewriting; 0 for a segment as an agent uploaded it."""
        return 0 if self.is_of_damage else int(self.suffix.partition("e")[2] or 0)

    def rewritten(self, number: int) -> SegmentName:
        """The name of the segment's rewriting with this ``number``."""
        branch = self.suffix.partition("e")[0].removesuffix("-")
        return self._replace(suffix=f"{branch}-e{number}" if branch else f"e{number}")

    @property
    def is_of_damage(self) -> bool:
        """True for the name of damaged bytes."""
        return self.suffix.startswith("damaged")

    def file(self, extension: str) -> str:
        """The name of one of the segment's objects; ``extension`` has no dot: ``log``, ``index``, ``manifest.json``."""
        return f"{self.base:0{OFFSET_DIGITS}d}.{extension}" + (f"-{self.suffix}" if self.suffix else "")


class PackName(NamedTuple):
    """A pack of a broker: ``<broker>/<32 hex digits>.pack``, its key below :attr:`ControlKeys.tails`."""

    broker: int
    digits: str

    @classmethod
    def parse(cls, text: str) -> PackName:
        """The pack name in ``text``.

        Raises:
            ValueError: ``text`` is no pack name; nothing else may become part of a key.
        """
        match = _PACK.fullmatch(text)
        if not match:
            raise ValueError(f"{text[:60]!r} is not a pack: <broker>/<32 of 0-9 a-f>.pack")
        return cls(int(match[1]), match[2])

    def __str__(self) -> str:
        return f"{self.broker}/{self.digits}.pack"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The location of a partition's segments: a store, a prefix in it, and entropy bits.

    ``store`` is a URL: ``s3://bucket`` or ``file:///directory``.
    """

    store: str
    prefix: str = ""
    entropy_bits: int = 0

    def __post_init__(self) -> None:
        if not _PREFIX.fullmatch(self.prefix):
            raise ValueError(
                f"prefix {self.prefix!r}: letters, digits and . _ = - between single slashes, none at the ends"
            )
        if not 0 <= self.entropy_bits <= 128:
            raise ValueError(f"entropy_bits {self.entropy_bits}: 0 to 128, the digits of an MD5")

    @property
    def root(self) -> Endpoint:
        """The store and the prefix alone: the cluster's own objects lie there, whatever bits the partitions have."""
        return Endpoint(self.store, self.prefix)

    @property
    def url(self) -> str:
        """The URL of the store and the prefix."""
        return "/".join(part for part in (self.store, self.prefix) if part)


def check_topic(name: str) -> str:
    """``name`` if it is a legal Kafka topic name (``org.apache.kafka.common.internals.Topic``).

    Raises:
        ValueError: it is not; nothing else may become part of a key.
    """
    if not _TOPIC.fullmatch(name) or name in {".", ".."}:
        raise ValueError(f"{name!r} is not a valid topic name: 1 to 249 of a-z A-Z 0-9 . _ -, and neither '.' nor '..'")
    return name


def check_report(name: str) -> str:
    """``name`` if it is valid in a key as a report's name. Raises ValueError."""
    if not _REPORT.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a report: 16 of 0-9 a-f")
    return name


def check_cluster(name: str) -> str:
    """``name`` if it is valid in a key as the cluster's name. Raises ValueError."""
    if not _CLUSTER.fullmatch(name) or name in {".", ".."}:
        raise ValueError(f"{name!r} is not a valid cluster name: 1 to 100 of a-z A-Z 0-9 . _ -")
    return name


def place_of(topic: str, topic_id: str | None, *, first: bool) -> str:
    """The folder name of an incarnation, without its partition: ``orders``, or ``orders@<topic id>`` for later ones.

    ``@`` cannot occur in a topic's name, so incarnations never share a key. The first incarnation keeps the
    plain name, which Pinterest's consumer looks for. A directory takes names of 255 bytes, so the place of a later one
    has the first 221 characters of the topic's name: the id alone tells places apart. What an incarnation was recorded
    with counts, as another version may have made it.

    Raises:
        ValueError: the topic's name or id is not legal, or a later incarnation has no id.
    """
    check_topic(topic)
    if first:
        return topic
    if topic_id is None or not _TOPIC_ID.fullmatch(topic_id):
        raise ValueError(f"topic {topic}: a re-created topic needs its topic id (22 characters), not {topic_id!r}")
    return f"{topic[:_MOST_OF_TOPIC]}@{topic_id}"


def entropy(cluster: str, place: str, partition: int, bits: int) -> str:
    """The first ``bits`` binary digits of ``MD5("<cluster>-<place>-<partition>")``."""
    if not bits:
        return ""
    digest = hashlib.md5(f"{cluster}-{place}-{partition}".encode(), usedforsecurity=False).digest()
    return f"{int.from_bytes(digest):0128b}"[:bits]


@dataclass(frozen=True, slots=True)
class PartitionKeys:
    """The keys of one partition of one incarnation of a topic, below its endpoint's store."""

    endpoint: Endpoint
    cluster: str
    place: str
    partition: int

    @property
    def folder(self) -> str:
        """The common prefix of the partition's keys, ending in a slash."""
        bits = entropy(self.cluster, self.place, self.partition, self.endpoint.entropy_bits)
        parts = [self.endpoint.prefix, bits, self.cluster, f"{self.place}-{self.partition}"]
        return "/".join(part for part in parts if part) + "/"

    def file(self, name: str) -> str:
        """The key of a file of the partition, for example ``00000000000000000042.log``."""
        return self.folder + name

    def segment(self, name: SegmentName, extension: str) -> str:
        """The key of one of a segment's objects; ``extension`` has no dot: ``log``, ``index``, ``manifest.json``."""
        return self.file(name.file(extension))

    def manifest(self, name: SegmentName) -> str:
        """The key of a segment's manifest."""
        return self.segment(name, MANIFEST_EXTENSION)

    @property
    def watermark(self) -> str:
        """The key of ``offset.wm``."""
        return self.file(WATERMARK_NAME)

    @property
    def control(self) -> ControlKeys:
        """The control keys in the partition's own store: a topic that is kept apart stays apart."""
        return ControlKeys(self.endpoint.prefix, self.cluster)

    def segment_of(self, key: str) -> tuple[SegmentName, str] | None:
        """(segment, extension) of a key if it belongs to one of this partition's segments, else None."""
        return SegmentName.parse(key.removeprefix(self.folder))


@dataclass(frozen=True, slots=True)
class ControlKeys:
    """The keys of Tidemark's own objects about a cluster, in the deployment's default store and prefix."""

    prefix: str
    cluster: str

    def _under(self, kind: str) -> str:
        return "/".join(part for part in (self.prefix, kind, self.cluster) if part) + "/"

    def incarnations(self, topic: str) -> str:
        """The topic's incarnations, in order."""
        return f"{self._under('_topics')}{check_topic(topic)}.json"

    @property
    def indexes(self) -> str:
        """The folder of the brokers' watermark indexes."""
        return self._under("_watermarks")

    def index(self, broker: int) -> str:
        """The watermark index of one broker."""
        return f"{self.indexes}{broker}.json"

    @property
    def gaps(self) -> str:
        """The folder of the brokers' watermark indexes of partitions with gaps."""
        return self._under("_gaps")

    def broker_gaps(self, broker: int) -> str:
        """The watermark index of the partitions with gaps that one broker leads."""
        return f"{self.gaps}{broker}.json"

    @property
    def slot_count(self) -> str:
        """The number of slots that share the cluster's partitions."""
        return f"{self._under('_fetch')}slots.json"

    @property
    def cluster_owner(self) -> str:
        """The cluster that owns the name, beside the slots: there all agents of the cluster may write."""
        return f"{self._under('_fetch')}cluster.json"

    def slot_lease(self, slot: int) -> str:
        """The lease of one slot."""
        return f"{self._under('_fetch')}{slot}.json"

    @property
    def tails(self) -> str:
        """The folder of the packs of all brokers; it lies in the partitions' own store and prefix."""
        return self._under("_tails")

    def packs(self, broker: int) -> str:
        """The folder of one broker's packs."""
        return f"{self.tails}{broker}/"

    def pack(self, name: PackName) -> str:
        """One pack."""
        return f"{self.tails}{name}"

    def pack_of(self, key: str) -> PackName | None:
        """The name of the pack with the key ``key``; None if it is no pack of this cluster and prefix."""
        if not key.startswith(self.tails):
            return None
        try:
            return PackName.parse(key.removeprefix(self.tails))
        except ValueError:
            return None

    @property
    def heads(self) -> str:
        """The folder of the brokers' heads, beside their packs."""
        return self._under("_heads")

    def head(self, broker: int) -> str:
        """The head of one broker."""
        return f"{self.heads}{broker}.json"

    def damaged_head(self, broker: int, etag: str) -> str:
        """The key of the bytes that replaced a broker's head with ``etag``, and were no valid head."""
        return f"{self._under('_damaged')}{broker}/{etag.strip(chr(34))}.head"

    def foreign_watermarks(self, place: str, partition: int) -> str:
        """The folder of the versions of ``offset.wm`` with leader epochs that the cluster never gave."""
        return f"{self._under('_foreign')}{place}-{partition}/"

    def restores(self, place: str, partition: int) -> str:
        """The folder of the restores of a partition, beside its segments."""
        return f"{self._under('_restores')}{place}-{partition}/"

    def restore(self, place: str, partition: int, number: int) -> str:
        """A partition's restore with this ``number``."""
        return f"{self.restores(place, partition)}{number}.json"

    def tombstones(self, place: str, partition: int) -> str:
        """The folder of the tombstones of a partition's segments; it lies in the partition's own store and prefix."""
        return f"{self._under('_tombstones')}{place}-{partition}/"

    @property
    def pack_tombstones(self) -> str:
        """The folder of the tombstones of packs, beside the packs. No partition has this name."""
        return f"{self._under('_tombstones')}_packs/"

    def pack_tombstone(self, topic_id: str, at: str) -> str:
        """The tombstone of a topic id's ranges that a person has given up at the time ``at``."""
        return f"{self.pack_tombstones}{topic_id}-{at}.json"

    def tombstone(self, place: str, partition: int, start: int, end: int, at: str) -> str:
        """The tombstone of the segments between ``start`` and ``end`` that retention removed at the time ``at``."""
        digits = f"{start:0{OFFSET_DIGITS}d}-{end:0{OFFSET_DIGITS}d}"
        return f"{self.tombstones(place, partition)}{digits}-{at}.json"

    @property
    def erasures(self) -> str:
        """The folder of the requests for erasure, each a folder of its own."""
        return self._under("_erasure")

    def erasure(self, request: str, part: str) -> str:
        """A part of a request for erasure: ``request``, ``approval`` or ``withdrawal``."""
        return f"{self.erasures}{check_report(request)}/{part}.json"

    def mask_index(self, place: str) -> str:
        """The index of the masks of an incarnation of a topic."""
        return f"{self._under('_erased')}{place}.json"

    def mask(self, place: str, partition: int, start: int, end: int, digest: str) -> str:
        """The mask of erased offsets of a partition between ``start`` and ``end``; ``digest`` is its content's."""
        digits = f"{start:0{OFFSET_DIGITS}d}-{end:0{OFFSET_DIGITS}d}"
        return f"{self._under('_erased')}{place}/{partition}/{digits}-{digest}.json"

    def buried(self, place: str, partition: int) -> str:
        """The folder of the lists of segments that were deleted after they had been rewritten."""
        return f"{self._under('_erased')}{place}/{partition}/buried/"

    def untold(self, topic: str) -> str:
        """The folder of the notes of a topic's erasures on stores that do not tell what they keep. No place has it."""
        return f"{self._under('_erased')}_untold/{topic}/"

    def acknowledgements(self, place: str, partition: int) -> str:
        """The folder of the acknowledgements of a partition's gaps."""
        return f"{self._under('_acks')}{place}-{partition}/"

    def acknowledgement(self, place: str, partition: int, start: int, end: int) -> str:
        """The acknowledgement of the gap ``[start, end)``."""
        return f"{self.acknowledgements(place, partition)}{start}-{end}.json"


@dataclass(frozen=True, slots=True)
class TableKeys:
    """The keys of a table and of its ledger, below the lake's store."""

    prefix: str
    cluster: str
    topic: str
    table: str

    def _join(self, *parts: str) -> str:
        return "/".join(part for part in (self.prefix, *parts) if part)

    @property
    def root(self) -> str:
        """The table's folder, which holds ``_delta_log/`` and ``dt=…/``; no trailing slash."""
        return self._join(self.table)

    @property
    def quarantine(self) -> str:
        """The folder of refused rows and batches; no trailing slash."""
        return self._join(f"{self.table}__quarantine")

    def catalog_metadata(self, catalog: str) -> str:
        """The folder of the table's Iceberg metadata for ``catalog``; no trailing slash."""
        return f"{self.root}/_iceberg/{catalog}"

    def success(self, dt: str) -> str:
        """The empty object that marks a date as closed. It is a hint, for the ledger decides."""
        return f"{self.root}/dt={dt}/_SUCCESS"

    def _state(self, *parts: str) -> str:
        return self._join("_tidemark", self.cluster, self.topic, *parts)

    def ledger(self, n: int, attempt: int) -> str:
        """The state after commit ``n``, as ``attempt`` wrote it."""
        return self._state("ledger", f"{n}-{attempt}.json")

    @property
    def ledgers(self) -> str:
        """The folder of the ledgers."""
        return self._state("ledger") + "/"

    def attempt(self, attempt: int) -> str:
        """The plan of a run."""
        return self._state("attempts", f"{attempt}.json")

    @property
    def attempts(self) -> str:
        """The folder of the attempts."""
        return self._state("attempts") + "/"

    def step(self, attempt: int, first: int, end: int) -> str:
        """The outcomes of the tasks ``[first, end)`` of a run's plan."""
        return f"{self.steps_of(attempt)}{first}-{end}.json"

    def step_evidence(self, attempt: int, first: int, end: int) -> str:
        """The evidence rows of the tasks ``[first, end)`` of a run's plan."""
        return f"{self.steps_of(attempt)}{first}-{end}.parquet"

    def steps_of(self, attempt: int) -> str:
        """The folder of a run's steps."""
        return f"{self.steps}{attempt}/"

    @property
    def steps(self) -> str:
        """The folder of the steps of all runs, each in a folder of its own."""
        return self._state("steps") + "/"

    def datewise_rebuild(self, request: str) -> str:
        """The parts of a rebuild by date that are left; ``request`` is the digest of what was asked for."""
        return f"{self.datewise_rebuilds}{check_report(request)}.json"

    @property
    def datewise_rebuilds(self) -> str:
        """The folder of the rebuilds by date."""
        return self._state("rebuilds") + "/"

    @property
    def evidence(self) -> str:
        """The folder of the evidence."""
        return self._state("evidence") + "/"

    @property
    def state_folder(self) -> str:
        """The folder of the state table's ledgers, runs and reserve."""
        return self._state("state") + "/"

    def state_ledger(self, n: int, attempt: int) -> str:
        """The ledger of the state table after its commit ``n``, as ``attempt`` wrote it."""
        return self._state("state", "ledger", f"{n}-{attempt}.json")

    def state_run(self, attempt: int) -> str:
        """The folder of the files between the two rounds of a run of the state table."""
        return self._state("state", "runs", str(attempt)) + "/"

    def state_audit(self, part: int) -> str:
        """The report of the last audit of a part of the state table's keys."""
        return f"{self.state_audits}{part}.json"

    @property
    def state_audits(self) -> str:
        """The folder of the reports of audits of the state table."""
        return self._state("state", "audits") + "/"

    @property
    def state_reserve(self) -> str:
        """The folder of the files of the state table's reserve."""
        return self._state("state", "reserve") + "/"

    @property
    def published(self) -> str:
        """The outbox: the progress of sending asset events and alerts."""
        return self._state("published.json")

    @property
    def schema(self) -> str:
        """The adopted schema of a registry, from which the topic's columns come."""
        return self._state("schema.json")

    def result(self, attempt: int) -> str:
        """The result of a run, for the scheduler that started it."""
        return self._state("results", f"{attempt}.json")

    @property
    def results(self) -> str:
        """The folder of the runs' results."""
        return self._state("results") + "/"

    def progress(self, attempt: int) -> str:
        """The progress of a run that is under way."""
        return self._state("progress", f"{attempt}.json")

    @property
    def all_progress(self) -> str:
        """The folder of the runs' progress."""
        return self._state("progress") + "/"

    def report(self, name: str, part: str, attempt: int | None = None) -> str:
        """A part of a backfill's report, such as ``preview``; parts that follow a plan have its ``attempt``."""
        return self._state(
            "reports", check_report(name), f"{part}.json" if attempt is None else f"{part}-{attempt}.json"
        )

    @property
    def reports(self) -> str:
        """The folder of the backfills' reports, each a folder of its own."""
        return self._state("reports") + "/"

    def retention(self, subject: str) -> str:
        """The folder of retention's reports on ``subject``: ``table`` or ``raw``."""
        return self._state("retention", subject) + "/"

    def erasure(self, attempt: int) -> str:
        """The report of a pass of erasure."""
        return self._state("erasures", f"{attempt}.json")

    @property
    def erasures(self) -> str:
        """The folder of the reports of the passes of erasure."""
        return self._state("erasures") + "/"

    @property
    def audits(self) -> str:
        """The folder of the audits' reports."""
        return self._state("audits") + "/"

    def audit(self, dates: Sequence[str], at: str, n: int) -> str:
        """The report of an audit of ``dates`` (ISO, in order) at the time ``at`` and ledger ``n``.

        No dates stand for all. Reports on the same dates lie in one folder.
        """
        scope = ALL_DATES if not dates else dates[0]
        if len(dates) > 1:
            scope = f"{dates[0]}_{dates[-1]}_{hashlib.sha256(' '.join(dates).encode()).hexdigest()[:16]}"
        return f"{self.audits}{scope}/{at}-{n}.json"

    @property
    def deployment(self) -> DeploymentKeys:
        """The keys that all tables of the cluster share."""
        return DeploymentKeys(self.prefix, self.cluster)


@dataclass(frozen=True, slots=True)
class DeploymentKeys:
    """The keys that all tables of a cluster share, below the lake's store."""

    prefix: str
    cluster: str

    def _under(self, kind: str) -> str:
        return "/".join(part for part in (self.prefix, "_tidemark", kind, self.cluster) if part)

    @property
    def incidents(self) -> str:
        """The incidents of the cluster."""
        return f"{self._under('_incidents')}.json"

    @property
    def sightings(self) -> str:
        """The state that one observation leaves for the next."""
        return f"{self._under('_watch')}.json"

    @property
    def scan(self) -> str:
        """The state of the triggerer's scan of the watermark indexes."""
        return f"{self._under('_scan')}.json"

    @property
    def landing(self) -> str:
        """The cluster's live landing: one run for all topics that have a ``freshness``."""
        return f"{self._under('_live')}.json"

    @property
    def committed(self) -> str:
        """The folder of copies of the committed ledgers, one a topic: hints, for each table's own log decides."""
        return f"{self._under('_committed')}/"

    def committed_ledger(self, topic: str) -> str:
        """The copy of a topic's committed ledger."""
        return f"{self.committed}{check_topic(topic)}.json"

    @property
    def verdicts(self) -> str:
        """The folder of the verdicts of the last audits, one object a topic."""
        return f"{self._under('_audited')}/"

    def verdict(self, topic: str) -> str:
        """The verdict of the last audits of a topic."""
        return f"{self.verdicts}{check_topic(topic)}.json"

    @property
    def all_unread(self) -> str:
        """The folder of the statuses of unreadable live ends, one object a topic."""
        return f"{self._under('_unread')}/"

    def unread(self, topic: str) -> str:
        """The status of the unreadable parts of a topic's live end."""
        return f"{self.all_unread}{check_topic(topic)}.json"

    @property
    def state_statuses(self) -> str:
        """The folder of the statuses of state tables, one object a topic."""
        return f"{self._under('_states')}/"

    def state_status(self, topic: str) -> str:
        """The status of a topic's state table."""
        return f"{self.state_statuses}{check_topic(topic)}.json"

    @property
    def mirrors(self) -> str:
        """The progress of the catalogs that list the tables of the cluster."""
        return f"{self._under('_mirrors')}.json"

    @property
    def hand_overs(self) -> str:
        """The folder of the jobs' inputs and outputs, until the Airflow tasks that started the jobs take them."""
        return f"{self._under('_lineage')}/"

    def hand_over(self, name: str) -> str:
        """The inputs and outputs of one job; its task drew ``name``."""
        return f"{self.hand_overs}{check_report(name)}.json"

    @property
    def overview(self) -> str:
        """The topics' states, from the last look."""
        return f"{self._under('_overview')}.json"

    @property
    def all_samples(self) -> str:
        """The folder of the topics' past states, an object an hour."""
        return f"{self._under('_samples')}/"

    def samples(self, at: datetime) -> str:
        """The topics' states in the hour of ``at``. Later hours sort later."""
        return f"{self.all_samples}{at.astimezone(UTC):%Y%m%dT%H}.json"
