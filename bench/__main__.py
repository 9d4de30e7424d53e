"""``python -m bench [PART...]``: measure, print a table, write it to ``.tidemark/bench/<parts>.md``.

Topics are produced once through a real broker and kept in the user's cache; ``python -m bench data`` only does that.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys

from bench import agent, convert, idle, memory, parsers, scale
from bench.data import HOME, Topic, data
from bench.measure import Row, table
from demo.steps import Steps
from tests.support.s3 import S3Server

PARTS = ("data", "agent", "idle", "parsers", "scale", "memory", "convert")


def main() -> int:
    """Run the parts that are named; all of them by default."""
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, epilog="example: python -m bench convert --only zstd-1000,lz4-250"
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--gib", type=float, default=1.1, help="of record values by topic (default: %(default)s)")
    parser.add_argument("--only", type=lambda text: text.split(","), help="convert: codecs with the size of values")
    parser.add_argument("--rounds", type=int, default=3, help="convert: rounds after the first (default: %(default)s)")
    options = parser.parse_args()
    unknown = [one for one in options.parts if one not in PARTS]
    topics = [one for one in convert.TOPICS if options.only is None or f"{one.codec}-{one.size}" in options.only]
    if unknown or not topics:
        parser.error(f"no such part or topic: {', '.join(unknown or options.only)}")
    parts = [one for one in PARTS if one in (options.parts or PARTS)]
    for folder in HOME.glob("*/"):
        shutil.rmtree(folder)
    HOME.mkdir(parents=True, exist_ok=True)
    text = table(_measured(parts, topics, options.gib, options.rounds))
    (HOME / f"{'-'.join(parts)}.md").write_text(text)
    sys.stdout.write(f"\n{text}")
    return 0


def _measured(parts: list[str], topics: list[Topic], gib: float, rounds: int) -> list[Row]:
    steps = Steps()
    rows: list[Row] = []
    with S3Server(HOME / "s3") as s3:
        os.environ.update(s3.env())
        for name, measure in (
            ("parsers", parsers.measure),
            ("scale", scale.measure),
            ("idle", lambda: idle.measure(s3)),
        ):
            if name in parts:
                with steps.step(f"{name} measured"):
                    rows += measure()
        wanted = {
            "agent": agent.TOPICS,
            "memory": memory.TOPICS,
            "convert": topics,
            "data": (*agent.TOPICS, *memory.TOPICS, *topics),
        }
        needed = list(dict.fromkeys(one for part in parts for one in wanted.get(part, ())))
        if needed:
            with data(gib, needed, steps) as made:
                if "agent" in parts:
                    with steps.step("agent measured"):
                        rows += agent.backlog(made, s3) + agent.latency(made.cluster, s3)
                if "memory" in parts:
                    with steps.step("memory measured"):
                        rows += memory.measure(made)
                if "convert" in parts:
                    with steps.step("convert measured"):
                        rows += convert.measure(made, s3, topics, rounds)
    return rows


if __name__ == "__main__":
    sys.exit(main())
