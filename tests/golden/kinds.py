"""The kind of each object of a deployment, by its key: as `tidemark.formats.keys` names it, and its reader."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from tests.golden.deployment import PREFIX
from tidemark.backfill.preview import Preview
from tidemark.backfill.report import Approval, BackfillOutcome, Comparison
from tidemark.backfill.request import BackfillRequest
from tidemark.erasure.reports import ErasureReport
from tidemark.formats import keys
from tidemark.formats.base import StoredObject
from tidemark.formats.raw.cluster import ClusterOwner, LeaseOfSlot, SlotCount
from tidemark.formats.raw.erasure import ErasureApproval, ErasureRequest, ErasureWithdrawal
from tidemark.formats.raw.gaps import Acknowledgement
from tidemark.formats.raw.head import Head
from tidemark.formats.raw.incarnations import TopicIncarnations
from tidemark.formats.raw.lineage import JobLineage
from tidemark.formats.raw.manifest import SegmentManifest
from tidemark.formats.raw.masks import Mask, MaskIndex
from tidemark.formats.raw.tombstones import Buried, PackTombstone, Tombstone
from tidemark.formats.raw.watermark import Watermark
from tidemark.formats.raw.watermark_index import WatermarkIndex
from tidemark.formats.table.audit_report import AuditReport, AuditVerdict
from tidemark.formats.table.ledger import Ledger, Published
from tidemark.formats.table.live_landing import LiveLanding
from tidemark.formats.table.plan import RunPlan, RunProgress, RunResult
from tidemark.formats.table.schema_state import SchemaState
from tidemark.formats.table.state_ledger import StateLedger
from tidemark.formats.table.statuses import MirrorStatus, ScanStatus, StateAudit, StateStatus, UnreadStatus
from tidemark.monitoring.incidents import Incidents
from tidemark.monitoring.observer_state import Sightings
from tidemark.monitoring.overview import Overview, Samples
from tidemark.planning.maintenance.retention import RetentionReport


class Kind(NamedTuple):
    """A kind of object: the member of ``keys`` that names it, the form of its key, and its model.

    Without a model it is no JSON, or not Tidemark's; then the corpus's meaning says that it is read.
    """

    member: str
    bucket: str
    form: str
    model: type[StoredObject] | None = None


_C: Final = r"golden(?:-39|-pair)?"
_TOPIC: Final = r"[a-z]+(?:@[\w-]{22})?"
_PARTITION: Final = rf"[01]{{3}}/{_C}/{_TOPIC}-\d+"
_FILE: Final = r"\d{20}"
_STATE: Final = rf"_tidemark/{_C}/[a-z]+"
_REPORT: Final = rf"{_STATE}/reports/[0-9a-f]{{16}}"
_REQUEST: Final = rf"_erasure/{_C}/[0-9a-f]{{16}}"

KINDS: Final = (
    Kind("PartitionKeys.manifest", "raw", rf"{_PARTITION}/{_FILE}\.manifest\.json(?:-[\w-]+)?", SegmentManifest),
    Kind("PartitionKeys.segment", "raw", rf"{_PARTITION}/{_FILE}\.(?:log|index|timeindex|txnindex)(?:-[\w-]+)?"),
    Kind("PartitionKeys.watermark", "raw", rf"{_PARTITION}/offset\.wm", Watermark),
    Kind("ControlKeys.incarnations", "raw", rf"_topics/{_C}/[a-z]+\.json", TopicIncarnations),
    Kind("ControlKeys.index", "raw", rf"_watermarks/{_C}/\d+\.json", WatermarkIndex),
    Kind("ControlKeys.broker_gaps", "raw", rf"_gaps/{_C}/\d+\.json", WatermarkIndex),
    Kind("ControlKeys.cluster_owner", "raw", rf"_fetch/{_C}/cluster\.json", ClusterOwner),
    Kind("ControlKeys.slot_count", "raw", rf"_fetch/{_C}/slots\.json", SlotCount),
    Kind("ControlKeys.slot_lease", "raw", rf"_fetch/{_C}/\d+\.json", LeaseOfSlot),
    Kind("ControlKeys.pack", "raw", rf"_tails/{_C}/\d+/[0-9a-f]{{32}}\.pack"),
    Kind("ControlKeys.head", "raw", rf"_heads/{_C}/\d+\.json", Head),
    Kind("ControlKeys.damaged_head", "raw", rf"_damaged/{_C}/\d+/\w+\.head"),
    Kind("ControlKeys.foreign_watermarks", "raw", rf"_foreign/{_C}/{_TOPIC}-\d+/\w+/offset\.wm", Watermark),
    Kind("ControlKeys.tombstone", "raw", rf"_tombstones/{_C}/{_TOPIC}-\d+/.+\.json", Tombstone),
    Kind("ControlKeys.pack_tombstone", "raw", rf"_tombstones/{_C}/_packs/.+\.json", PackTombstone),
    Kind("ControlKeys.erasure", "raw", rf"{_REQUEST}/request\.json", ErasureRequest),
    Kind("ControlKeys.erasure", "raw", rf"{_REQUEST}/approval\.json", ErasureApproval),
    Kind("ControlKeys.erasure", "raw", rf"{_REQUEST}/withdrawal\.json", ErasureWithdrawal),
    Kind("ControlKeys.mask_index", "raw", rf"_erased/{_C}/{_TOPIC}\.json", MaskIndex),
    Kind("ControlKeys.mask", "raw", rf"_erased/{_C}/{_TOPIC}/\d+/[^/]+\.json", Mask),
    Kind("ControlKeys.buried", "raw", rf"_erased/{_C}/{_TOPIC}/\d+/buried/.+\.json", Buried),
    Kind("ControlKeys.acknowledgement", "raw", rf"_acks/{_C}/{_TOPIC}-\d+/.+\.json", Acknowledgement),
    Kind("TableKeys.root", "lake", r"[a-z]+(?:_current)?/(?:_delta_log/.+|dt=[^_].+\.parquet|[\w-]+\.parquet)"),
    Kind("TableKeys.quarantine", "lake", r"[a-z]+__quarantine/dt=.+\.parquet"),
    Kind("TableKeys.catalog_metadata", "lake", r"[a-z]+(?:_current)?/_iceberg/local/.+"),
    Kind("TableKeys.success", "lake", r"[a-z]+/dt=[0-9-]+/_SUCCESS"),
    Kind("TableKeys.ledger", "lake", rf"{_STATE}/ledger/\d+-\d+\.json", Ledger),
    Kind("TableKeys.attempt", "lake", rf"{_STATE}/attempts/\d+\.json", RunPlan),
    Kind("TableKeys.evidence", "lake", rf"{_STATE}/evidence/\d+\.parquet"),
    Kind("TableKeys.state_ledger", "lake", rf"{_STATE}/state/ledger/\d+-\d+\.json", StateLedger),
    Kind("TableKeys.state_audit", "lake", rf"{_STATE}/state/audits/\d+\.json", StateAudit),
    Kind("TableKeys.state_reserve", "lake", rf"{_STATE}/state/reserve/.+\.parquet"),
    Kind("TableKeys.published", "lake", rf"{_STATE}/published\.json", Published),
    Kind("TableKeys.schema", "lake", rf"{_STATE}/schema\.json", SchemaState),
    Kind("TableKeys.result", "lake", rf"{_STATE}/results/\d+\.json", RunResult),
    Kind("TableKeys.progress", "lake", rf"{_STATE}/progress/\d+\.json", RunProgress),
    Kind("TableKeys.report", "lake", rf"{_REPORT}/request\.json", BackfillRequest),
    Kind("TableKeys.report", "lake", rf"{_REPORT}/preview\.json", Preview),
    Kind("TableKeys.report", "lake", rf"{_REPORT}/comparison-\d+\.json", Comparison),
    Kind("TableKeys.report", "lake", rf"{_REPORT}/approval-\d+\.json", Approval),
    Kind("TableKeys.report", "lake", rf"{_REPORT}/outcome-\d+\.json", BackfillOutcome),
    Kind("TableKeys.retention", "lake", rf"{_STATE}/retention/table/.+\.json", RetentionReport),
    Kind("TableKeys.retention", "lake", rf"{_STATE}/retention/raw/.+\.json", RetentionReport),
    Kind("TableKeys.erasure", "lake", rf"{_STATE}/erasures/\d+\.json", ErasureReport),
    Kind("TableKeys.audit", "lake", rf"{_STATE}/audits/.+\.json", AuditReport),
    Kind("DeploymentKeys.incidents", "lake", rf"_tidemark/_incidents/{_C}\.json", Incidents),
    Kind("DeploymentKeys.sightings", "lake", rf"_tidemark/_watch/{_C}\.json", Sightings),
    Kind("DeploymentKeys.scan", "lake", rf"_tidemark/_scan/{_C}\.json", ScanStatus),
    Kind("DeploymentKeys.landing", "lake", rf"_tidemark/_live/{_C}\.json", LiveLanding),
    Kind("DeploymentKeys.committed_ledger", "lake", rf"_tidemark/_committed/{_C}/[a-z]+\.json", Ledger),
    Kind("DeploymentKeys.verdict", "lake", rf"_tidemark/_audited/{_C}/[a-z]+\.json", AuditVerdict),
    Kind("DeploymentKeys.unread", "lake", rf"_tidemark/_unread/{_C}/[a-z]+\.json", UnreadStatus),
    Kind("DeploymentKeys.state_status", "lake", rf"_tidemark/_states/{_C}/[a-z]+\.json", StateStatus),
    Kind("DeploymentKeys.mirrors", "lake", rf"_tidemark/_mirrors/{_C}\.json", MirrorStatus),
    Kind("DeploymentKeys.hand_over", "lake", rf"_tidemark/_lineage/{_C}/\w+\.json", JobLineage),
    Kind("DeploymentKeys.overview", "lake", rf"_tidemark/_overview/{_C}\.json", Overview),
    Kind("DeploymentKeys.samples", "lake", rf"_tidemark/_samples/{_C}/\w+\.json", Samples),
)

NOT_IN_THE_CORPUS: Final = {
    "ControlKeys.restore": "a person's statement for people, of which the command that writes it sees the ETag alone",
    "ControlKeys.untold": "notes for people, of which a pass sees the names alone",
    "TableKeys.step": "a run that is under way reads its own, and not with other code than that which wrote it",
    "TableKeys.step_evidence": "likewise",
    "TableKeys.datewise_rebuild": "a run that is under way reads its own, and not with other code than it began with",
    "TableKeys.state_run": "files between two rounds of one run, which reads and removes them itself",
}
"""Kinds that no version reads of an earlier one, with the reason."""

NO_OBJECT: Final = {
    "PartitionKeys": {"folder", "file", "control", "segment_of"},
    "ControlKeys": {
        "indexes", "gaps", "tails", "packs", "pack_of", "heads", "tombstones", "pack_tombstones", "erasures",
        "acknowledgements", "restores",
    },
    "TableKeys": {
        "ledgers", "attempts", "steps", "steps_of", "datewise_rebuilds", "state_folder", "state_audits", "results",
        "all_progress", "reports", "erasures", "audits", "deployment",
    },
    "DeploymentKeys": {"committed", "state_statuses", "verdicts", "all_unread", "hand_overs", "all_samples"},
}  # fmt: skip
"""Folders and other members that name no object."""


def kinds_of(bucket: str, key: str) -> list[Kind]:
    """The kinds whose keys have the form of ``key``."""
    rest = key.removeprefix(f"{PREFIX}/")
    return [kind for kind in KINDS if kind.bucket == bucket and re.fullmatch(kind.form, rest)]


def members() -> Iterator[str]:
    """All members of ``keys`` that name objects."""
    for name, apart in NO_OBJECT.items():
        found = vars(getattr(keys, name)).items()
        public = {member for member, value in found if not member.startswith("_") and _names(value)}
        assert apart <= public, apart - public
        yield from (f"{name}.{member}" for member in sorted(public - apart))


def _names(value: object) -> bool:
    return isinstance(value, property | Callable)
