"""The tiers of tests, and the markers of servers that they go by. Both environments run it, each over its own tests."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.groups import WITH_BROKERS, group_of
from tests.support.paths import ROOT
from tests.support.s3 import S3Server
from tests.support.tiers import COLLECTED, KINDS, TIERS, check, kind_of_program, kinds_of, of_tiers, running

MAKEFILE = (ROOT / "Makefile").read_text().replace("$(COMMA)", ",")
HAND_MADE = re.compile(rf"(@|pytestmark.*)pytest\.mark\.({'|'.join(KINDS)})\b")
"""A marker that does not come from a fixture, nor stands at a parameter."""


def tiers_of(target: str) -> list[str]:
    """What a target of the Makefile runs."""
    found = re.search(rf"^{target}:.*\n\t\$\(call tests,([a-z,]+),\$", MAKEFILE, re.MULTILINE)
    assert found, target
    return found[1].split(",")


def test_the_tiers_are_all_tests_and_none_is_in_two(request: pytest.FixtureRequest) -> None:
    collected = request.config.stash[COLLECTED]
    parts = [item.nodeid for tier in TIERS for item in of_tiers(collected, [tier])]
    assert sorted(parts) == sorted(item.nodeid for item in collected)


def test_the_commands_run_all_tiers_and_none_twice() -> None:
    assert tiers_of("check") == ["check"]
    assert tiers_of("test") == ["check", "essential"]
    assert tiers_of("test-all") == [*tiers_of("test"), *tiers_of("test-servers"), "full"] == list(TIERS)
    assert "$(MAKE) test-all" in MAKEFILE.partition("\ntest-full:")[2].partition("\n\n")[0]
    assert re.findall(r"make (\S+)", (ROOT / ".ci" / "run").read_text()) == ["test", "test-servers"]
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert re.findall(r"run: make (test\S*)", workflow) == ["test", "test-servers"]


def test_no_process_starts_a_broker_but_those_that_run_a_group_of_its_tests(request: pytest.FixtureRequest) -> None:
    collected = request.config.stash[COLLECTED]
    short = of_tiers(collected, ["essential", "servers"])
    files = {item.nodeid.partition("::")[0] for item in short if "kafka" in kinds_of(item)}
    others = sorted(file for file in files if group_of(file) not in WITH_BROKERS)
    assert not others, f"name them in a group of tests/support/groups.py: {others}"


def test_no_marker_of_a_server_is_written_by_hand() -> None:
    found = {path: HAND_MADE.findall(path.read_text()) for path in (ROOT / "tests").rglob("*.py")}
    assert not {str(path): marks for path, marks in found.items() if marks}


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        (".tidemark/env/dev/bin/weed -logtostderr mini", "s3"),
        ("/usr/bin/java -Xmx1g -cp jars kafka.Kafka server.properties", "kafka"),
        ("/usr/bin/java -cp jars org.apache.zookeeper.server.ZooKeeperServerMain zoo.cfg", "kafka"),
        ("/usr/bin/java -cp jars org.apache.kafka.connect.cli.ConnectStandalone worker.properties", "kafka"),
        ("/usr/bin/java -classpath jars py4j.GatewayServer 0", "other"),
        ("/usr/bin/java -cp jars org.apache.hadoop.yarn.server.nodemanager.NodeManager", "spark"),
        (".tidemark/env/spark/lib/python3.11/site-packages/pyspark/bin/spark-submit job.py", "spark"),
        (".tidemark/env/spark/lib/python3.11/site-packages/pyspark/bin/spark-class Master", "spark"),
        (".tidemark/env/airflow/bin/airflow scheduler --skip-serve-logs", "airflow"),
        ("airflow api_server -- host:127.0.0.1", "airflow"),
        (".tidemark/env/dev/bin/moto_server -p 1", "other"),
        ("/usr/bin/chromedriver --port=1", "browser"),
        ("/usr/bin/java -version", None),
        (".tidemark/env/airflow/bin/airflow providers list", None),
        ("/nowhere/spark-submit job.py", None),
        (".tidemark/env/dev/bin/python -m demo", None),
    ],
)
def test_a_command_that_starts_a_server_is_refused_without_the_marker(command: str, kind: str | None) -> None:
    """Nothing is started: what a hook of Python's refuses never runs."""
    words = command.split()
    assert kind_of_program(words) == kind
    if kind is not None:
        with pytest.raises(pytest.fail.Exception, match=f"ask for the fixture 'starts_{kind}'"):
            subprocess.run(words, check=False)


def test_a_program_with_the_environment_of_sparks_drivers_is_one_of_sparks() -> None:
    with pytest.raises(pytest.fail.Exception, match="starts_spark"):
        subprocess.run(["/nowhere/python"], env={"PYSPARK_DRIVER_PYTHON": "/nowhere/python"}, check=False)


def test_a_server_of_the_support_is_refused_without_the_marker(tmp_path: Path) -> None:
    server = S3Server(tmp_path)
    with pytest.raises(pytest.fail.Exception, match="starts_s3"):
        server.start()
    assert not server.process.running


def test_a_server_that_runs_already_is_refused_without_the_marker(request: pytest.FixtureRequest) -> None:
    check(request.node, ["tmp_path"])
    with pytest.raises(pytest.fail.Exception, match="starts_kafka"):
        check(request.node, ["tmp_path", "kafka", "starts_kafka"])


def test_with_the_marker_a_server_may_start() -> None:
    marked: Any = SimpleNamespace(nodeid="of S3", get_closest_marker={"s3"}.__contains__)
    with running(marked), pytest.raises(FileNotFoundError):
        subprocess.run(["/nowhere/weed"], check=False)
