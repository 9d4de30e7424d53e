"""Airflow's connections of AWS as the stores use them, and as jobs get them: keys, a role of STS, what changes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from boto3.session import Session
from botocore.credentials import RefreshableCredentials

from tests.support.glue import GlueServer
from tests.support.s3 import OwnBuckets, allow
from tests.support.waiting import wait_until
from tidemark.connections import NamedConnection
from tidemark.errors import AccessDenied, ConfigError
from tidemark.store import StoreOptions, open_store
from tidemark.store.s3 import clients as s3_clients
from tidemark.store.s3 import credentials as s3_credentials
from tidemark.store.s3.clients import clients
from tidemark.store.s3.credentials import AwsAccess, delta_credentials
from tidemark_airflow import connections
from tidemark_airflow.connections import AwsConnection
from tidemark_airflow.submitters import environment as jobs_environment
from tidemark_airflow.submitters.environment import handed_over, job_environment

ENDPOINT = "http://127.0.0.1:9"
KEYS = {"login": "AKIA-LAKE", "password": "secret-of-the-lake"}
PRINT_KEYS = """\
import json, sys, boto3
credentials = boto3.Session().get_credentials()
for _ in sys.stdin:
    print(json.dumps([credentials.method, *credentials.get_frozen_credentials()[:3]]), flush=True)
"""


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Without AWS's variables, and with what is installed removed afterwards."""
    for name in [one for one in os.environ if one.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    yield
    s3_credentials.use(None)


@pytest.fixture
def aws(starts_other: None, tmp_path: Path) -> Iterator[GlueServer]:
    with GlueServer(tmp_path) as server:
        yield server


def named(monkeypatch: pytest.MonkeyPatch, **connection: Any) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "aws", **connection}))


def secret() -> str:
    found: Any = s3_credentials.access().session.get_credentials()
    return str(found.get_frozen_credentials().secret_key)


def test_every_client_uses_the_connection_and_not_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA-OTHER")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "other")
    named(monkeypatch, **KEYS, extra={"endpoint_url": ENDPOINT, "region_name": "eu-7"})
    s3_credentials.use(AwsConnection("lake"))

    client: Any = clients(StoreOptions(endpoint_url="http://127.0.0.1:1")).read
    assert client.meta.endpoint_url == ENDPOINT, "that of the connection, which counts more"
    assert client.meta.region_name == "eu-7"
    assert client._request_signer._credentials.secret_key == KEYS["password"]
    assert delta_credentials() == {"AWS_ACCESS_KEY_ID": KEYS["login"], "AWS_SECRET_ACCESS_KEY": KEYS["password"]}


def test_without_a_name_the_environment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA-OTHER")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "other")
    monkeypatch.delenv("AIRFLOW__TIDEMARK__AWS_CONN_ID", raising=False)
    connections.install()
    assert s3_credentials.source() is None
    assert secret() == "other"
    assert delta_credentials() == {}


def test_a_connection_that_does_not_exist_is_an_error_and_not_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__TIDEMARK__AWS_CONN_ID", "nowhere")
    connections.install()
    with pytest.raises(ConfigError, match="nowhere: is named, but does not exist"):
        s3_credentials.access()


def test_what_the_connection_says_later_counts_a_minute_later(monkeypatch: pytest.MonkeyPatch) -> None:
    source = AwsConnection("lake")
    s3_credentials.use(source)
    named(monkeypatch, **KEYS)
    session = source().session
    monkeypatch.setattr(connections, "_LOOK_AGAIN_SECONDS", 0.0)
    assert source().session is session, "the same, which costs no request for a role"
    named(monkeypatch, login="AKIA-NEW", password="new")
    assert secret() == "new"


@pytest.mark.full
def test_keys_are_rotated_while_the_triggerer_runs(
    own_buckets: Callable[..., OwnBuckets], starts_airflow: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a real server, which refuses the old key before the connection has the new one."""
    everything = [allow(["s3:*"], ["arn:aws:s3:::*"])]
    monkeypatch.setattr(connections, "_LOOK_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(s3_clients, "_RENEWAL_SECONDS", 0.0)
    server = own_buckets(users={"airflow": everything})
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", server.connection("airflow"))
    s3_credentials.use(AwsConnection("lake"))
    store = open_store(f"s3://{server.lake}", StoreOptions(path_style=True))
    assert [*store.list("")] == []
    server.rotate("airflow")
    with pytest.raises(AccessDenied):
        [*store.list("")]
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", server.connection("airflow"))
    with pytest.raises(AccessDenied):
        [*store.list("")]
    assert [*store.list("")] == [], "the look after a refusal has the connection's new keys"
    assert delta_credentials()["AWS_SECRET_ACCESS_KEY"] == server.credentials("airflow").secret_key


def test_a_role_is_assumed_by_the_provider(aws: GlueServer, monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {
        "role_arn": "arn:aws:iam::123456789012:role/lake",
        "region_name": "us-east-1",
        "service_config": {"sts": {"endpoint_url": aws.endpoint}, "s3": {"endpoint_url": ENDPOINT}},
    }
    named(monkeypatch, **KEYS, extra=extra)
    source = AwsConnection("lake")
    assert source().endpoint_url == ENDPOINT
    with handed_over(source, {}) as given:
        keys = json.loads((Path(given["AWS_CONFIG_FILE"]).parent / "keys.json").read_bytes())
        assert keys["AccessKeyId"].startswith("ASIA")
        assert keys["SessionToken"]
        left = datetime.fromisoformat(keys["Expiration"]) - datetime.now(UTC)
        assert timedelta(minutes=30) < left <= timedelta(hours=1)
        said = [path.read_text() for path in Path(given["AWS_CONFIG_FILE"]).parent.iterdir()]
        assert not [text for text in said if KEYS["password"] in text], "which stays with the task"


class Turning:
    """A role's session, whose keys are replaced at each :meth:`turn`; they are always about to expire."""

    def __init__(self) -> None:
        self.number = 0
        session = Session(region_name="us-east-1")
        found = RefreshableCredentials.create_from_metadata(self._made(), self._made, "test")
        session._session._credentials = found  # type: ignore[attr-defined]
        self._access = AwsAccess(session, ENDPOINT)

    def __call__(self) -> AwsAccess:
        return self._access

    def turn(self) -> None:
        self.number += 1

    def _made(self) -> dict[str, str]:
        expiry = datetime.now(UTC) + timedelta(minutes=11)  # within botocore's time to renew, before its deadline
        keys = {"access_key": "ASIA", "secret_key": f"secret-{self.number}", "token": "token"}
        return {**keys, "expiry_time": expiry.isoformat()}


def test_a_job_that_outlives_its_keys_gets_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_environment, "_RENEW_SECONDS", 0.01)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-the-environment")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA-ENVIRONMENT")
    source = Turning()
    with handed_over(source, {}) as given:
        environment = job_environment(given)
        assert environment["TIDEMARK__STORE__ENDPOINT_URL"] == f'"{ENDPOINT}"'
        command = [sys.executable, "-c", PRINT_KEYS]
        with subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as job:
            assert job.stdin is not None
            assert job.stdout is not None

            def keys() -> list[str]:
                job.stdin.write("\n")  # type: ignore[union-attr]
                job.stdin.flush()  # type: ignore[union-attr]
                found: list[str] = json.loads(job.stdout.readline())  # type: ignore[union-attr]
                return found

            assert keys() == ["custom-process", "ASIA", "secret-0", "token"]
            source.turn()
            wait_until(lambda: keys()[2] == "secret-1", what="the job to have the new keys")
            seen = Path(f"/proc/{job.pid}/cmdline").read_bytes() + Path(f"/proc/{job.pid}/environ").read_bytes()
            assert b"secret" not in seen
            assert b"of-the-environment" not in seen
            job.stdin.close()
    assert not Path(given["AWS_CONFIG_FILE"]).parent.exists()


def test_only_this_user_can_read_what_a_job_is_given() -> None:
    with handed_over(Turning(), {"registry": NamedConnection(password="secret")}) as given:
        folder = Path(given["AWS_CONFIG_FILE"]).parent
        assert folder.stat().st_mode & 0o777 == 0o700
        assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
        assert not [value for value in given.values() if "secret" in value]


def test_what_a_killed_task_left_is_removed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    left, other = tmp_path / f"tidemark-job-{gone.pid}-abc", tmp_path / f"tidemark-job-{os.getpid()}-abc"
    for path in (left, other):
        path.mkdir()
    with handed_over(None, {"registry": NamedConnection(password="secret")}):
        assert not left.exists()
        assert other.exists(), "of a task that runs"


def test_a_connection_without_credentials_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    named(monkeypatch)
    with pytest.raises(ConfigError, match="has no credentials"), handed_over(AwsConnection("lake"), {}):
        pass
    assert not list(tmp_path.iterdir())


def test_a_job_that_needs_nothing_is_given_nothing() -> None:
    with handed_over(None, {}) as given:
        assert given == {}
