"""Faults to plant in how the agent compares its log with what is stored, seen where brokers are restored."""

from __future__ import annotations

from unittest.mock import patch

from tests.uploader_agent.simulation.mutant import Mutant, Patches
from tidemark.raw.segments import Segment
from tidemark.storage import PartitionStore
from uploader_agent.disk.segment_files import SegmentFiles
from uploader_agent.packs.tail import Tail
from uploader_agent.partitions.led_partition import LedPartition
from uploader_agent.partitions.partition_uploader import PartitionUploader
from uploader_agent.stored import histories
from uploader_agent.stored.stored_log import StoredLog
from uploader_agent.upload.local_run import PartsOfRun


def _histories_are_not_compared() -> Patches:
    """Lineages are all that counts."""
    yield patch.object(PartitionUploader, "_differs", lambda *_: False)
    yield patch.object(PartitionUploader, "lacks", lambda *_: False)
    yield patch.object(PartsOfRun, "contradicting", lambda *_: [])


def _last_batches_are_not_compared() -> Patches:
    """Only a log that ends below the stored end is another one."""

    def short(self: PartitionUploader, files: SegmentFiles, end: int, _lasts: object) -> bool:
        return differs(self, files, end, ())

    differs = PartitionUploader._differs
    yield patch.object(PartitionUploader, "_differs", short)
    yield patch.object(PartitionUploader, "lacks", lambda *_: False)
    yield patch.object(PartsOfRun, "contradicting", lambda *_: [])


def _an_index_is_trusted_without_a_check() -> Patches:
    """What a former process has written is as it was."""

    def trust(self: LedPartition, entry: object) -> None:
        trusts(self, entry)  # type: ignore[arg-type]
        self.uploader.unchecked = False

    trusts = LedPartition.trust_index
    yield patch.object(LedPartition, "trust_index", trust)
    yield patch.object(StoredLog, "stated_last_below", lambda *_: None)


def _every_batch_is_another_one() -> Patches:
    """The agent tells of another history wherever it compares."""
    yield patch.object(histories, "is_same", lambda *_: False)


def _batches_at_a_cut_are_not_compared() -> Patches:
    """Of what a lineage leaves in the middle, the agent believes the lineage."""
    last_batches = histories.last_batches

    def uncut(place: PartitionStore, segment: Segment, end: int) -> object:
        return last_batches(place, segment, end) if end == segment.end else (None, None)

    yield patch.object(histories, "last_batches", uncut)
    yield patch.object(Tail, "cut", None)


RESTORES = {
    "histories are not compared": Mutant(_histories_are_not_compared, restored=True),
    "last batches are not compared": Mutant(_last_batches_are_not_compared, restored=True),
    "an index is trusted without a check": Mutant(_an_index_is_trusted_without_a_check, restored=True),
    "every batch is another one": Mutant(_every_batch_is_another_one, restored=True),
    "batches at a cut are not compared": Mutant(_batches_at_a_cut_are_not_compared, restored=True),
}
