"""``tidemark-agent config check``: what store and broker say to it, and what makes it fail."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from tests.support.kafka import KafkaCluster
from tests.support.paths import ROOT
from tests.support.ports import HOST, free_port
from tests.support.s3 import OwnBuckets
from tidemark.store.s3.clients import forget_clients
from uploader_agent import cli


def statements() -> list[dict[str, Any]]:
    """What the role of the agent beside broker 1 may do."""
    text = (ROOT / "deploy" / "policies" / "agent.json").read_text()
    for name, value in {"bucket": "raw", "prefix": "prefix", "cluster": "east", "broker": "1"}.items():
        text = text.replace(f"<{name}>", value)
    found: list[dict[str, Any]] = json.loads(text)["Statement"]
    return found


@pytest.fixture(scope="module")
def server(own_buckets: Callable[..., OwnBuckets]) -> OwnBuckets:
    users = {"agent": statements(), "reader": [one for one in statements() if not one["Sid"].startswith("Write")]}
    return own_buckets(users=users)


@pytest.fixture
def config(tmp_path: Path, server: OwnBuckets, kafka: KafkaCluster) -> Path:
    settings = {
        "cluster": "east",
        "broker": {"properties": str(kafka.brokers[0].properties_path), "bootstrap": kafka.brokers[0].bootstrap},
        "raw": {"url": f"s3://{server.raw}/prefix"},
        "store": {"endpoint_url": server.endpoint, "region": "us-east-1"},
        "state_dir": str(tmp_path / "state"),
    }
    (tmp_path / "agent.yaml").write_text(yaml.safe_dump(settings))
    return tmp_path / "agent.yaml"


def change(config: Path, **settings: Any) -> None:
    config.write_text(yaml.safe_dump(yaml.safe_load(config.read_text()) | settings))


def outcomes(config: Path, server: OwnBuckets, *arguments: str, user: str = "agent") -> tuple[int, dict[str, str], str]:
    forget_clients()
    try:
        command = ["config", "check", "-c", str(config), "-o", "json", *arguments]
        done = CliRunner().invoke(cli.app, command, env=server.env(user))
    finally:
        forget_clients()
    return (
        done.exit_code,
        {
            one["what"].partition(" at ")[0].replace(server.raw, "raw"): one["outcome"]
            for one in json.loads(done.stdout)["checks"]
        },
        done.stderr.replace(server.raw, "raw"),
    )


ALL = {
    "list s3://raw": "yes",
    "get from s3://raw": "yes",
    "put to s3://raw/prefix/_tails/east/1": "yes",
    "create once in s3://raw/prefix/_tails/east/1": "not tried",
    "this host's clock": "yes",
    "write as the cluster east": "yes",
    "broker": "yes",
}


@pytest.mark.essential
def test_the_agents_own_policy_lets_all_be_tried_and_nothing_is_left(config: Path, server: OwnBuckets) -> None:
    assert outcomes(config, server) == (0, ALL, "")
    assert "Contents" not in server.client().list_objects_v2(Bucket=server.raw)


def test_an_agent_that_may_not_write_fails(config: Path, server: OwnBuckets) -> None:
    code, found, errors = outcomes(config, server, user="reader")
    there = {what: outcome for what, outcome in ALL.items() if not what.startswith("create once")}
    assert (code, found) == (1, there | {"put to s3://raw/prefix/_tails/east/1": "no"})
    assert errors.startswith("put to s3://raw/prefix/_tails/east/1: ")


def test_a_bucket_that_does_not_exist_fails(config: Path, server: OwnBuckets) -> None:
    change(config, raw={"url": "s3://nowhere/prefix"})
    code, found, errors = outcomes(config, server, user="admin")
    assert (code, found) == (1, {"list s3://nowhere": "no", "broker": "yes"})
    assert "the bucket does not exist" in errors
    assert outcomes(config, server, "--offline") == (0, {}, "")


def test_a_broker_that_does_not_answer_fails(config: Path, server: OwnBuckets) -> None:
    broker = yaml.safe_load(config.read_text())["broker"]
    client = {"bootstrap_timeout_ms": 500}
    change(config, broker={**broker, "bootstrap": f"{HOST}:{free_port()}", "client": client})
    code, found, errors = outcomes(config, server)
    assert (code, found) == (1, ALL | {"broker": "unknown"})
    assert "the broker cannot be asked" in errors
