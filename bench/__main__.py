"""``python -m bench [PART...]``: measure, print a table for each part, write it to ``.tidemark/bench/<part>.md``.

Topics are produced once through a real broker and kept in the user's cache; ``python -m bench data`` only does that.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from bench import (
    agent,
    cadence,
    consumer,
    convert,
    decode,
    endurance,
    executors,
    idle,
    layouts,
    live,
    live_end,
    live_many,
    memory,
    orchestration,
    parsers,
    scale,
    watch,
    week,
)
from bench.data import HOME, Data, Topic, data
from bench.measure import Row, table
from demo.steps import Steps
from tests.support.s3 import S3Server

PARTS = (
    "data",
    "agent",
    "idle",
    "parsers",
    "scale",
    "watch",
    "orchestration",
    "consumer",
    "memory",
    "executors",
    "layouts",
    "decode",
    "convert",
)
LONG = ("cadence", "live", "live-many", "endurance", "live-end", "week")
"""Parts that run only when they are named."""


def main() -> int:
    """Run the parts that are named; all of them by default."""
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, epilog="example: python -m bench convert --only zstd-1000,lz4-250"
    )
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (default: all), {', '.join(LONG)}"
    )
    parser.add_argument("--gib", type=float, default=1.1, help="of record values by topic (default: %(default)s)")
    parser.add_argument(
        "--only", type=lambda text: text.split(","), help="topics of decode and convert, by codec and size"
    )
    parser.add_argument("--rounds", type=int, default=3, help="convert: rounds after the first (default: %(default)s)")
    parser.add_argument("--peer", type=Path, metavar="PATH", help="decode: a decoder in C to measure beside")
    parser.add_argument("--minutes", type=float, default=60.0, help="endurance: how long (default: %(default)g)")
    options = parser.parse_args()
    unknown = [one for one in options.parts if one not in (*PARTS, *LONG)]
    topics = [one for one in convert.TOPICS if options.only is None or f"{one.codec}-{one.size}" in options.only]
    if unknown or not topics:
        parser.error(f"no such part or topic: {', '.join(unknown or options.only)}")
    parts = [one for one in (*PARTS, *LONG) if one in (options.parts or PARTS)]
    for folder in HOME.glob("*/"):
        shutil.rmtree(folder)
    HOME.mkdir(parents=True, exist_ok=True)
    _run(parts, topics, options)
    return 0


def _run(parts: list[str], topics: list[Topic], options: argparse.Namespace) -> None:
    steps = Steps()

    def part(name: str, measure: Callable[[], list[Row]]) -> None:
        """Measure it, and tell at once what was found: later parts may fail."""
        with steps.step(f"{name} measured"):
            text = table(measure())
        (HOME / f"{name}.md").write_text(text)
        sys.stdout.write(f"\n{text}\n")
        sys.stdout.flush()

    with S3Server(HOME / "s3") as s3:
        os.environ.update(s3.env())
        alone: dict[str, Callable[[], list[Row]]] = {
            "parsers": parsers.measure,
            "scale": scale.measure,
            "idle": lambda: idle.measure(s3),
            "watch": lambda: watch.measure(s3),
            "orchestration": lambda: orchestration.measure(s3),
            "layouts": lambda: layouts.measure(steps),
            "consumer": lambda: consumer.measure(s3),
            "cadence": cadence.measure,
            "live": live.measure,
            "live-many": live_many.measure,
            "live-end": lambda: live_end.measure(s3),
            "week": lambda: week.measure(7),
            "endurance": lambda: endurance.measure(options.minutes),
        }
        over: dict[str, tuple[Sequence[Topic], Callable[[Data], list[Row]]]] = {
            "agent": (agent.TOPICS, lambda made: agent.backlog(made, s3) + agent.latency(made.cluster, s3)),
            "memory": (memory.TOPICS, memory.measure),
            "executors": (executors.TOPICS, executors.measure),
            "decode": (topics, lambda made: decode.measure(made, topics, options.peer)),
            "convert": (topics, lambda made: convert.measure(made, s3, topics, options.rounds)),
        }
        for name in (one for one in parts if one in alone):
            part(name, alone[name])
        needed = [one for name, (of, _) in over.items() if name in parts or "data" in parts for one in of]
        if needed:
            with data(options.gib, list(dict.fromkeys(needed)), steps) as made:
                for name in (one for one in parts if one in over):
                    part(name, partial(over[name][1], made))


if __name__ == "__main__":
    sys.exit(main())
