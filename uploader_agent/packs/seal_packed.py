"""Seals a run from packs: by the same steps as one from local files, under the same rules."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import structlog

from tidemark.formats.head import HeadEntry
from tidemark.formats.pack import PackedRange
from tidemark.kafka_log import Lineage
from uploader_agent.packs.packed_files import PackedFiles
from uploader_agent.packs.packed_run import known_lineage, part_of, read_run
from uploader_agent.remote.manifests import Observed, StoredManifest
from uploader_agent.remote.remote_state import RemoteState
from uploader_agent.upload.eligibility import Work
from uploader_agent.upload.local_run import LocalRun
from uploader_agent.upload.segment_upload import Rules, StoredBefore, UploadRoute, upload_run

logger = structlog.get_logger(__name__)


def seal_packed(
    route: UploadRoute,
    entries: Sequence[HeadEntry],
    ranges: Sequence[PackedRange],
    lineage: Lineage,
    start: int,
    end: int,
    seen: Observed,
    remote: RemoteState,
) -> StoredManifest | None:
    """Seal what the ``ranges`` of ``entries`` hold on ``lineage`` in ``[start, end)``; None if nothing is at ``start``.

    The run ends where they have a hole, or where it has become too large for the memory. Raises as
    :func:`~uploader_agent.packs.packed_run.read_run` and :func:`~uploader_agent.upload.segment_upload.upload`.
    """
    lineage = known_lineage(lineage, entries, ranges)
    run = read_run(route.store, ranges, lineage, start, end, remote.open_before)
    if run is None:
        return None
    if run.compacted:
        seen = dataclasses.replace(seen, cleanup_policy="compact")
    parts = tuple(part_of(one.range) for one in ranges)
    before = StoredBefore(remote.watermark, run.opened, has_log=remote.has_log(start), packed=parts)
    with PackedFiles(start, run.data, lineage) as files:
        work = Work(start, run.end, start, None)
        logger.info("sealed_from_packs", partition=str(route.tp), base_offset=start, next_offset=run.end)
        rules = Rules(lambda _scanned, judged: judged, local=False)
        return upload_run(route, work, seen, rules, before, files, LocalRun(start, files.log, files.log))
