"""A standalone cluster reads what deltalake and pyarrow wrote to the S3 server."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from tests.support.process import ProcessFailed
from tests.support.s3 import S3Server
from tests.support.spark import SparkStandalone, delta_conf, jars_conf, s3a_conf, small_jvm_conf, spark_submit

JOB = """
import json, sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
table = sys.argv[1]

def double(batches):
    import pyarrow as pa
    import pyarrow.compute as pc
    for batch in batches:
        yield pa.RecordBatch.from_arrays([pc.multiply(batch.column("n"), 2)], ["n"])

delta = spark.read.format("delta").load(table)
rows = delta.mapInArrow(double, "n long").collect()
files = spark.read.parquet(*[path.replace("s3://", "s3a://") for path in delta.inputFiles()])
print(json.dumps({"doubled": sorted(row.n for row in rows), "parquet": files.count()}))
"""


@pytest.mark.full
def test_a_job_reads_a_delta_table_from_the_s3_server(
    spark_standalone: SparkStandalone, s3_server: S3Server, tmp_path: Path
) -> None:
    table = f"lake/support-{uuid.uuid4().hex}"
    options = {**s3_server.env(), "AWS_ALLOW_HTTP": "true", "conditional_put": "etag"}
    for part in ([1, 2], [3]):
        data = pa.table({"n": part, "dt": ["2026-11-20"] * len(part)})
        deltalake.write_deltalake(f"s3://{table}", data, partition_by=["dt"], mode="append", storage_options=options)
    job = tmp_path / "job.py"
    job.write_text(JOB)
    conf = {
        **jars_conf("spark-s3a", "delta-spark"),
        **s3a_conf(s3_server.endpoint),
        **delta_conf(),
        **small_jvm_conf(),
        "spark.cores.max": "1",  # one executor is enough
        "spark.executor.memory": "600m",
    }
    output = spark_submit(job, f"s3a://{table}", master=spark_standalone.master_url, conf=conf, env=s3_server.env())
    assert json.loads(output.splitlines()[-1]) == {"doubled": [2, 4, 6], "parquet": 3}
    assert spark_standalone.alive_workers() == 2


def test_a_failing_job_shows_the_end_of_its_log(tmp_path: Path) -> None:
    with pytest.raises(ProcessFailed, match=r"(?s)spark-submit ended with code.*no-such-job"):
        spark_submit(tmp_path / "no-such-job.py")
