"""Remove the packs of a cluster whose batches are all in seals.

``spark-submit retain_packs.py --topics FILE [--cluster NAME] [--dry-run] [--json]``
``spark-submit retain_packs.py --topics FILE --forget TOPIC_ID [--apply --by NAME --reason TEXT]``

A pack is removed two days after all of it is in seals. The reports are printed, one for each store and prefix. Exit
codes: 0 done; 2 a configuration error; 1 others.
"""

from __future__ import annotations

import sys

from tidemark_spark.cli.retain_packs import main

if __name__ == "__main__":
    sys.exit(main())
