"""docs/reading.md: each of its ways to read a table gives the same rows, and they are the consumer's."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer

from tests.end_to_end.deployment import SmallDeployment, credentials
from tests.spark.mirror.catalogs import sql_catalog
from tests.spark.state.replay import LEAF
from tests.spark.world import in_process
from tests.support.kafka import KafkaCluster
from tests.support.paths import ROOT, env_bin
from tests.support.s3 import S3Server
from tests.support.spark import jars_env, small_log_conf, spark_submit
from tests.support.waiting import HUNG
from tidemark.table.state_table import StateTable
from tidemark_spark.mirror.catalog import open_catalog
from tidemark_spark.mirror.listed_table import ListedState, ListedTable
from tidemark_spark.mirror.mirror import mirror
from tidemark_spark.mirror.mirrored_table import MirroredTable
from tidemark_spark.state.run import run_state

DAY = 86_400_000
NOON = 1_794_960_000_000 - 1_794_960_000_000 % DAY + DAY // 2  # of 2026-11-18
TOPIC = "orders"
Rows = list[list[Any]]
"""Partition, offset, key, value."""
PAGE = (ROOT / "docs" / "reading.md").read_text()
SECTIONS: dict[str, str] = dict(
    re.findall(r"^###? ([^\n]+)\n(?:(?!^##).)*?```python\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE)
)
VARIABLES = set(re.findall(r"^export (\w+)=", PAGE, re.MULTILINE))
SERVER = "http://127.0.0.1:8333"
"""What the page says in the place of a server of one's own."""
SPARK = [name for name in SECTIONS if name.startswith("Spark, ")]
STATE, NEWER = ", the state", ", the state and newer records"
"""How the names of sections end that read the state table, and it with what has landed since."""
QUARANTINE = ", the quarantine"
"""How the names of sections end that read refused records."""
ELSEWHERE = ["Spark 4.1, by catalog"]
"""What ``tests/spark/mirror`` runs, which has that Spark."""
_PRINT = """
import json, os, sys
for method in ("to_arrow_table", "to_arrow"):
    found = getattr(found, method, lambda: found)()
if "dt" in found.schema.names:
    assert {str(one) for one in found["dt"].to_pylist()} == {"2026-11-20"}
columns = [found[name].to_pylist() for name in ("kafka_partition", "kafka_offset", "kafka_key", "kafka_value")]
rows = [[partition, offset, key.decode(), value.decode()] for partition, offset, key, value in zip(*columns)]
json.dump(sorted(rows), sys.stdout)
sys.stdout.flush()
os._exit(0)  # threads of an engine may abort the interpreter's own end
"""


class Landed(NamedTuple):
    """The page's table, and the rows that its readers find: of the last day, the state, the view, the quarantine."""

    small: SmallDeployment
    of_the_date: Rows
    state: Rows
    newer: Rows
    refused: Rows

    def expected(self, section: str) -> Rows:
        """The rows that a section of the page finds."""
        if section.endswith(QUARANTINE):
            return self.refused
        if section.endswith(NEWER):
            return self.newer
        return self.state if section.endswith(STATE) else self.of_the_date


@pytest.fixture(scope="module")
def landed(
    starts_spark: None, kafka: KafkaCluster, s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Landed]:
    """300 records a day on three days, of 400 keys, and three of 1970; the state table has the first two days'."""
    with credentials(s3_server):
        folder = tmp_path_factory.mktemp("reading")
        small = SmallDeployment(folder, kafka, s3_server, "tables", (TOPIC,), settings={TOPIC: {"state": {}}})
        kafka.create_topic(TOPIC, partitions=2)
        table = small.table(TOPIC)
        first = _sent(kafka, range(600))
        refused = _sent(kafka, range(3), at=1000)
        small.upload()
        assert small.land(TOPIC).rows == 600
        assert run_state(StateTable.open(table), in_process, leaf=LEAF).rows == 400
        last = _sent(kafka, range(600, 900))
        small.upload()
        assert small.land(TOPIC).rows == 300
        settings = sql_catalog(small.folder, name="analytics")
        catalog = open_catalog(table.deployment, settings)
        for listing in (ListedTable(table), ListedState(table)):
            mirror(listing, settings, MirroredTable(listing.table, settings, catalog))
        yield Landed(small, sorted(last), _newest(first), _newest(first + last), sorted(refused))


def _sent(kafka: KafkaCluster, numbers: Iterable[int], at: int | None = None) -> Rows:
    """Records of the page's topic, as they are in Kafka; all ``at`` a time, or 300 a day."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "compression.type": "zstd"})
    rows: Rows = []

    def delivered(error: object, message: Any) -> None:
        assert error is None
        rows.append([message.partition(), message.offset(), message.key().decode(), message.value().decode()])

    for number in numbers:
        time = NOON + number // 300 * DAY if at is None else at
        producer.produce(TOPIC, b"value %d" % number, b"%d" % (number % 400), timestamp=time, on_delivery=delivered)
    assert producer.flush(60) == 0
    return rows


def _newest(rows: Rows) -> Rows:
    """The last row of each key, which is always in the same partition."""
    return sorted({row[2]: row for row in sorted(rows)}.values())


@pytest.fixture(scope="module")
def env(landed: Landed) -> Mapping[str, str]:
    """The variables that the page names, and what a person has installed."""
    small = landed.small
    told = {
        **{name: value for name, value in small.s3.env().items() if name in VARIABLES},
        "AWS_ALLOW_HTTP": "true",
        "TIDEMARK_TOPICS": str(small.topics_file),
        "PYICEBERG_CATALOG__ANALYTICS__TYPE": "sql",
        "PYICEBERG_CATALOG__ANALYTICS__URI": f"sqlite:///{small.folder}/catalog.db",
        "PYICEBERG_CATALOG__ANALYTICS__S3__ENDPOINT": small.s3.endpoint,
    }
    assert set(told) == VARIABLES
    assert f"export AWS_ENDPOINT_URL={SERVER}\n" in PAGE
    install_extensions(small.folder)
    path = f"{env_bin('spark', 'tidemark').parent}:{os.environ['PATH']}"
    return {**told, "HOME": str(small.folder), "PATH": path}


def install_extensions(home: Path) -> None:
    """Put DuckDB's extensions, which come as wheels, where DuckDB looks for them, as the page says."""
    [code] = re.findall(r"^python - <<'END'\n(.*?)^END$", PAGE, re.DOTALL | re.MULTILINE)
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "HOME": str(home)}, check=True)


def program(name: str) -> str:
    """The section's code, after the code of the one whose session it continues."""
    assert (
        name.endswith((STATE, NEWER, QUARANTINE)) or "2026-11-20" in SECTIONS[name] or "2026, 11, 20" in SECTIONS[name]
    )
    before = SECTIONS["DuckDB"] if name.startswith("DuckDB, ") else ""
    return before + SECTIONS[name]


@pytest.mark.parametrize("name", [name for name in SECTIONS if name not in {*SPARK, *ELSEWHERE}])
def test_each_engine_reads_the_same_rows(name: str, landed: Landed, env: Mapping[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program(name) + _PRINT],
        env=env,
        capture_output=True,
        text=True,
        timeout=HUNG,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == landed.expected(name)
    assert len(landed.of_the_date) == 300
    assert len(landed.state) == len(landed.newer) == 400
    assert landed.state != landed.newer


def test_spark_reads_the_same_rows(landed: Landed, env: Mapping[str, str]) -> None:
    conf = dict(re.findall(r"^(spark\.\S+) +(\S+)$", PAGE.replace(SERVER, landed.small.s3.endpoint), re.MULTILINE))
    printed = spark_submit(
        Path(__file__).with_name("read_with_spark.py"),
        json.dumps([SECTIONS[name] for name in SPARK]),
        conf=small_log_conf()
        | {name: value for name, value in conf.items() if not name.startswith("spark.sql.catalog.analytics")},
        env={**env, **jars_env("spark-s3a", "delta-spark")},
    )
    found = [json.loads(line.removeprefix("ROWS ")) for line in printed.splitlines() if line.startswith("ROWS ")]
    assert found == [landed.expected(name) for name in SPARK]
    assert len(SPARK) == 5


def test_all_recipes_are_found() -> None:
    assert len(SECTIONS) == PAGE.count("```python\n")
    assert {"delta-rs", "Polars", "DuckDB", "pyarrow", "pyiceberg, by catalog"} < set(SECTIONS)
