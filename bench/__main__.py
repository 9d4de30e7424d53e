"""``python -m bench [agent] [idle] [parsers] [convert]``: measure, print a table, write it to ``.tidemark/bench``."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence

from bench import agent, convert, idle, parsers
from bench.data import CODECS, HOME, broker, produce
from bench.measure import Row, table
from demo.steps import Steps
from tests.support.s3 import S3Server

PARTS = ("agent", "idle", "parsers", "convert")


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
    with S3Server(HOME / "s3") as s3:
        os.environ.update(s3.env())
        if {"agent", "convert"} & set(parts):
            rows += _with_data(parts, options.gib, s3, steps)
        if "idle" in parts:
            with steps.step("idle measured"):
                rows += idle.measure(s3)
    text = table(rows)
    (HOME / "results.md").write_text(text)
    sys.stdout.write(f"\n{text}")
    return 0


def _with_data(parts: Sequence[str], gib: float, s3: S3Server, steps: Steps) -> list[Row]:
    """What is measured over the same topics."""
    rows: list[Row] = []
    with broker(256 << 20) as cluster:
        with steps.step(f"{gib:g} GiB of values produced for each of {', '.join(CODECS)}"):
            made = {codec: produce(cluster, f"bench-{codec}", codec, int(gib * (1 << 30))) for codec in CODECS}
        if "agent" in parts:
            with steps.step("agent measured"):
                rows += agent.backlog(cluster, s3) + agent.latency(cluster, s3)
        if "convert" in parts:
            with steps.step("convert measured"):
                rows += convert.measure(cluster, s3, made)
    return rows


if __name__ == "__main__":
    sys.exit(main())
