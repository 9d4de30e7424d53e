"""Make dates of a table again from raw, with the current settings and code.

``spark-submit rebuild.py --topics FILE --topic NAME (--from DATE --to DATE [--extend | --missing] | --all)
[--compare] [--report NAME] [--dry-run]``

The last line of output is the result, the preview or the comparison as JSON. Exit codes: 0 landed, stale or empty; 2 a
configuration error; 1 others. With ``--compare``: 0 no row would change, 1 some would, 2 trouble. ``--report`` also
puts the output of ``--dry-run`` and ``--compare`` into the store, where another process reads it.
"""

from __future__ import annotations

import sys

from tidemark_spark.cli.rebuild import main

if __name__ == "__main__":
    sys.exit(main())
