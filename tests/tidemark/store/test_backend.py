"""A store of somebody else's is one class: the documented one does all that the two built-in stores do."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType

import pytest
from pydantic import ValidationError

from tests.support.raw_builder import RawBuilder
from tests.tidemark.kafka_log.build import simple
from tests.tidemark.store import test_store
from tidemark.config import parse
from tidemark.endpoints import EndpointSettings
from tidemark.errors import ConfigError, FormatError
from tidemark.remote import RemoteTopics, Stretch
from tidemark.storage import Storage
from tidemark.store import Store, StoreOptions, open_store
from tidemark.topics import Deployment
from uploader_agent.settings import AgentSettings

DOCS = Path(__file__).parents[3] / "docs"
PAGE = DOCS / "storage.md"
OPTIONS = StoreOptions(backend="sqlite_store:SqliteStore")

SHARED = [
    function
    for name, function in vars(test_store).items()
    if isinstance(function, FunctionType)
    and name.startswith("test_")
    and set(inspect.signature(function).parameters) == {"store"}
]
"""The tests of the built-in stores that need nothing but a store."""


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The documented class can be imported; the URL of an empty store of its kind."""
    monkeypatch.syspath_prepend(DOCS / "examples")
    yield f"sqlite://{tmp_path}/raw.db"
    sys.modules.pop("sqlite_store", None)


@pytest.fixture
def store(url: str) -> Store:
    return open_store(url, OPTIONS)


def test_there_are_shared_tests() -> None:
    assert len(SHARED) >= 12


@pytest.mark.parametrize("shared", SHARED, ids=lambda one: one.__name__)
def test_it_does_what_the_others_do(store: Store, shared: FunctionType) -> None:
    shared(store)


def test_what_an_agent_writes_there_is_read_by_the_catalogue(url: str, store: Store) -> None:
    raw = RawBuilder(store)
    for number in range(4):
        raw.segment([simple(3 * number)])
    raw.publish()
    storage = Storage.at(url, "east", options=OPTIONS)
    part = RemoteTopics(storage).partition("orders", 0)
    assert part is not None
    assert part.end(committed=True) == 12
    found = part.next_stretch(7, committed=True)
    assert isinstance(found, Stretch)
    with storage.store(found.segment.store).stream(found.segment.key, if_match=found.segment.etag) as body:
        buffer = bytearray(body.size)
        assert body.readinto(buffer) == body.size
    assert bytes(buffer) == simple(6)


def test_the_documented_settings_are_valid(tmp_path: Path) -> None:
    example = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    rest = f"lake: file://{tmp_path}/lake\ncluster: east\ntopics: [{{topic: orders}}]\n"
    found = parse(Deployment, example + rest, "storage.md", {})
    assert found.raw.url == "sqlite:///srv/tidemark/raw.db"
    with pytest.raises(ConfigError, match=r"sqlite:///srv/tidemark/raw\.db: must be s3://.*need store\.backend"):
        parse(Deployment, example.partition("store:")[0] + rest, "storage.md", {})


def test_an_agent_takes_it_as_well(tmp_path: Path) -> None:
    given = {"broker": {"properties": "unused"}, "raw": {"url": "sqlite:///raw.db"}, "state_dir": str(tmp_path)}
    with pytest.raises(ValidationError, match=r"need store\.backend"):
        AgentSettings.model_validate(given)
    settings = AgentSettings.model_validate({**given, "store": {"backend": "sqlite_store:SqliteStore"}})
    assert settings.store.backend == "sqlite_store:SqliteStore"
    built_in = AgentSettings.model_validate({**given, "raw": {"url": "gs://raw/segments"}})
    assert built_in.raw.url == "gs://raw/segments"
    with pytest.raises(ValidationError, match=r"raw: gs://raw: stores at gs:// do not know store\.storage_class"):
        AgentSettings.model_validate({**given, "raw": {"url": "gs://raw"}, "store": {"storage_class": "STANDARD_IA"}})


def test_a_class_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="nowhere:Store: names nothing that can be imported"):
        open_store("sqlite:///raw.db", StoreOptions(backend="nowhere:Store"))
    with pytest.raises(ValidationError, match="backend"):
        StoreOptions(backend="no colon")
    with pytest.raises(FormatError, match=r"need store\.backend"):
        open_store("sqlite:///raw.db")
    with pytest.raises(ValidationError, match="must be s3://"):
        EndpointSettings(url="nothing at all")


def test_the_built_in_stores_stay_what_they_are(tmp_path: Path) -> None:
    assert open_store(f"file://{tmp_path}", OPTIONS).url == f"file://{tmp_path}"
