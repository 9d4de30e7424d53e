"""The commands of docs/tutorial.md run in their order, against a broker and an S3 server of the test."""

from __future__ import annotations

import os
import re
import subprocess
import uuid
from pathlib import Path

import pytest

from tests.support.java import java_home
from tests.support.kafka import KafkaCluster
from tests.support.paths import ROOT, env_bin
from tests.support.s3 import ADMIN, S3Server

PAGE = (ROOT / "docs" / "tutorial.md").read_text()
BLOCKS = re.findall(r"^```sh\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
INSTALL = 1
"""The block that builds and installs the wheel."""
END = "--- end of block"
SECONDS = 1_800
"""Longest time that installing and all the rest may take on a busy machine."""


def here(block: str, folder: Path, kafka: KafkaCluster, topic: str, s3: S3Server) -> str:
    """The block with places and keys of this machine, and with a topic that no other test has."""
    key = s3.credentials[ADMIN]
    names = {
        "~/tidemark": str(folder),
        "/etc/kafka/server.properties": str(kafka.brokers[0].properties_path),
        "localhost:9092": kafka.bootstrap,
        "TOPIC=orders": f"TOPIC={topic}",
        "http://127.0.0.1:8333": s3.endpoint,
        "your-key": key.access_key,
        "your-secret": key.secret_key,
    }
    for theirs, ours in names.items():
        block = block.replace(theirs, ours)
    return block


def run(blocks: list[str], folder: Path, programs: Path) -> list[str]:
    """Output of each block; one shell, which finds ``programs``, runs all of them."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "MAKE", "MFLAGS"))}
    env = kept | {
        "JAVA_HOME": str(java_home()),
        "PATH": f"{programs}:{os.environ['PATH']}",
        "TMPDIR": str(folder),
    }
    ended = f"\necho '{END}'\n"
    script = "trap 'kill $(jobs -p) 2> /dev/null || true' EXIT\n" + "".join(block + ended for block in blocks)
    log = folder / "tutorial.log"
    with log.open("w") as output:
        done = subprocess.run(
            ["/bin/bash", "-e", "-u", "-o", "pipefail", "-c", script],
            env=env,
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    logs = (log, folder / "try" / "spark.log")
    assert done.returncode == 0, "".join(path.read_text()[-8_000:] for path in logs if path.exists())
    return log.read_text().split(f"{END}\n")[:-1]


def rows(printed: str) -> int:
    """Sum of the counts by date that Polars has printed."""
    return sum(int(count) for count in re.findall(r"^│ \d{4}-\d\d-\d\d ┆ (\d+) ", printed, re.MULTILINE))


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("install", [False, pytest.param(True, marks=pytest.mark.full)], ids=["checkout", "wheel"])
def test_the_tutorial_runs(
    starts_s3: None, starts_spark: None, kafka: KafkaCluster, install: bool, tmp_path: Path
) -> None:
    """With the environment that the page installs; without ``install``, with the checkout's."""
    folder = tmp_path / "tidemark"
    folder.mkdir()
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    with S3Server(tmp_path / "s3", buckets=("my-bucket",)) as s3:
        blocks = [here(block, folder, kafka, topic, s3) for block in BLOCKS]
        programs = env_bin("build" if install else "dev", "python").parent
        if not install:
            del blocks[INSTALL]
        *_, upload, land, query, again = run(blocks, folder, programs)
    stored = re.findall(rf"^{topic}-\d +\d+ +(\d+) +\1 +\1 +0 +0 ", upload, re.MULTILINE)
    assert sum(map(int, stored)) == 10_000
    assert '"status":"landed"' in land
    assert f"10000 rows in s3://my-bucket/lake/{topic}\nComplete" in land
    assert rows(query) == 10_000
    assert re.search(r'^\{"id": \d+, "country": "[A-Z]+", "amount": [\d.]+\}$', again, re.MULTILINE)
    assert rows(again) == 20_000


def test_each_command_of_the_page_is_run() -> None:
    assert len(BLOCKS) == PAGE.count("```sh\n")
    assert BLOCKS[INSTALL].startswith("make dist\n")
    assert any("~/tidemark" in block for block in BLOCKS)


def test_what_a_reader_has_to_replace_is_in_the_first_block_only() -> None:
    named, *others = BLOCKS
    for name in (
        "/etc/kafka/server.properties",
        "localhost:9092",
        "TOPIC=orders",
        "my-bucket",
        "http://127.0.0.1:8333",
        "your-secret",
    ):
        assert name in named
        assert not [block for block in others if name in block]
