"""The small text files that a broker keeps beside its logs.

Source: Kafka's ``CheckpointFile``, ``OffsetCheckpointFile``, ``LeaderEpochCheckpointFile``, ``PartitionMetadataFile``
and ``MetaProperties``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from tidemark.errors import FormatError
from tidemark.kafka_log.lineage import Lineage

Entry = TypeVar("Entry")


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
