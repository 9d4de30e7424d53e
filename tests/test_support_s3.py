"""The S3 server does what the pipeline relies on: conditions, checksums, policies, durability."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import crc32c
import psutil
import pytest
from botocore.exceptions import ClientError

from tests.support.s3 import S3Server, allow


@pytest.fixture
def prefix() -> str:
    return f"support-{uuid.uuid4().hex}"


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    uploads = [allow(["s3:PutObject"], ["arn:aws:s3:::raw/topics/*"])]
    with S3Server(tmp_path_factory.mktemp("s3"), users={"uploader": uploads}) as server:
        yield server


def refused(call: Callable[[], object]) -> str:
    """The error code that a call fails with."""
    with pytest.raises(ClientError) as caught:
        call()
    return caught.value.response["Error"]["Code"]


def test_an_object_comes_back_with_its_metadata(s3_server: S3Server, prefix: str) -> None:
    client = s3_server.client()
    checksum = base64.b64encode(crc32c.crc32c(b"body").to_bytes(4, "big")).decode()
    client.put_object(Bucket="raw", Key=f"{prefix}/a", Body=b"body", Metadata={"k": "v"}, ChecksumCRC32C=checksum)
    found = client.get_object(Bucket="raw", Key=f"{prefix}/a", Range="bytes=1-2")
    assert found["Body"].read() == b"od"
    assert found["Metadata"] == {"k": "v"}
    head = client.head_object(Bucket="raw", Key=f"{prefix}/a", ChecksumMode="ENABLED")
    assert head["ChecksumCRC32C"] == checksum


def test_conditional_puts_hold(s3_server: S3Server, prefix: str) -> None:
    client, key = s3_server.client(), f"{prefix}/once"
    first = client.put_object(Bucket="raw", Key=key, Body=b"1", IfNoneMatch="*")["ETag"]
    assert refused(lambda: client.put_object(Bucket="raw", Key=key, Body=b"2", IfNoneMatch="*")) == "PreconditionFailed"
    client.put_object(Bucket="raw", Key=key, Body=b"3", IfMatch=first)
    assert refused(lambda: client.put_object(Bucket="raw", Key=key, Body=b"4", IfMatch=first)) == "PreconditionFailed"
    assert client.get_object(Bucket="raw", Key=key)["Body"].read() == b"3"


def test_a_wrong_checksum_is_refused(s3_server: S3Server, prefix: str) -> None:
    client = s3_server.client()
    refused(lambda: client.put_object(Bucket="raw", Key=f"{prefix}/bad", Body=b"body", ChecksumCRC32C="AAAAAA=="))
    assert client.list_objects_v2(Bucket="raw", Prefix=prefix)["KeyCount"] == 0


def test_a_user_can_do_what_its_policy_names_and_nothing_else(own_server: S3Server) -> None:
    client = own_server.client("uploader")
    client.put_object(Bucket="raw", Key="topics/a", Body=b"")
    assert refused(lambda: client.put_object(Bucket="raw", Key="elsewhere", Body=b"")) == "AccessDenied"
    assert refused(lambda: client.put_object(Bucket="lake", Key="topics/a", Body=b"")) == "AccessDenied"
    assert refused(lambda: client.get_object(Bucket="raw", Key="topics/a")) == "AccessDenied"
    assert refused(lambda: client.list_objects_v2(Bucket="raw")) == "AccessDenied"
    assert refused(lambda: client.delete_object(Bucket="raw", Key="topics/a")) == "AccessDenied"


def test_objects_survive_a_kill_and_users_can_be_added(own_server: S3Server) -> None:
    own_server.client().put_object(Bucket="lake", Key="kept", Body=b"kept")
    own_server.kill()
    own_server.start()
    own_server.add_user("reader", [allow(["s3:GetObject"], ["arn:aws:s3:::lake/*"])])
    assert own_server.client("reader").get_object(Bucket="lake", Key="kept")["Body"].read() == b"kept"


def test_it_listens_on_this_machine_only_and_its_secrets_are_private(own_server: S3Server) -> None:
    listening = psutil.Process(own_server.process.pid).net_connections("tcp")
    assert {connection.laddr.ip for connection in listening if connection.status == psutil.CONN_LISTEN} == {"127.0.0.1"}
    [config] = Path(own_server.process.log.parent).glob("s3.json")
    assert config.stat().st_mode & 0o077 == 0
    secret = own_server.credentials["admin"].secret_key
    assert secret not in own_server.process.log.read_text()
    assert secret not in repr(own_server.credentials)
