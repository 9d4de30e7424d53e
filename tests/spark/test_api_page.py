"""The program of docs/api/spark.md does what the page says."""

from __future__ import annotations

import re

from tests.spark.jobs.programs import Programs
from tests.spark.world import World
from tests.support.paths import ROOT
from tests.tidemark.kafka_log.build import simple

[PROGRAM] = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "api" / "spark.md").read_text(), re.DOTALL)


def test_the_pages_program_counts_the_records(world: World, on_spark: Programs) -> None:
    world.raw.segment([simple(0, 5)])
    world.raw.publish()
    done = on_spark.run("tests.spark.run_example", PROGRAM.replace("topics.yaml", str(world.topics_file)))
    assert done.code == 0, done.errors[-3000:]
    assert re.search(r"\|\s*0\|\s*3\|", done.output), "offsets 2 to 4 of partition 0"
