"""The services of docker-compose.yaml, started by the commands of its first lines, and what goes in and comes out."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import boto3
import pytest
import yaml
from kafka import KafkaProducer

from tests.containers.engine import FOLDER, Engine, running_engine
from tests.containers.stand_ins import OVERRIDE, replaced
from tests.support.airflow_client import AirflowClient
from tests.support.paths import ROOT
from tests.support.ports import HOST
from tests.support.waiting import wait_until
from tidemark.store.s3.clients import forget_clients
from tidemark.table.delta_table import open_delta, open_topic_table
from tidemark.topics import load_topics

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

COMPOSE = ROOT / "docker-compose.yaml"
FILE: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
SERVICES = [name for name, of in FILE["services"].items() if "healthcheck" in of and "profiles" not in of]
SECRETS = ROOT / "docker" / "secrets"
TOPICS = ("clicks", "orders", "sensors")
LANDS_WITHIN = 1200.0
"""Seconds: Airflow takes a task whose worker was killed for running for five minutes, and begins it again then."""

Row = tuple[int, int, bytes]
_ENDPOINT = f"http://{HOST}:8333"
_REGION = "us-east-1"
_PROJECT = "tidemark-test"


class Stack:
    """The services; :attr:`stand_ins` names the images that are not those of the file."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.stand_ins = replaced(engine, FILE)
        self._options = ["--project-name", _PROJECT, "--file", str(COMPOSE)]
        self._options += ["--file", str(OVERRIDE)] if self.stand_ins else []
        self._produced: dict[str, list[Row]] = {topic: [] for topic in TOPICS}

    def start(self) -> None:
        """Run the commands that the file begins with."""
        lines = re.findall(r"^#   (\S.*)$", COMPOSE.read_text(), re.MULTILINE)
        for line in lines:
            program, *arguments = shlex.split(line)
            if program == "docker":
                assert arguments[0] == "compose", line
                self._engine.compose(*self._options, *arguments[1:])
            elif not SECRETS.exists():
                subprocess.run([sys.executable, *arguments], cwd=ROOT, check=True)
                self.end()  # volumes that were left know other passwords

    def end(self) -> None:
        """End all, volumes included."""
        if SECRETS.exists():
            self.compose("down", "--volumes", "--remove-orphans")

    def compose(self, *arguments: str, given: str = "") -> str:
        """``docker compose`` for these services, and what it prints."""
        return self._engine.compose(*self._options, "--env-file", str(SECRETS / "env"), *arguments, given=given)

    def health(self) -> dict[str, set[str]]:
        """What the containers of each service say of themselves."""
        found: dict[str, set[str]] = {}
        for line in self.compose("ps", "--all", "--format", "json").splitlines():
            container = json.loads(line)
            found.setdefault(container["Service"], set()).add(container["Health"] or container["State"])
        return found

    def wait_until_healthy(self, service: str) -> None:
        """Wait for all containers of a service."""
        wait_until(lambda: self.health()[service] == {"healthy"}, what=f"{service} to be healthy", interval=2)

    def variables(self) -> dict[str, str]:
        """The variables of docker/make_env.py."""
        return dict(line.split("=", 1) for line in (SECRETS / "env").read_text().splitlines())

    def airflow(self) -> AirflowClient:
        """Airflow's API as the administrator calls it."""
        return AirflowClient(HOST, 8080, "admin", self.variables()["AIRFLOW_ADMIN_PASSWORD"])

    def s3(self, role: str) -> S3Client:
        """The store with the keys of a role."""
        access, secret = _keys(role)
        return boto3.client(
            "s3",
            endpoint_url=_ENDPOINT,
            region_name=_REGION,
            aws_access_key_id=access,
            aws_secret_access_key=secret,
        )

    def produce(self, count: int) -> None:
        """Append ``count`` records to each topic; returns when the broker has acknowledged all."""
        producer = KafkaProducer(bootstrap_servers=f"{HOST}:9092", acks="all")
        for topic, rows in self._produced.items():
            values = [f"{topic} {len(rows) + number}".encode() for number in range(count)]
            sent = [producer.send(topic, value) for value in values]
            producer.flush()
            done = [future.get() for future in sent]
            rows += [(record.partition, record.offset, value) for record, value in zip(done, values, strict=True)]
        producer.close()

    def wait_until_landed(self) -> None:
        """Wait until each table has all that was produced; each record is there once, and nothing else."""
        for topic, rows in self._produced.items():
            wait_until(
                lambda topic=topic, rows=rows: len(_landed(topic)) >= len(rows),  # type: ignore[misc]
                what=f"{len(rows)} rows of {topic}",
                timeout=LANDS_WITHIN,
                interval=2,
            )
            assert sorted(_landed(topic)) == sorted(rows)


@contextmanager
def running_stack() -> Iterator[Stack]:
    """The services, new and with empty volumes; at the end all is gone but images, and what they said is in a file."""
    with running_engine() as engine, pytest.MonkeyPatch.context() as patch:
        stack = Stack(engine)
        stack.end()
        try:
            stack.start()
            access, secret = _keys("admin")
            patch.setenv("AWS_ACCESS_KEY_ID", access)
            patch.setenv("AWS_SECRET_ACCESS_KEY", secret)
            patch.setenv("TIDEMARK__STORE__ENDPOINT_URL", _ENDPOINT)
            patch.setenv("TIDEMARK__STORE__PATH_STYLE", "true")
            forget_clients()
            yield stack
        finally:
            forget_clients()
            try:
                (FOLDER / "services.log").write_text(stack.compose("logs", "--no-color"))
            finally:
                stack.end()


def _keys(role: str) -> tuple[str, str]:
    identities = json.loads((SECRETS / "store-identities").read_text())["identities"]
    [key] = next(identity["credentials"] for identity in identities if identity["name"] == role)
    return key["accessKey"], key["secretKey"]


def _landed(topic: str) -> list[Row]:
    deployment = load_topics(ROOT / "include" / "topics.yaml")
    table = open_topic_table(deployment, deployment.topic(topic))
    if open_delta(table) is None:
        return []
    delta = table.by_delta_rs()
    columns = ("kafka_partition", "kafka_offset", "kafka_value")
    found = delta.to_pyarrow_table(columns=list(columns)).to_pylist()
    return [(row["kafka_partition"], row["kafka_offset"], row["kafka_value"]) for row in found]
