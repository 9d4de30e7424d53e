"""Kinds of catalogs for mirrors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import pytest

from tests.spark.mirror import catalogs
from tests.support.glue import ENV, GlueServer
from tests.support.hive import HiveMetastore
from tests.support.iceberg import JavaReader, RestCatalogs, SparkReader

REST = pytest.param("rest", marks=pytest.mark.other)
"""The kind whose catalogs, and the reader beside them, are programs in Java."""


@pytest.fixture(scope="package")
def rest_catalogs(starts_other: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCatalogs]:
    """Iceberg's REST catalogs; ask for one of your own."""
    with RestCatalogs(tmp_path_factory.mktemp("rest")) as found:
        yield found


@pytest.fixture(scope="package")
def java_reader(starts_other: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaReader]:
    """Iceberg's reader in Java."""
    with JavaReader(tmp_path_factory.mktemp("java")) as found:
        yield found


@pytest.fixture(scope="package")
def spark_reader(
    starts_spark: None, starts_other: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkReader]:
    """Spark 4.1 with Iceberg's reader."""
    with SparkReader(tmp_path_factory.mktemp("spark-reader")) as found:
        yield found


@pytest.fixture(scope="package")
def glue_server(starts_other: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GlueServer]:
    """Glue's API, with what tests before have left there."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENV.items():
            patch.setenv(name, value)
        with GlueServer(tmp_path_factory.mktemp("glue")) as found:
            yield found


@pytest.fixture(scope="package")
def metastore(starts_other: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HiveMetastore]:
    """Hive's metastore, with what tests before have left there."""
    with HiveMetastore(tmp_path_factory.mktemp("hive")) as found:
        yield found


@pytest.fixture(
    params=["sql", REST, *(pytest.param(one, marks=[pytest.mark.full, pytest.mark.other]) for one in ("glue", "hive"))]
)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, full: bool) -> Iterator[str]:
    """The kind of the catalogs beside the test's worlds.

    Iceberg's reader in Java also reads what ``rest`` lists, and if ``full``, Spark 4.1 does.
    """
    name = str(request.param)
    with ExitStack() as until:
        if name == "rest":
            readers = ["java_reader", "spark_reader"] if full else ["java_reader"]
            rest, *found = (request.getfixturevalue(one) for one in ("rest_catalogs", *readers))
            monkeypatch.setattr(catalogs, "beside", catalogs.RestBeside(rest, found, until))
        if name == "glue":
            glue: GlueServer = request.getfixturevalue("glue_server")
            beside = catalogs.Forgetful(glue, partial(catalogs.glue_catalog, glue))
            monkeypatch.setattr(catalogs, "beside", beside)
        if name == "hive":
            hive: HiveMetastore = request.getfixturevalue("metastore")
            monkeypatch.setattr(catalogs, "beside", catalogs.Forgetful(hive, lambda _: catalogs.hive_catalog(hive)))
        yield name
