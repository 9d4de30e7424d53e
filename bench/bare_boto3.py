"""The peer of the agent: a bare loop of `put_object`, ``python bare_boto3.py BUCKET PREFIX THREADS FILE...``."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import boto3
from botocore.config import Config


def main() -> None:
    """Put each file under the prefix, with credentials and endpoint from the environment."""
    bucket, prefix, threads, *files = sys.argv[1:]
    client = boto3.client("s3", config=Config(max_pool_connections=int(threads), s3={"addressing_style": "path"}))

    def put(path: Path) -> None:
        with path.open("rb") as body:
            client.put_object(Bucket=bucket, Key=f"{prefix}/{path.parent.name}/{path.name}", Body=body)

    with ThreadPoolExecutor(int(threads)) as pool:
        list(pool.map(put, [Path(name) for name in files]))


if __name__ == "__main__":
    main()
