"""Day two: a lost lake made again from raw and audited, and a copy of raw that is proved, by the commands themselves.

Raw, its copy and the lake are on the S3 server. CPU is that of the commands, with their start and Spark's processes,
and without the server.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import yaml

from bench.convert import CORES
from bench.data import HOME, Data, Topic, upload
from bench.measure import MB, Row, Usage, run
from tests.spark.test_copies import in_a_part
from tests.support.paths import ROOT, env_bin
from tests.support.s3 import S3Server
from tests.support.spark import spark_env, submit_command

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

TOPIC: Final = Topic("zstd", 1000)
RAW: Final = "lost-lake"
COPY: Final = "lost-lake-copy"


def measure(made: Data, s3: S3Server) -> list[Row]:
    """Figures of one run each: landing all of raw into an empty lake, the audit of all dates, and ``verify-copy``."""
    upload(made.cluster, f"s3://raw/{RAW}", [TOPIC.name], s3.env())
    lake, produced = _topics_file(RAW), made[TOPIC]
    landing, audit = _job(s3, "ingest", lake), _job(s3, "audit", lake, "--json")
    rows = _last_line("ingest")["rows"]
    if rows != produced.records:
        raise RuntimeError(f"{rows} of {produced.records} records have landed; see {_log('ingest')}")
    stored = _copied(s3.client(), in_parts=False)
    same = _verify(s3, _topics_file(COPY), "--renew")
    _copied(s3.client(), in_parts=True)
    other = _verify(s3, _topics_file(COPY), "--renew")
    size, cores = produced.value_bytes, f"local[{CORES}], from and to the S3 server"
    note = f"{size / 2**30:.1f} GiB of values, {stored / 2**30:.1f} GiB of raw; one run"
    return [
        *_rows("a lost lake made again", landing, "values", size, f"{note}; {cores}"),
        *_rows("audit of all dates", audit, "values", size, cores),
        *_rows("verify-copy --renew, same ETags", same, "raw", stored, "HEAD requests"),
        *_rows("verify-copy --renew, other ETags", other, "raw", stored, "all objects copied in parts"),
    ]


def _rows(name: str, usage: Usage, what: str, size: int, note: str) -> list[Row]:
    return [
        Row("lost-lake", name, f"MB of {what}/CPU-s", (size / MB / usage.cpu,), note),
        Row("lost-lake", name, f"MB of {what}/s", (size / MB / usage.wall,)),
    ]


def _topics_file(prefix: str) -> Path:
    """The topics file of the deployment whose raw has ``prefix``; the lake is the same for all."""
    path = HOME / f"{prefix}.yaml"
    place = {"raw": {"url": f"s3://raw/{prefix}"}, "lake": f"s3://lake/{RAW}", "store": {"path_style": True}}
    path.write_text(yaml.safe_dump({"cluster": "bench", **place, "topics": [{"topic": TOPIC.name}]}))
    return path


def _job(s3: S3Server, name: str, topics: Path, *arguments: str) -> Usage:
    """Run a job by ``spark-submit``."""
    job = ROOT / "spark" / "jobs" / f"{name}.py"
    command = submit_command([job, "--topics", topics, "--topic", TOPIC.name, *arguments], master=f"local[{CORES}]")
    return run(command, env=spark_env(s3.env()), log=_log(name))


def _log(name: str) -> Path:
    return HOME / f"{RAW}-{name}.log"


def _last_line(name: str) -> dict[str, int]:
    """The result that the job has printed."""
    lines = [line for line in _log(name).read_text().splitlines() if line.startswith("{")]
    found: dict[str, int] = json.loads(lines[-1])
    return found


def _verify(s3: S3Server, topics: Path, *arguments: str) -> Usage:
    command: Sequence[str | Path] = [env_bin("dev", "tidemark"), "verify-copy", "--topics", topics, *arguments]
    return run(command, env=s3.env(), log=HOME / f"{COPY}.log")


def _copied(client: S3Client, *, in_parts: bool) -> int:
    """Copy all of raw, ``in_parts`` with other ETags; returns the bytes."""
    total = 0
    for page in client.get_paginator("list_objects_v2").paginate(Bucket="raw", Prefix=f"{RAW}/"):
        for found in page.get("Contents", ()):
            body = client.get_object(Bucket="raw", Key=found["Key"])["Body"].read()
            target = {"Bucket": "raw", "Key": COPY + found["Key"].removeprefix(RAW)}
            if in_parts and body:
                in_a_part(client, target, body)
            else:
                client.put_object(Bucket="raw", Key=target["Key"], Body=body)
            total += len(body)
    return total
