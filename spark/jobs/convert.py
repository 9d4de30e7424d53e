"""Land new offsets of a topic in its table, make dates of it again, parse refused rows again, or clean up.

``spark-submit convert.py --topics FILE --topic NAME [--plan KEY | --attempt N | --replay [--dt DATE]… | --sweep |
--repair | --rebuild (--from DATE --to DATE [--extend | --missing] | --all) [--compare]] [--report NAME] [--dry-run]``

The last line of output is the result as JSON. Exit codes: 0 landed, stale or empty; 2 a configuration error; 1 others.
With ``--compare``: 0 no row would change, 1 some would, 2 trouble. ``--report`` puts what ``--dry-run`` and
``--compare`` print into the store as well, where another process reads it.
"""

from __future__ import annotations

import sys

from tidemark_spark.cli.convert import main

if __name__ == "__main__":
    sys.exit(main())
