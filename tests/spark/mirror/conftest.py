"""Kinds of catalogs for mirrors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.spark.mirror import catalogs
from tests.support.iceberg import JavaReader, RestCatalogs


@pytest.fixture(scope="package")
def rest_catalogs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCatalogs]:
    """Iceberg's REST catalogs; ask for one of your own."""
    with RestCatalogs(tmp_path_factory.mktemp("rest")) as found:
        yield found


@pytest.fixture(scope="package")
def java_reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaReader]:
    """Iceberg's reader in Java."""
    with JavaReader(tmp_path_factory.mktemp("java")) as found:
        yield found


@pytest.fixture(params=["sql", "rest"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The kind of the catalogs beside the test's worlds."""
    name = str(request.param)
    with ExitStack() as until:
        if name == "rest":
            rest, java = (request.getfixturevalue(one) for one in ("rest_catalogs", "java_reader"))
            monkeypatch.setattr(catalogs, "beside", catalogs.RestBeside(rest, java, until))
        yield name
