"""``tidemark-agent verify``: what the store has of a partition, against itself, ``offset.wm`` and the broker's disk.

* ``findings``: the words in which it is said, and which of them mean that something is wrong
* ``segment``: one segment: its manifest, its objects, its bytes
* ``tails``: what is packed behind the segments
* ``packs``: the packs that still exist, against the segments that have replaced them
* ``partition``: all of a partition's segments together: continuity, lineage, what is still to come

Only reads. Memory is bounded by the segments looked at at a time, not by a partition's age.
"""

from uploader_agent.verify.findings import Severity, VerifyFinding
from uploader_agent.verify.packs import compare_packs
from uploader_agent.verify.partition import VerifyVerdict, verify

__all__ = ["Severity", "VerifyFinding", "VerifyVerdict", "compare_packs", "verify"]
