"""docs/tutorial.md: its commands run in their order, against a broker and an S3 server of the test."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.java import java_home
from tests.support.kafka import KafkaCluster
from tests.support.paths import ROOT, env_bin
from tests.support.s3 import ADMIN, S3Server

PAGE = (ROOT / "docs" / "tutorial.md").read_text()
BLOCKS = re.findall(r"^```sh\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
BUCKET = "my-bucket"
DONE = "--- end of block"
SECONDS = 1_200
"""The longest that installing and all the rest may take on a busy machine."""


def here(script: str, folder: Path, kafka: KafkaCluster, s3: S3Server) -> str:
    """The page's commands with the places and keys of this machine."""
    key = s3.credentials[ADMIN]
    places = {
        "~/tidemark": str(folder),
        "/etc/kafka/server.properties": str(kafka.brokers[0].properties_path),
        "localhost:9092": kafka.bootstrap,
        "http://127.0.0.1:8333": s3.endpoint,
        "your-key": key.access_key,
        "your-secret": key.secret_key,
    }
    for theirs, ours in places.items():
        assert theirs in script
        script = script.replace(theirs, ours)
    return script


def run(blocks: list[str], folder: Path, programs: Path) -> list[str]:
    """Run the blocks in one shell that finds ``programs``; returns the output of each block."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "MAKE", "MFLAGS"))}
    env = kept | {"PATH": f"{programs}:{os.environ['PATH']}", "JAVA_HOME": str(java_home())}
    env |= {"SPARK_LOCAL_IP": "127.0.0.1", "TMPDIR": str(folder)}
    script = "".join(f"{block}\necho '{DONE}'\n" for block in blocks)
    log = folder / "tutorial.log"
    with log.open("w") as output:
        command = ["bash", "-e", "-u", "-o", "pipefail", "-c", script]
        done = subprocess.run(
            command, env=env, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, timeout=SECONDS, check=False
        )
    spark = folder / "try" / "spark.log"
    assert done.returncode == 0, log.read_text() + (spark.read_text()[-4_000:] if spark.exists() else "")
    return log.read_text().split(f"{DONE}\n")[:-1]


@pytest.mark.parametrize("installed", [False, pytest.param(True, marks=pytest.mark.full)], ids=["checkout", "wheel"])
def test_the_tutorial_runs(installed: bool, tmp_path: Path) -> None:
    """From the checkout's environment, or from those that the page installs."""
    with S3Server(tmp_path / "s3", buckets=(BUCKET,)) as s3, KafkaCluster(tmp_path / "kafka") as kafka:
        folder = tmp_path / "tidemark"
        folder.mkdir()
        whole = here("\0".join(BLOCKS), folder, kafka, s3).split("\0")
        programs = env_bin("build" if installed else "dev", "python").parent
        *_, upload, land, query, again = run(whole if installed else whole[1:], folder, programs)
        shown = {
            partition: int(end)
            for partition, end in re.findall(r"^orders-(\d) +\d+ +(\d+) +\2 +\2 +0 +0 ", upload, re.MULTILINE)
        }
        assert sum(shown.values()) == 10_000
        assert '"status":"landed"' in land
        assert "10000 rows in s3://my-bucket/lake/orders\nComplete" in land
        assert rows(query) == 10_000
        assert re.search(r'^\{"id": \d+, "country": "[A-Z]+", "amount": [\d.]+\}$', again, re.MULTILINE)
        assert rows(again) == 20_000


def rows(printed: str) -> int:
    """Sum of the counts by date that Polars has printed."""
    return sum(int(count) for count in re.findall(r"^│ \d{4}-\d\d-\d\d ┆ (\d+) ", printed, re.MULTILINE))


def test_each_command_of_the_page_is_run() -> None:
    assert len(BLOCKS) == PAGE.count("```sh\n") == 7
    assert "make dist" in BLOCKS[0]
