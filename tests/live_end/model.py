"""What the actors exchange: batches, the objects in the store, and the calls that the scheduler carries out."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

from tidemark.kafka_log import Lineage

T = TypeVar("T")


class Batch(NamedTuple):
    """A record batch. ``rows`` are the offsets that compaction has left; ``uid`` stands for the records' content."""

    base: int
    next: int
    epoch: int
    uid: int
    rows: tuple[int, ...]
    producer: int | None = None
    marker: Literal["commit", "abort"] | None = None


Log = tuple[Batch, ...]
UNKNOWN = 1 << 30
"""An end that is not known."""


class Open(NamedTuple):
    """A transaction without a marker so far."""

    producer: int
    first: int


class Abort(NamedTuple):
    """A transaction whose marker, at ``last``, is an abort. ``epoch`` is the marker's."""

    producer: int
    first: int
    last: int
    epoch: int


@dataclass(frozen=True)
class Manifest:
    """Describes the seal ``[base, next)`` in ``<stem>.log``. ``has_aborts``: there is a ``.txnindex``."""

    stem: str
    base: int
    next: int
    has_aborts: bool
    lineage: Lineage
    open: tuple[Open, ...]


class Truncation(NamedTuple):
    """Only the mutant ``whole lineage`` writes it: from ``at`` on, a later epoch left what had been stored."""

    at: int
    epoch: int


@dataclass(frozen=True)
class Watermark:
    """``offset.wm``. ``line1`` is the base of the last seal below ``next``; ``tails`` the (epoch, broker) that packed.

    ``lineage`` is the leader's whole lineage, with the start of its own epoch, also beyond ``next``.
    """

    epoch: int
    next: int
    line1: int
    lineage: Lineage
    tails: tuple[tuple[int, int], ...] = ()
    gaps: tuple[tuple[int, int], ...] = ()
    truncations: tuple[Truncation, ...] = ()


class Reference(NamedTuple):
    """A range: the key of its pack, and its number there."""

    pack: str
    number: int


@dataclass(frozen=True)
class Range:
    """A run of whole batches of a partition in a pack, with what a reader needs beside the bytes."""

    topic: str
    first: int
    next: int
    epoch: int
    log: Log
    open: tuple[Open, ...]
    aborts: tuple[Abort, ...]
    previous: Reference | None


@dataclass(frozen=True)
class Entry:
    """What a head says of a partition: ``last`` begins the chain of ranges that ends at ``tail_end``."""

    topic: str
    epoch: int
    lineage: Lineage
    tail_end: int
    last: Reference


Head = tuple[Entry, ...]


class Call(NamedTuple):
    """One access to the store, the disk or the broker. Only a ``write`` can be lost, late or repeated."""

    name: str
    run: Callable[[], Any]
    write: bool = False


Steps = Generator[Call, Any, T]


class Conflict(Exception):
    """The condition of a write does not hold, or an object that was listed is gone or another one."""


class UnknownOutcome(Exception):
    """The reply to a write was lost."""


class Fenced(Exception):
    """A later leader has written ``offset.wm``."""


class Changed(Exception):
    """The disk or the leadership is not what it was: judge again."""


def scan(log: Iterable[Batch], opened: Iterable[Open]) -> tuple[tuple[Open, ...], tuple[Abort, ...]]:
    """The transactions open at the end of ``log``, and those that it aborts, if ``opened`` are open at its start."""
    first = {one.producer: one.first for one in opened}
    aborts: list[Abort] = []
    for batch in log:
        if batch.producer is None:
            continue
        if batch.marker is None:
            first.setdefault(batch.producer, batch.base)
            continue
        began = first.pop(batch.producer, None)
        if batch.marker == "abort" and began is not None:
            aborts.append(Abort(batch.producer, began, batch.base, batch.epoch))
    return tuple(Open(producer, at) for producer, at in sorted(first.items())), tuple(aborts)


def is_live(base: int, epoch: int, lineage: Lineage) -> bool:
    """Whether the batch at ``base`` of ``epoch`` is on ``lineage``.

    An epoch's start says nothing: a replica that copied a compacted log has it where the first batch is left.
    """
    end = lineage.end_offset(epoch, UNKNOWN)
    return end is not None and end[0] == epoch and base < end[1] and any(one == epoch for one, _ in lineage.entries)


def live_batches(log: Iterable[Batch], lineage: Lineage) -> bool:
    """Whether each batch is on ``lineage``."""
    return all(is_live(batch.base, batch.epoch, lineage) for batch in log)


def branch_point(own: Lineage, end: int, newest: Lineage) -> int:
    """Where a log of lineage ``own`` that ends at ``end`` leaves ``newest``; ``end`` if it does not.

    As Kafka's followers truncate (KIP-101): up to the end of the newest epoch that both have, they are the same.
    """
    theirs = {epoch for epoch, _ in newest.entries}
    common = [epoch for epoch, _ in own.entries if epoch in theirs]
    if not common:
        return own.entries[0][1] if own.entries else end
    ends = (one.end_offset(common[-1], UNKNOWN) for one in (own, newest))
    return min([end, *(found[1] for found in ends if found is not None)])


def live_until(own: Lineage, newest: Lineage, at: int, end: int) -> int:
    """The end of the offsets from ``at`` on, below ``end``, that a log of lineage ``own`` shares with ``newest``."""
    return max(at, branch_point(own, end, newest))


def lineage_of(log: Sequence[Batch]) -> Lineage:
    """The epochs of ``log`` and where each begins."""
    entries: list[tuple[int, int]] = []
    for batch in log:
        if not entries or entries[-1][0] != batch.epoch:
            entries.append((batch.epoch, batch.base))
    return Lineage(tuple(entries))


class Rule(NamedTuple):
    """A rule of the protocol, and the harm ``without`` it.

    ``seed`` is the first schedule that fails without it (``--each-off`` finds these seeds), of a compacted topic if
    ``compacted`` says so.
    """

    seed: int
    says: str
    without: str
    compacted: bool = False


RULES = {
    "epoch rises": Rule(
        20,
        "after a power loss a leader's epoch rises (Kafka's part)",
        "One (offset, epoch) names two records.",
    ),
    "claim": Rule(
        203,
        "offset.wm gets the leader's epoch before any other object of the leadership",
        "With packs, a tail exists without an offset.wm, and nobody finds it. A cut is known only when something new"
        " is sealed.",
    ),
    "listed before the pack": Rule(
        7535,
        "offset.wm lists a leader among those who may have packed before it packs",
        "Readers and the next leader do not look at the head that has the only copy.",
    ),
    "own epoch in lineage": Rule(
        239,
        "a claim waits until the log has the start of the leader's epoch",
        "The claim says that the dead branch goes on. next_offset passes the leader's own log end and may not go back.",
    ),
    "whole lineage": Rule(
        7,
        "offset.wm has the leader's lineage also beyond its next offset",
        "A cut above next_offset is not seen. Rows of the dead branch stay.",
    ),
    "line 1 goes down": Rule(
        31,
        "a claim that cuts below line 1 finds the seal there",
        "Line 1 names a seal of the dead branch above next_offset.",
    ),
    "watermark by If-Match": Rule(7, "offset.wm is replaced by If-Match", "A late write takes offset.wm back."),
    "below the high watermark": Rule(
        8,
        "only batches below the high watermark are stored",
        "Rows land that were never committed.",
    ),
    "lineage again": Rule(
        1707,
        "the lineage after the read is the one before the question for the high watermark",
        "A deposed agent seals what the new leader has written, below a high watermark that is not the new leader's.",
    ),
    "survey by lineage": Rule(
        7,
        "a stored seal counts as far as it is on the leader's lineage",
        "A dead seal counts. Its offsets are never sealed again, and become LOST.",
    ),
    "open transactions at the start": Rule(
        44,
        "a seal that begins inside another one learns what is open there",
        "Aborted rows land, or a partition never goes on.",
    ),
    "manifest last": Rule(
        2,
        "the manifest is written after what it describes",
        "Readers find a segment without its bytes.",
    ),
    "nothing is replaced": Rule(
        7,
        "a seal whose name another branch has gets a name of its own",
        "A frozen agent replaces live data when an election has returned the log to the branch.",
    ),
    "adopt what begins alike": Rule(
        29,
        "a stored .log that begins with a live batch is adopted as it is",
        "The manifest describes other bytes than those that are stored.",
    ),
    "adopt what holds as much": Rule(
        7542,
        "a stored .log is not adopted that lacks records of packs; the run gets a name of its own",
        "A .log whose agent died lacks what packs hold, since that agent did not know them. Rows land that raw does "
        "not keep.",
        compacted=True,
    ),
    "markers by lineage": Rule(
        7406,
        "a marker decides only if it is on the lineage",
        "The abort marker of a dead branch decides a transaction that the live branch commits.",
    ),
    "markers above the landed end count": Rule(
        1960,
        "a cut below a marker that decided landed rows takes them back",
        "Rows stay that a commit marker decided, and the marker was cut off.",
    ),
    "open transactions of whole sources only": Rule(
        1343,
        "what is open at a seal's end counts only if it is live to its end",
        "What is open on a dead branch holds the partition, or what is open on the live one lands.",
    ),
    "manifests after heads": Rule(
        17,
        "readers take heads, then offset.wm, then manifests",
        "A seal and a shorter tail replace a longer one between the two reads. The offsets between seem LOST.",
    ),
    "no hole above offset.wm is LOST": Rule(
        8,
        "a hole above the watermark's next offset is not LOST",
        "A tail whose packs are not all visible yet is LOST.",
    ),
    "lineage decides": Rule(
        2323,
        "a range counts as far as its batches are on the newest lineage, whichever head names it",
        "Ranges of a dead branch land.",
    ),
    "entries name their topic id": Rule(
        26,
        "an entry of a head is of a topic id, not of a name",
        "Ranges of the deleted topic land in the new one.",
    ),
    "verdicts by the bytes": Rule(
        2,
        "markers in a range decide its transactions, the broker's .txnindex does not",
        "Aborted rows land, because the broker has not written the .txnindex yet.",
    ),
    "head after the pack": Rule(
        135,
        "a head names a pack only when the pack is stored",
        "A head names a pack that does not exist. The tail ends there.",
    ),
    "random names": Rule(
        20,
        "a pack's name is random, and its PUT creates",
        "A restarted agent writes a pack under a name that exists.",
    ),
    "head by If-Match": Rule(
        1010,
        "a head is replaced by If-Match",
        "A late write of an earlier process takes the head back. Packed offsets are reported as a gap.",
    ),
    "head kept over a restart": Rule(
        8,
        "an agent goes on from its stored head",
        "A restarted agent drops the tails of deleted topics and of former leaderships.",
    ),
    "entries stay until they are sealed": Rule(
        241,
        "an entry stays while offset.wm lists its (epoch, broker)",
        "The last minutes of a deleted topic, or of a leader that was deposed, are unreachable.",
    ),
    "seal what was packed": Rule(
        1,
        "a seal has the bytes that were packed, not what compaction has made of them since",
        "On compacted topics packs stay for ever, since no seal holds their bytes.",
        compacted=True,
    ),
    "heads again before a seal": Rule(
        721,
        "before a compacted log is sealed, the heads of other leaders are read again",
        "A deposed leader packs until it notices, and its head is put after the new leader has read it. The seal has"
        " what compaction has left.",
        compacted=True,
    ),
    "own head again before a seal": Rule(
        3173,
        "before a compacted log is sealed, a process that has not put its broker's head, or does not know the outcome,"
        " puts it again",
        "A PUT of the head takes effect after the agent has read the head. The seal has what compaction has left.",
        compacted=True,
    ),
    "packs count to the end of the run": Rule(
        40,
        "a run is compared with packs up to its end, not only up to the last batch that compaction has left",
        "Compaction empties the end of a segment, or all of it. Its seal lacks rows that landed from packs.",
        compacted=True,
    ),
    "packs go by proof": Rule(
        790,
        "a pack goes when seals hold each of its batches",
        "The only copy of a dead branch goes that is not sealed yet, or of what a disk has lost. A log can return to"
        " that branch.",
    ),
    "packs outlive the runs that may read them": Rule(
        683,
        "and not before runs that may have planned with it have ended",
        "A run does not find a pack with which it was planned.",
    ),
    "dead tails are sealed": Rule(
        20544,
        "a tail that the log has left is sealed, for the case that the log returns",
        "A log returns to the branch of a tail that no head names any more. A gap is recorded for bytes that are "
        "packed.",
    ),
    "replicas' heads before a gap": Rule(
        1118278041305,
        "before a gap is recorded, the heads of all replicas count, whatever offset.wm lists",
        "A log returns to a branch whose tail is not sealed yet, and which offset.wm no longer lists. A gap is "
        "recorded for bytes that are packed.",
    ),
}
"""Each rule by its name. Switched off, it is the mutant of the same name."""


class Rules(NamedTuple):
    """The rules that are switched off."""

    off: frozenset[str] = frozenset()

    def __call__(self, name: str) -> bool:
        """Whether the rule ``name`` holds."""
        assert name in RULES, name
        return name not in self.off
