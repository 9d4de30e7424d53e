"""Plans for runs, made from the raw objects, the topic's settings and the committed ledger.

* ``partition_plan`` has the rules for one partition and is pure; ``read`` finds given offsets in raw
* ``date_finality`` decides which dates close and is pure as well
* ``ingest`` plans a run for new offsets, and finds the offsets that will never come
* ``rebuild`` plans a run for dates, and a run for quarantined rows
* ``repair`` plans a run that restores a table which another program changed, and finds the files that dates have lost
* ``compaction`` plans a run that merges small files, ``retention`` a run that removes dates
* ``common`` has the fields that all plans share, and writes and finds plans

An equal state gives an equal plan, except for its attempt and its time. Nothing here imports pyarrow or Spark at module
level, because the scheduler's ``plan`` task runs this code too.
"""

from tidemark.planning.common import find_plan, read_plan, write_plan
from tidemark.planning.ingest import dates_to_close, plan_ingest
from tidemark.planning.maintenance.compaction import plan_compaction
from tidemark.planning.rebuild import landed_parts, plan_rebuild, plan_replay
from tidemark.planning.repair import lost_files, plan_repair, waiting_offsets

__all__ = [
    "dates_to_close",
    "find_plan",
    "landed_parts",
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
