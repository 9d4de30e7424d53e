"""Buckets and users of one's own on a server that others use."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from botocore.exceptions import ClientError

from tests.support.s3 import OwnBuckets, allow

READ = allow(["s3:GetObject", "s3:ListBucket"], ["arn:aws:s3:::raw", "arn:aws:s3:::raw/*"])


def test_a_user_has_its_rights_in_its_own_buckets_alone(own_buckets: Callable[..., OwnBuckets]) -> None:
    one, other = (own_buckets(versioned=("lake",), users={"reader": [READ]}) for _ in range(2))
    reader = one.client("reader")
    reader.list_objects_v2(Bucket=one.raw)
    for bucket in (one.lake, other.raw):
        with pytest.raises(ClientError, match="AccessDenied"):
            reader.list_objects_v2(Bucket=bucket)
    states = [one.client().get_bucket_versioning(Bucket=bucket).get("Status") for bucket in (one.raw, one.lake)]
    assert states == [None, "Enabled"]


def test_a_key_that_was_replaced_is_refused(own_buckets: Callable[..., OwnBuckets]) -> None:
    server = own_buckets(users={"reader": [READ]})
    before = server.client("reader")
    before.list_objects_v2(Bucket=server.raw)
    server.rotate("reader")
    with pytest.raises(ClientError, match="InvalidAccessKeyId"):
        before.list_objects_v2(Bucket=server.raw)
    server.client("reader").list_objects_v2(Bucket=server.raw)
