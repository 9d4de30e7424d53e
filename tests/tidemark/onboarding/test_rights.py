"""Rights as a real S3 server has them, and what trying them leaves behind."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.support.s3 import OwnBuckets, allow
from tidemark.config import parse
from tidemark.onboarding.gather import rights
from tidemark.store.s3.clients import forget_clients
from tidemark.topics import Deployment

READ = ["s3:GetObject", "s3:ListBucket"]
ALL = ["arn:aws:s3:::raw", "arn:aws:s3:::raw/*", "arn:aws:s3:::lake", "arn:aws:s3:::lake/*"]
USERS = {
    "reader": [allow(READ, ALL)],
    "pipeline": [allow(READ, ALL), allow(["s3:PutObject"], ["arn:aws:s3:::lake/*"])],
    "nobody": [allow(READ, ["arn:aws:s3:::other"])],
}
TEXT = """
cluster: east
raw: {url: 's3://RAW/PREFIX'}
lake: s3://LAKE/PREFIX
store: {endpoint_url: 'ENDPOINT', region: us-east-1, path_style: true}
topics: [{topic: orders}]
"""


@pytest.fixture(scope="module")
def server(own_buckets: Callable[..., OwnBuckets]) -> OwnBuckets:
    return own_buckets(users=USERS)


def found(server: OwnBuckets, user: str, prefix: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    for name, value in server.env(user).items():
        monkeypatch.setenv(name, value)
    forget_clients()
    try:
        text = TEXT.replace("RAW", server.raw).replace("LAKE", server.lake)
        text = text.replace("PREFIX", prefix).replace("ENDPOINT", server.endpoint)
        deployment = parse(Deployment, text, "topics.yaml", {})
        answer: dict[str, str] = {
            one.what.replace(f"/{prefix}", "").replace(server.raw, "raw").replace(server.lake, "lake"): one.outcome
            for one in rights(deployment, deployment.topics[0])
        }
    finally:
        forget_clients()
    for bucket in (server.raw, server.lake):
        assert "Contents" not in server.client().list_objects_v2(Bucket=bucket, Prefix=prefix), "nothing is left behind"
    return answer


@pytest.mark.essential
def test_each_role_is_told_what_it_may_do(
    server: OwnBuckets, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = f"rights-{rng.getrandbits(40):x}"
    reading = dict.fromkeys(("list s3://raw", "get from s3://raw", "list s3://lake", "get from s3://lake"), "yes")
    others = {"put segments of the topic": "unknown", "delete": "unknown"}
    assert found(server, "admin", prefix, monkeypatch) == {**reading, "put to s3://lake/orders": "yes", **others}
    assert found(server, "pipeline", prefix, monkeypatch) == {**reading, "put to s3://lake/orders": "yes", **others}
    assert found(server, "reader", prefix, monkeypatch) == {**reading, "put to s3://lake/orders": "no", **others}
    refused = found(server, "nobody", prefix, monkeypatch)
    assert refused == {**dict.fromkeys(reading, "no"), "put to s3://lake/orders": "no", **others}


def test_a_bucket_that_is_missing_is_no_right(server: OwnBuckets, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.tidemark.onboarding.test_rights.TEXT", TEXT.replace("LAKE", "none"))
    answer = found(server, "admin", "x", monkeypatch)
    assert (answer["list s3://none"], answer["put to s3://none/orders"]) == ("no", "no")
