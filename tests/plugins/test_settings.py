from __future__ import annotations

from pathlib import Path

import pytest

from tests.plugins.world import CLUSTER, World
from tests.support.paths import ROOT
from tidemark.errors import ConfigError
from tidemark_airflow import configuration, settings
from tidemark_airflow.options import OPTIONS


def test_without_any_setting_the_repositorys_layout_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    for one in OPTIONS:
        monkeypatch.delenv(f"AIRFLOW__TIDEMARK__{one.name.upper()}", raising=False)

    assert settings.topics_file() == ROOT / "include" / "topics.yaml"
    assert settings.spark_job("ingest.py") == ROOT / "spark" / "jobs" / "ingest.py"
    assert settings.spark_submit() is None
    assert settings.spark_environment() == {}
    assert configuration.number("scan_seconds") == 10


def test_the_environment_overrides_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__TIDEMARK__TOPICS", "/etc/tidemark/topics.yaml")
    monkeypatch.setenv("AIRFLOW__TIDEMARK__SPARK_JOBS", "/opt/jobs")
    monkeypatch.setenv("AIRFLOW__TIDEMARK__SPARK_SUBMIT", "/opt/spark/bin/spark-submit")

    assert settings.topics_file() == Path("/etc/tidemark/topics.yaml")
    assert settings.spark_job("ingest.py") == Path("/opt/jobs/ingest.py")
    assert settings.spark_submit() == "/opt/spark/bin/spark-submit"


def test_the_order_of_topics_is_not_the_files(tmp_path: Path) -> None:
    first, second = World(tmp_path / "1", "b", "a", "c"), World(tmp_path / "2", "c", "b", "a")

    assert [one.topic for one in settings.in_order(first.deployment)] == ["a", "b", "c"]
    assert [one.topic for one in settings.in_order(second.deployment)] == ["a", "b", "c"]


@pytest.mark.usefixtures("world")
def test_a_topic_that_left_the_topics_file_is_named() -> None:
    assert settings.topic_table(CLUSTER, "orders").topic.table == "orders"
    with pytest.raises(ConfigError, match="gone is not a topic of the file"):
        settings.topic_table(CLUSTER, "gone")


def test_brokersets_lie_beside_the_topics_file_or_where_the_option_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__TIDEMARK__TOPICS", str(tmp_path / "topics.yaml"))
    assert settings.brokersets() is None
    text = "clusters: {east: {brokersets: {NAME: {brokers: [1]}}}}"
    (tmp_path / "brokersets.yaml").write_text(text.replace("NAME", "beside"))
    (tmp_path / "other.yaml").write_text(text.replace("NAME", "named"))

    def names() -> list[str]:
        found = settings.brokersets()
        assert found is not None
        return [one.name for one in found.of_cluster("east")]

    assert names() == ["beside"]
    monkeypatch.setenv("AIRFLOW__TIDEMARK__BROKERSETS", str(tmp_path / "other.yaml"))
    assert names() == ["named"]
    (tmp_path / "other.yaml").unlink()
    with pytest.raises(ConfigError, match=r"other\.yaml"):
        settings.brokersets()
