"""What Airflow needs in its environment to run Tidemark's own DAGs with the real Spark of this machine."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.paths import env_python
from tests.support.spark import local_conf, small_jvm_conf, spark_env, spark_home

_FROM_SPARK = ("JAVA_HOME", "PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON", "SPARK_HOME", "SPARK_LOCAL_IP")


def pipeline_env(topics: Path, conf_dir: Path, *, scan_seconds: float) -> dict[str, str]:
    """What Airflow and Spark inherit; ``topics`` is the topics file, ``conf_dir`` is made and has Spark's defaults.

    DAGs start paused, since the upkeep of several topics would fill two cores, and Spark's drivers, of which several
    share this machine, are small and have no web pages.
    """
    conf_dir.mkdir(parents=True)
    defaults = local_conf() | small_jvm_conf()
    (conf_dir / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in defaults.items()))
    spark = spark_env()
    return {
        **{name: spark[name] for name in _FROM_SPARK},
        "SPARK_CONF_DIR": str(conf_dir),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "True",
        "AIRFLOW__TIDEMARK__SCAN_SECONDS": str(scan_seconds),
        "AIRFLOW__TIDEMARK__SPARK_PYTHON": str(env_python("spark")),
        "AIRFLOW__TIDEMARK__SPARK_SUBMIT": str(spark_home() / "bin" / "spark-submit"),
        "AIRFLOW__TIDEMARK__STARTS_PAUSED": "True",
        "AIRFLOW__TIDEMARK__TOPICS": str(topics),
    }
