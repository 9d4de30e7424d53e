"""The containers of docker-compose.yaml: each test goes on where the one before it stopped."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.client import HTTPConnection
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError

from tests.containers.stack import SECRETS, SERVICES, TOPICS, Stack, running_stack
from tests.support.airflow_client import AirflowApiError, AirflowClient
from tests.support.ports import HOST

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

pytestmark = pytest.mark.timeout(7200)  # an hour to build images in, on a machine that does other things as well

ROLES = ("agent", "maintenance", "page", "retention", "watch", "worker")
READS_AND_WRITES = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
for codec in ("snappy", "zstd"):
    spark.range(9).write.option("compression", codec).mode("overwrite").parquet(f"/tmp/{codec}")
    print(codec, spark.read.parquet(f"/tmp/{codec}").count())
"""


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with running_stack() as stack:
        said = "".join(f"  {image}: {stand_in}\n" for image, stand_in in stack.stand_ins.items())
        sys.stdout.write(f"\nStand-ins for images that cannot be pulled:\n{said or '  none'}\n")
        yield stack


def test_all_services_are_healthy_after_the_first_lines_of_the_file(stack: Stack) -> None:
    assert stack.health() == {**{name: {"healthy"} for name in SERVICES}, "airflow-init": {"exited"}}


def test_records_become_rows(stack: Stack) -> None:
    stack.produce(2000)
    stack.wait_until_landed()


def test_airflows_pages_open(stack: Stack) -> None:
    client = stack.airflow()
    assert set(client.health().values()) == {"healthy"}
    assert client.import_errors() == {}
    paused = {dag["dag_id"]: dag["is_paused"] for dag in client.get("/dags", limit=100)["dags"]}
    landing = {"tidemark_live__demo", *(f"tidemark_ingest__demo__{topic}" for topic in TOPICS)}
    assert not any(paused[dag] for dag in {*landing, "tidemark_watch"})
    with pytest.raises(AirflowApiError, match=f": {HTTPStatus.UNAUTHORIZED}: "):
        AirflowClient(HOST, 8080, "admin", "wrong").get("/dags")
    for path in ("/", "/tidemark/"):
        assert b"<html" in opened(path, client.token), path
    topics = json.loads(opened("/tidemark/api/topics", client.token))
    assert {topic["topic"] for topic in topics["topics"]} == set(TOPICS)


def opened(path: str, token: str) -> bytes:
    connection = HTTPConnection(HOST, 8080)
    connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
    response = connection.getresponse()
    content = response.read()
    connection.close()
    assert response.status == HTTPStatus.OK, (path, response.status, content)
    return content


@pytest.mark.parametrize("service", ["airflow-scheduler", "spark-worker"])
def test_java_loads_its_codecs(stack: Stack, service: str) -> None:
    run = ("exec", "--no-TTY", service, "sh", "-c", 'exec "$PYSPARK_PYTHON" -')
    assert stack.compose(*run, given=READS_AND_WRITES).split() == ["snappy", "9", "zstd", "9"]


@pytest.mark.parametrize("role", ROLES)
def test_a_role_is_refused_what_its_policy_refuses(stack: Stack, role: str) -> None:
    client = stack.s3(role)
    client.list_objects_v2(Bucket="raw")
    for action, bucket, key in (*denied(role), *(("s3:PutObject", name, "elsewhere") for name in ("raw", "lake"))):
        with pytest.raises(ClientError) as refused:
            ACTIONS[action](client, bucket, key)
        assert refused.value.response["Error"]["Code"] == "AccessDenied", (action, bucket, key)


ACTIONS: dict[str, Callable[[S3Client, str, str], object]] = {
    "s3:DeleteObject": lambda client, bucket, key: client.delete_object(Bucket=bucket, Key=key),
    "s3:GetObject": lambda client, bucket, key: client.get_object(Bucket=bucket, Key=key),
    "s3:PutObject": lambda client, bucket, key: client.put_object(Bucket=bucket, Key=key),
}


def denied(role: str) -> Iterator[tuple[str, str, str]]:
    """An action, a bucket and a key for each that the role's policy denies; buckets here have no versions."""
    policies = json.loads((SECRETS / "store-identities").read_text())["policies"]
    [policy] = [json.loads(named["content"]) for named in policies if named["name"] == role]
    statements: list[dict[str, Any]] = policy["Statement"]
    for statement in statements:
        for resource in statement["Resource"] if statement["Effect"] == "Deny" else []:
            bucket, key = resource.removeprefix("arn:aws:s3:::").split("/", 1)
            yield from ((action, bucket, key.replace("*", "x")) for action in statement["Action"] if action in ACTIONS)


def test_who_has_no_key_is_refused() -> None:
    connection = HTTPConnection(HOST, 8333)
    connection.request("GET", "/raw?list-type=2")
    assert connection.getresponse().status == HTTPStatus.FORBIDDEN
    connection.close()


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_comes_back(stack: Stack, service: str) -> None:
    stack.compose("restart", service)
    stack.wait_until_healthy(service)
    stack.produce(30)


def test_what_was_produced_meanwhile_has_landed(stack: Stack) -> None:
    stack.wait_until_landed()


def test_everything_is_kept_over_down_and_up(stack: Stack) -> None:
    stack.compose("down")
    assert stack.health() == {}
    stack.compose("up", "--wait")
    stack.produce(30)
    stack.wait_until_landed()
    assert set(stack.airflow().health().values()) == {"healthy"}
