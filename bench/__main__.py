"""``python -m bench [agent] [convert] [parsers]``: measure, print one table, write it to ``.tidemark/bench``."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence

from bench import agent, convert, parsers
from bench.data import CODECS, HOME, broker, produce
from bench.measure import Row, table
from demo.steps import Steps
from tests.support.s3 import S3Server

PARTS = ("agent", "convert", "parsers")


def main() -> int:
    """Run the parts that are named; all of them by default."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[], help="what to measure (default: all)")
    parser.add_argument("--gib", type=float, default=1.1, help="of record values by codec (default: %(default)s)")
    options = parser.parse_args()
    parts = options.parts or PARTS
    steps = Steps()
    shutil.rmtree(HOME, ignore_errors=True)
    HOME.mkdir(parents=True)
    rows: list[Row] = []
    if "parsers" in parts:
        with steps.step("parsers measured"):
            rows += parsers.measure()
    if {"agent", "convert"} & {*parts}:
        rows += _through_a_broker(parts, options.gib, steps)
    text = table(rows)
    (HOME / "results.md").write_text(text)
    sys.stdout.write(f"\n{text}")
    return 0


def _through_a_broker(parts: Sequence[str], gib: float, steps: Steps) -> list[Row]:
    rows: list[Row] = []
    with S3Server(HOME / "s3") as s3, broker(256 << 20) as cluster:
        os.environ.update(s3.env())
        with steps.step(f"{gib:g} GiB of values produced for each of {', '.join(CODECS)}"):
            total = int(gib * (1 << 30))
            made = {codec: produce(cluster, f"bench-{codec}", codec, total) for codec in CODECS}
        if "agent" in parts:
            with steps.step("agent measured"):
                rows += agent.backlog(cluster, s3) + agent.latency(cluster, s3)
        if "convert" in parts:
            with steps.step("convert measured"):
                rows += convert.measure(cluster, s3, made)
    return rows


if __name__ == "__main__":
    sys.exit(main())
