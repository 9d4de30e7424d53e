"""``tidemark-agent verify``: compares a partition in the store with itself, ``offset.wm`` and the broker's disk.

* ``findings``: the words of its findings, and their order by severity
* ``segment``: one segment: its manifest, its objects, its bytes
* ``tails``: the packed offsets behind the segments
* ``packs``: the packs that still exist, against the segments that have replaced them
* ``partition``: all of a partition's segments together: continuity, lineage, and the rest on the disk

Only reads. Memory is bounded by the segments checked at a time, not by a partition's age.
"""

from uploader_agent.verify.packs import compare_packs
from uploader_agent.verify.partition import VerifyVerdict, verify
from uploader_agent.verify.segment import Severity, VerifyFinding

__all__ = ["Severity", "VerifyFinding", "VerifyVerdict", "compare_packs", "verify"]
