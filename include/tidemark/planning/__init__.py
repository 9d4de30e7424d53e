"""What a run has to do, worked out from the raw objects, the topic's settings and the committed ledger.

* ``partition_plan`` has the rules for a partition, and is pure; ``read`` says where given offsets lie in raw
* ``date_finality`` says which dates close, and is pure as well
* ``ingest``, ``rebuild`` and ``replay`` plan a run for new offsets, for dates to make again, and for refused rows
* ``repair`` plans one that makes a table right again after somebody else changed it
* ``lost_files`` says which files of dates are lost, ``lost_gaps`` which offsets will never come
* ``compaction`` plans a run that merges small files, ``retention`` one that takes dates away
* ``common`` is what all plans share, ``plan_store`` writes and finds them

The same state gives the same plan, its attempt and its time apart. Nothing here imports pyarrow or Spark at module
level: the scheduler's ``plan`` task runs it too.
"""

from tidemark.planning.compaction import plan_compaction
from tidemark.planning.ingest import dates_to_close, plan_ingest
from tidemark.planning.lost_files import lost_files, waiting_offsets
from tidemark.planning.plan_store import find_plan, read_plan, write_plan
from tidemark.planning.rebuild import plan_rebuild
from tidemark.planning.repair import plan_repair
from tidemark.planning.replay import plan_replay

__all__ = [
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
