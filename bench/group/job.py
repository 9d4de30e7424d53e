"""``job.py --topics FILE --cluster NAME --topic NAME --plan KEY --others NAME…``: the plan, then each of the others."""

from __future__ import annotations

import argparse
import sys

from tidemark_spark.cli import ingest, run_plan

parser = argparse.ArgumentParser()
for name in ("--topics", "--cluster", "--topic", "--plan"):
    parser.add_argument(name, required=True)
parser.add_argument("--others", nargs="*", default=[])
options = parser.parse_args()
common = ["--topics", options.topics, "--cluster", options.cluster]
code = run_plan.main([*common, "--topic", options.topic, "--plan", options.plan])
for other in options.others:
    code = code or ingest.main([*common, "--topic", other])
sys.exit(code)
