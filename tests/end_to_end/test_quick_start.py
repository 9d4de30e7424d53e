"""The commands of docs/quick-start.md run in their order, against a broker; and what `tidemark try` refuses."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from confluent_kafka import Producer

from tests.support.distributions import distributions
from tests.support.java import java_home
from tests.support.kafka import KafkaCluster
from tests.support.paths import ROOT, env_bin
from tests.support.s3 import S3Server
from tidemark.cli import topics as topics_cli
from tidemark.errors import ConfigError, TidemarkError

PAGE = (ROOT / "docs" / "quick-start.md").read_text()
BLOCKS = re.findall(r"^```sh\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
RECORDS = 2_000
SECONDS = 1_800
"""Longest time that installing and all the rest may take on a busy machine."""


def produce(kafka: KafkaCluster, topic: str, first: int = 0) -> None:
    """Send RECORDS orders, of the last minutes."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    now = int(time.time() * 1000)
    for number in range(first, first + RECORDS):
        order = {"id": number, "country": ["AT", "DE", "FR"][number % 3], "amount": number / 100}
        producer.produce(topic, json.dumps(order).encode(), timestamp=now - number)
    producer.flush()


def run(block: str, folder: Path, programs: Path, **names: str) -> str:
    """The output of a block of the page, with places of this machine; what it makes lies in ``folder``."""
    for theirs, ours in {"~/tidemark/bin": str(programs), "~/tidemark": str(folder / "tidemark"), **names}.items():
        block = block.replace(theirs, ours)
    env = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    done = subprocess.run(
        ["/bin/bash", "-e", "-u", "-o", "pipefail", "-c", block],
        env=env | {"JAVA_HOME": str(java_home()), "TMPDIR": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    sys.stdout.write(done.stdout)
    return done.stdout


def counted(printed: str) -> int:
    """Sum of the counts by date that the query has printed."""
    return sum(int(count) for count in re.findall(r"\d{4}-\d\d-\d\d +(\d+) ", printed))


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("install", [False, pytest.param(True, marks=pytest.mark.full)], ids=["checkout", "wheel"])
def test_the_quick_start_runs(starts_spark: None, kafka: KafkaCluster, install: bool, tmp_path: Path) -> None:
    """With the environment that the page installs; without ``install``, with the checkout's. Then what is new lands."""
    topic = f"quick-{os.urandom(4).hex()}"
    kafka.create_topic(topic, partitions=2)
    produce(kafka, topic)
    programs = env_bin("dev", "tidemark").parent
    setup, land, query = BLOCKS
    if install:
        distributions(tmp_path)
        (tmp_path / "requirements-spark.txt").write_bytes((ROOT / "requirements" / "spark.txt").read_bytes())
        programs = tmp_path / "tidemark" / "bin"
        run(setup.replace("python3", str(env_bin("build", "python"))), tmp_path, programs)
    names = {"localhost:9092": kafka.bootstrap, "try orders": f"try {topic}", "lake/orders": f"lake/{topic}"}
    landed = run(land, tmp_path, programs, **names)
    assert f"{topic}: ledger 1, {RECORDS} rows in" in landed
    assert "Complete: every offset of the log has a class" in landed
    assert counted(run(query, tmp_path, programs, **names)) == RECORDS
    entry = yaml.safe_load((tmp_path / "tidemark-try" / "topics.yaml").read_text())["topics"][0]
    assert [column["name"] for column in entry["parser"]["columns"]] == ["id", "country", "amount"]
    assert (tmp_path / "tidemark-try" / "agent.yaml").stat().st_mode & 0o077 == 0

    produce(kafka, topic, RECORDS)
    run(land, tmp_path, programs, **names)
    assert counted(run(query, tmp_path, programs, **names)) == 2 * RECORDS


def test_a_topic_lands_in_a_bucket(
    starts_spark: None, kafka: KafkaCluster, s3_server: S3Server, tmp_path: Path
) -> None:
    """With keys and address from the environment, as AWS's own tools take them."""
    topic = f"quick-{os.urandom(4).hex()}"
    kafka.create_topic(topic)
    produce(kafka, topic)
    key = next(iter(s3_server.credentials.values()))
    settings = {
        "AWS_ACCESS_KEY_ID": key.access_key,
        "AWS_SECRET_ACCESS_KEY": key.secret_key,
        "AWS_ENDPOINT_URL": s3_server.endpoint,
        "AWS_ALLOW_HTTP": "true",
    }
    command: list[str | Path] = [
        env_bin("dev", "tidemark"),
        "try",
        topic,
        "--bootstrap",
        kafka.bootstrap,
        "--to",
        f"s3://raw/{topic}",
    ]
    env = {**os.environ, **settings, "JAVA_HOME": str(java_home())}
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{RECORDS} rows in s3://raw/{topic}/lake/" in done.stdout


def refused(folder: Path, topic: str, bootstrap: str, **client: int) -> subprocess.CompletedProcess[str]:
    """What the command says of a mistake; nothing is written."""
    settings = folder / "client.yaml"
    settings.write_text(yaml.safe_dump(client))
    where = ("--bootstrap", bootstrap, "--client-config", settings, "--to", folder / "data")
    command = [env_bin("dev", "tidemark"), "try", topic, *where]
    env = {**os.environ, "JAVA_HOME": str(folder)}
    done = subprocess.run(list(map(str, command)), env=env, cwd=folder, capture_output=True, text=True, check=False)
    assert not list((folder / "tidemark-try").glob("*"))
    return done


def test_a_topic_that_does_not_exist_is_refused(kafka: KafkaCluster, tmp_path: Path) -> None:
    done = refused(tmp_path, "no-such-topic", kafka.bootstrap)
    assert (done.returncode, done.stderr) == (2, f"no-such-topic: {kafka.bootstrap} has no such topic\n")


def test_brokers_that_do_not_answer_are_named(tmp_path: Path) -> None:
    done = refused(tmp_path, "orders", "127.0.0.1:1", bootstrap_timeout_ms=100)
    assert done.returncode == 1
    assert done.stderr.startswith("127.0.0.1:1: ")
    assert "check --bootstrap" in done.stderr


def test_a_program_that_fails_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    with pytest.raises(TidemarkError, match=rf"(?s)No such command 'none'.*ended with exit code 2; {tmp_path}/log"):
        topics_cli.run_program(tmp_path / "log", "tidemark", "none")


@pytest.mark.parametrize(
    ("lacking", "told"),
    [("inotify_simple", "the extra agent"), ("ruamel.yaml", "the extra onboarding"), ("pyspark", "the extra spark")],
)
def test_a_part_that_is_missing_is_named(
    lacking: str, told: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tidemark.installation.find_spec", lambda name: None if name == lacking else object())
    with pytest.raises(ConfigError, match=told):
        topics_cli.try_topic("orders", "127.0.0.1:9092", str(tmp_path))


def test_a_missing_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tidemark.installation.find_spec", lambda _: object())
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(ConfigError, match="lacks Java"):
        topics_cli.try_topic("orders", "127.0.0.1:9092", str(tmp_path))


def test_files_of_another_place_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Else an agent would store records where no job reads them."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(topics_cli, "_check_topic", lambda *_: None)
    (tmp_path / "topics.yaml").write_text("lake: file:///elsewhere/lake\ntopics: []\n")
    with pytest.raises(ConfigError, match=r"lake: is file:///elsewhere/lake: give --to its folder"):
        topics_cli.try_topic("orders", "127.0.0.1:9092", str(tmp_path), folder=tmp_path)


def test_each_command_of_the_page_is_run() -> None:
    assert len(BLOCKS) == PAGE.count("```sh\n") == 3
    assert "-m venv ~/tidemark\n" in BLOCKS[0]
    assert "tidemark try orders --bootstrap localhost:9092" in BLOCKS[1]
