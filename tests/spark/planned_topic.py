"""Make a deployment in FOLDER whose topic has COUNT records to land; print the key of its plan.

For tests in an environment that can neither make records nor land them.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.spark.world import World
from tests.tidemark.kafka_log.build import T0, Record, batch


def main(folder: str, count: str) -> None:
    """Make it."""
    world = World(Path(folder))
    world.raw.segment([batch(0, [Record(k, T0 + k, b"k%d" % k, b"v%d" % k) for k in range(int(count))], "none")], 0)
    world.raw.publish()
    sys.stdout.write(world.table.keys.attempt(world.plan().attempt) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
