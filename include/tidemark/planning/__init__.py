"""What a run has to do, worked out from the raw objects, the topic's settings and the committed ledger.

* ``raw`` reads what the store holds of a topic, ``objects`` each kind of object of a partition
* ``segments``, ``transactions``, ``partition`` and ``ranges`` are the rules, and pure
* ``dates`` says which dates close, and is pure as well
* ``ingest``, ``rebuild`` and ``replay`` plan a run for new offsets, for dates to make again, and for refused rows
* ``repair`` plans one that makes a table right again after somebody else changed it
* ``missing`` says which files of dates are lost
* ``compaction`` plans a run that merges small files, ``retain`` one that takes dates away
* ``following`` is what all plans say alike

The same state gives the same plan, its attempt and its time apart. Nothing here imports pyarrow or Spark at module
level: the scheduler's ``plan`` task runs it too.
"""

from tidemark.planning.code import code_digest
from tidemark.planning.compaction import plan_compaction
from tidemark.planning.ingest import dates_to_close, plan_ingest
from tidemark.planning.missing import lost_files, waiting_offsets
from tidemark.planning.rebuild import plan_rebuild
from tidemark.planning.repair import plan_repair
from tidemark.planning.replay import plan_replay
from tidemark.planning.written import find_plan, read_plan, write_plan

__all__ = [
    "code_digest",
    "dates_to_close",
    "find_plan",
    "lost_files",
    "plan_compaction",
    "plan_ingest",
    "plan_rebuild",
    "plan_repair",
    "plan_replay",
    "read_plan",
    "waiting_offsets",
    "write_plan",
]
