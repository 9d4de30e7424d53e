"""``tidemark-agent verify``: compares a partition in the store with itself, ``offset.wm`` and the broker's disk.

* ``segment``: the words of findings by severity, and one segment: its manifest, its objects, its bytes
* ``partition``: all of a partition's segments together, with the packed offsets behind them, and the rest on the disk
* ``packs``: the packs that still exist, against the segments that have replaced them

Only reads. Memory is bounded by the segments checked at a time, not by a partition's age.
"""

from uploader_agent.verify.packs import compare_packs
from uploader_agent.verify.partition import VerifyVerdict, verify
from uploader_agent.verify.segment import Severity, VerifyFinding

__all__ = ["Severity", "VerifyFinding", "VerifyVerdict", "compare_packs", "verify"]
