"""The archives, unpacked once for tests that only read, and for each test that damages them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.kafka_tier import NAMES, Fixture, unpack


@pytest.fixture(scope="package")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Fixture]:
    folder = tmp_path_factory.mktemp("kip405")
    return {name: unpack(name, folder) for name in NAMES}


@pytest.fixture(params=NAMES)
def archive(request: pytest.FixtureRequest, unpacked: dict[str, Fixture]) -> Fixture:
    """Each archive in turn, only to be read."""
    return unpacked[request.param]


@pytest.fixture
def plain(tmp_path: Path) -> Fixture:
    return unpack("plain", tmp_path)


@pytest.fixture
def both(tmp_path: Path) -> Fixture:
    """Compressed and encrypted, to be damaged."""
    return unpack("both", tmp_path)
