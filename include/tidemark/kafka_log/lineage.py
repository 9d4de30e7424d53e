"""The lineage of a log, and the small text files that a broker keeps beside its logs, one of which has the lineage.

A lineage has the leader epochs that wrote the log's offsets, and the restores that replaced its end. Kafka does not
number restores: a broker that was restored from a backup gives out an epoch again, from the same start, with other
records.

Source: Kafka's ``LeaderEpochFileCache`` (KIP-101, KIP-279), ``CheckpointFile``, ``OffsetCheckpointFile``,
``LeaderEpochCheckpointFile``, ``PartitionMetadataFile`` and ``MetaProperties``.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from tidemark.errors import FormatError

Entry = TypeVar("Entry")


@dataclass(frozen=True, slots=True)
class Lineage:
    """(epoch, start offset) pairs; both strictly increase. An epoch ends where the next one starts, the last is open.

    Offsets below the first start are unknown: retention cuts a broker's lineage there (see :meth:`with_history`).

    ``restores`` are the offsets from which on the log has other records than before each restore of a broker, in the
    order in which people went on with the restored log. A broker's disk does not have them; ``offset.wm`` does.
    """

    entries: tuple[tuple[int, int], ...] = ()
    restores: tuple[int, ...] = ()

    @classmethod
    def of(cls, entries: Iterable[Iterable[int]], name: str, restores: tuple[int, ...] = ()) -> Lineage:
        """Check and keep ``entries``. Raises :class:`FormatError` under ``name`` if they are not a valid lineage."""
        pairs = [tuple(entry) for entry in entries]
        for pair in pairs:
            if len(pair) != 2 or min(pair) < 0:
                raise FormatError(name, f"{pair} is not an epoch and its start offset")
        for (epoch, start), (next_epoch, next_start) in pairwise(pairs):
            if next_epoch <= epoch or next_start <= start:
                raise FormatError(name, f"epoch {next_epoch} from {next_start} cannot follow {epoch} from {start}")
        return cls(tuple((epoch, start) for epoch, start in pairs), restores)

    def restored(self, restores: tuple[int, ...]) -> Lineage:
        """The same epochs in a log with these ``restores``."""
        return Lineage(self.entries, restores)

    def parted_at(self, restores: tuple[int, ...]) -> int | None:
        """The first offset that this log does not share with a log with ``restores``; None if these are its own."""
        shared = next(
            (n for n, (own, other) in enumerate(zip(self.restores, restores, strict=False)) if own != other),
            min(len(self.restores), len(restores)),
        )
        return min((*self.restores[shared:], *restores[shared:]), default=None)

    def restores_below(self, offset: int) -> tuple[int, ...]:
        """The restores up to the last one at or below ``offset``: two logs with the same ones share the offset."""
        begun = [number for number, at in enumerate(self.restores, 1) if at <= offset]
        return self.restores[: begun[-1]] if begun else ()

    @property
    def epochs(self) -> set[int]:
        """The epochs, without their starts."""
        return {epoch for epoch, _ in self.entries}

    def epoch_at(self, offset: int) -> int | None:
        """The epoch that writes ``offset`` in this lineage; None below the first start."""
        index = bisect_right(self.entries, offset, key=lambda entry: entry[1])
        return self.entries[index - 1][0] if index else None

    def end_offset(self, epoch: int, log_end: int) -> tuple[int, int] | None:
        """(largest epoch ≤ ``epoch``, offset after its last) in a log that ends at ``log_end``.

        Follows ``LeaderEpochFileCache.endOffsetFor``: the newest epoch ends at ``log_end``. Before the first epoch the
        answer is ``epoch`` itself and the first start. For an epoch newer than all it is None.
        """
        index = bisect_right(self.entries, epoch, key=lambda entry: entry[0])
        floor = self.entries[index - 1][0] if index else epoch
        if index < len(self.entries):
            return floor, self.entries[index][1]
        return (floor, log_end) if self.entries and floor == epoch else None

    def truncated(self, end: int) -> Lineage:
        """The lineage of the log cut off at ``end``."""
        return Lineage(tuple(entry for entry in self.entries if entry[1] < end), self.restores)

    def since(self, offset: int) -> Lineage:
        """The lineage from the epoch at ``offset`` on."""
        begun = sum(start <= offset for _, start in self.entries)
        return Lineage(self.entries[max(0, begun - 1) :], self.restores)

    def with_history(self, older: Lineage) -> Lineage:
        """This lineage, extended with the epochs of ``older`` below its first start.

        Epochs of ``older`` that are newer than this lineage's first belong to a dead branch and are left out, as are
        those from which on a restore parts the two. Without any entry, this lineage is unknown, and ``older`` counts.
        """
        if not self.entries and not self.restores:
            return older
        parted = self.parted_at(older.restores)
        shared = older if parted is None else older.truncated(parted)
        if not self.entries:
            return shared.restored(self.restores)
        (epoch, start), *rest = self.entries
        before = [entry for entry in shared.entries if entry[1] < start and entry[0] <= epoch]
        if before and before[-1][0] == epoch:  # retention had moved the start up within the epoch
            return Lineage((*before, *rest), self.restores)
        return Lineage((*before, *self.entries), self.restores)

    def with_batches(self, epochs: Iterable[tuple[int, int]]) -> Lineage:
        """This lineage with what batches on it show: epochs that it lacks, and earlier starts of its own epochs.

        Both are missing between the end of an older lineage and the start to which retention had moved this one when it
        was extended. ``epochs`` have the base offset of the first batch of each.
        """
        entries = dict(self.entries)
        for epoch, start in epochs:
            before = max((known for known in entries if known < epoch), default=None)
            after = min((known for known in entries if known >= epoch), default=None)
            # The log start may lie within a batch: then its epoch begins before the log does.
            follows = epoch == after if before is None else entries[before] < start
            if follows and after is not None and start < entries[after]:
                entries[epoch] = start
        return Lineage(tuple(sorted(entries.items())), self.restores)

    def divergence(self, other: Lineage, end: int | None = None) -> int | None:
        """The first offset below ``end`` that the two logs do not share; None if there is none.

        ``end`` is the smaller of both logs' ends: the shorter log has nothing above it. Without ``end`` the newest
        epochs have no end, so a lineage and its continuation diverge where the continuation's next epoch starts.

        According to KIP-101, two logs that both have an epoch are equal up to its first end in either log. Starts are
        not compared: a replica that copies a compacted log notes an epoch at the first batch that is left of it.

        Below its first start a lineage states one fact: the epochs there are not newer than its first one.

        Where a restore parts the two, their epochs prove nothing any more: each may be given out twice.
        """
        at = parted = self.parted_at(other.restores)
        if parted is None:
            at = self._left_at(other)
        elif (left := self.truncated(parted)._left_at(other.truncated(parted))) is not None:
            at = min(left, parted)
        return None if at is None or (end is not None and at >= end) else at

    def _left_at(self, other: Lineage) -> int | None:
        """The first offset that the two logs do not share according to their epochs; None if there is none."""
        if not self.entries or not other.entries:
            return None
        at: int | None = max(self.entries[0][1], other.entries[0][1])  # below this, one of the lineages is unknown
        common = self.epochs & other.epochs
        if common:
            ends = [end_of for log in (self, other) if (end_of := log._end_of(max(common))) is not None]
            at = max(at, min(ends)) if at is not None and ends else None
        for lineage, opposite in ((self, other), (other, self)):
            first_epoch, first_start = opposite.entries[0]
            shared = max(
                first_epoch, max(common, default=first_epoch)
            )  # below its start, ``opposite`` may have epochs up to here
            at = next((start for epoch, start in lineage.entries if epoch > shared and start < first_start), at)
        return at

    def is_live(self, base_offset: int, epoch: int) -> bool:
        """True if a stored batch lies on this lineage. ``epoch`` is -1 in v0 and v1, which no lineage knows."""
        if epoch < 0 or self.epoch_at(base_offset) is None:
            return epoch < 0 and self.epoch_at(base_offset) is None
        end = self._end_of(epoch)
        return any(known == epoch for known, _ in self.entries) and (end is None or base_offset < end)

    def live_end(self, base_offset: int, next_offset: int, epoch: int) -> int:
        """The end of a stored batch's offsets on this lineage; ``base_offset`` if there are none.

        An unclean election may cut a log within a batch: DeleteRecords moves the leader's log start into the batch, a
        replica that is behind begins an empty log at that offset, and becomes the leader.
        """
        if not self.is_live(base_offset, epoch):
            return base_offset
        end = self._end_of(epoch)
        return next_offset if end is None else min(next_offset, end)

    def _end_of(self, epoch: int) -> int | None:
        """The start of the epoch after ``epoch``; None if there is none."""
        index = bisect_right(self.entries, epoch, key=lambda entry: entry[0])
        return self.entries[index][1] if index < len(self.entries) else None

    def to_json(self) -> list[list[int]]:
        """The lineage as ``[[epoch, start], …]``."""
        return [list(entry) for entry in self.entries]

    @classmethod
    def from_json(cls, value: object, name: str) -> Lineage:
        """The lineage in ``[[epoch, start], …]``. Raises :class:`FormatError` under ``name`` for anything else."""
        if not isinstance(value, list) or not all(
            isinstance(entry, list) and all(type(number) is int for number in entry) for entry in value
        ):
            raise FormatError(name, "a lineage is a list of [epoch, start offset]")
        return cls.of(value, name)


def parse_leader_epoch_checkpoint(text: str, name: str) -> Lineage:
    """The lineage in a partition's ``leader-epoch-checkpoint``: lines ``<epoch> <start offset>``."""
    return Lineage.of(_parse_checkpoint(text, name, _epoch_entry), name)


def parse_offset_checkpoint(text: str, name: str) -> dict[tuple[str, int], int]:
    """(topic, partition) → offset, from one of a log directory's offset checkpoints.

    ``replication-offset-checkpoint`` holds high watermarks, ``log-start-offset-checkpoint`` starts above 0 only, and
    ``recovery-point-offset-checkpoint`` the offsets up to which logs are known to be flushed.
    """
    return dict(_parse_checkpoint(text, name, _offset_entry))


def parse_partition_metadata(text: str, name: str) -> str:
    """The topic id, 22 characters, of a partition's ``partition.metadata``."""
    fields: dict[str, str] = dict(re.findall(r"^(\w+): ?(\S*)$", text, re.MULTILINE))
    if fields.get("version") != "0":
        raise FormatError(name, f"version {fields.get('version')} is not 0")
    topic_id: str = fields.get("topic_id", "")
    if not re.fullmatch(r"[A-Za-z0-9_-]{22}", topic_id):
        raise FormatError(name, f"topic_id {topic_id!r} is not 22 characters of base64")
    return topic_id


def parse_meta_properties(text: str, name: str) -> dict[str, str]:
    """All keys of a log directory's ``meta.properties``.

    They include ``cluster.id``, ``broker.id`` (version 0) or ``node.id`` (version 1), and ``directory.id`` with KRaft.
    """
    properties: dict[str, str] = {}
    for line in text.splitlines():
        if line.strip() and not line.lstrip().startswith(("#", "!")):
            key, separator, value = line.partition("=")
            if not separator:
                raise FormatError(name, f"{line!r} is not key=value")
            properties[key.strip()] = re.sub(r"\\(.)", r"\1", value.strip())
    if properties.get("version") not in ("0", "1"):
        raise FormatError(name, f"version {properties.get('version')} is neither 0 nor 1")
    if not properties.get("cluster.id"):
        raise FormatError(name, "there is no cluster.id")
    return properties


def _parse_checkpoint(text: str, name: str, parse: Callable[[str], Entry]) -> list[Entry]:
    """The entries of a checkpoint: version 0, their number, then one a line. A broker creates it empty, with none.

    A broker replaces the file as a whole, so it is never partial.
    """
    lines = text.splitlines()
    if not lines:
        return []
    if len(lines) < 2 or lines[0].strip() != "0":
        raise FormatError(name, f"the first line {lines[:1]} is not version 0")
    if not lines[1].strip().isdecimal() or int(lines[1]) != len(lines) - 2:
        raise FormatError(name, f"the second line {lines[1]!r} is not the number of the lines below, {len(lines) - 2}")
    entries: list[Entry] = []
    for number, line in enumerate(lines[2:], start=3):
        try:
            entries.append(parse(line))
        except ValueError as error:
            raise FormatError(name, f"line {number}: {line!r} is not a valid entry") from error
    return entries


def _epoch_entry(line: str) -> tuple[int, int]:
    epoch, start = line.split()
    return int(epoch), int(start)


def _offset_entry(line: str) -> tuple[tuple[str, int], int]:
    topic, partition, offset = line.split()
    return (topic, int(partition)), int(offset)
