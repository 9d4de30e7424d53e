"""How far the JVMs of a driver and of an executor compile: as the jobs ask, unless the deployment says otherwise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.paths import ROOT
from tests.support.spark import local_conf, spark_env, spark_home
from tidemark_spark.cluster.session import Classic, started

_OPTION = "-XX:TieredStopAtLevel="
_MASTER = "local-cluster[1,1,1024]"
_AS_AIRFLOW = {"SPARK_SUBMIT_OPTS": f"{_OPTION}1"}
"""What ``tests/plugins/operators/test_spark.py`` sees it given to spark-submit."""


def of_my_jvm(_common: None, _task: int) -> str:
    """In a worker: the level of the JVM that started it."""
    jvm = next(one for one in psutil.Process().parents() if one.name() == "java")
    return _level(jvm.cmdline())


def _level(options: list[str]) -> str:
    """The JVM takes the last of equal options."""
    return [one.removeprefix(_OPTION) for one in options if one.startswith(_OPTION)][-1]


def main() -> None:
    """Say the levels of the driver's JVM and of an executor's."""
    from tests.spark.cluster.test_jvms import of_my_jvm  # which workers can import, unlike this program's

    master = None if "PYSPARK_GATEWAY_PORT" in os.environ else _MASTER
    levels = Classic("tests", master).on_each(of_my_jvm, None, [1])
    jvm = started("tests", master)._jvm
    assert jvm is not None
    options = jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()
    sys.stdout.write(json.dumps([_level(list(options)), *levels]))


@pytest.mark.full
@pytest.mark.parametrize("submitted", [True, False], ids=["by spark-submit", "by the job"])
@pytest.mark.parametrize("level", ["1", "3"], ids=["as the jobs ask", "as the deployment says"])
def test_jvms_have_one_compiler_unless_the_deployment_says_otherwise(
    starts_spark: None, tmp_path: Path, level: str, *, submitted: bool
) -> None:
    own = (
        {} if level == "1" else {f"spark.{one}.extraJavaOptions": f"{_OPTION}{level}" for one in ("driver", "executor")}
    )
    defaults = "".join(f"{key} {value}\n" for key, value in {**local_conf(), **own}.items())
    (tmp_path / "spark-defaults.conf").write_text(defaults)
    env = spark_env({"SPARK_CONF_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}, env="dev")
    del env["JDK_JAVA_OPTIONS"]
    submit = [str(spark_home() / "bin" / "spark-submit"), "--master", _MASTER]
    command = [*(submit if submitted else [sys.executable]), __file__]
    done = subprocess.run(
        command,
        env={**env, **(_AS_AIRFLOW if submitted else {})},
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [level, level], done.stderr


if __name__ == "__main__":
    main()
