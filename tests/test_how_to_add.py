"""The page of the code explains how to add things: its steps are enough, and none can be left out.

Each test adds a stub by the words of a section, and calls the checks that a real addition has to pass.
"""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, ClassVar, Literal, cast, get_args

import pyarrow as pa
import pytest
from pydantic import BaseModel, Discriminator
from typer.testing import CliRunner

from tests import test_docs
from tests.support.how_to_add import Place, Step, follow, section
from tests.support.paths import ROOT
from tests.tidemark.cli.conftest import refuse_unmarked_writes
from tests.tidemark.monitoring import test_kinds
from tests.tidemark.parsers import test_documented, test_fuzz
from tests.tidemark.store import test_schemes
from tests.uploader_agent.observability import test_metrics
from tidemark.cli import options
from tidemark.cli.app import app
from tidemark.jobs.options import OneTopicOptions
from tidemark.jobs.registry import JOBS
from tidemark.monitoring.incidents import KINDS, IncidentKind
from tidemark.parsers.base import Parsed
from tidemark.parsers.factory import PARSERS, parser_of
from tidemark.parsers.settings import EventTime, ParserSettings
from tidemark.store import open_store
from tidemark.store.factory import OPENED_BY
from tidemark.store.local import LocalStore
from tidemark.store.obstore.clients import CONNECT
from tidemark.store.obstore.factory import CLOUDS
from tidemark.store.schemes import SCHEMES, Scheme
from tidemark.table.delta_table import SETTINGS_OF_DELTA
from tidemark_spark.jobs.running import RunningJob, show
from uploader_agent.observability import metrics_doc
from uploader_agent.observability.metrics import Metrics


class StubParser(BaseModel):
    """The settings of a parser."""

    kind: Literal["stub"] = "stub"
    event_time: EventTime | None = None


class StubColumns:
    """The parser of these settings."""

    version = "stub/1"
    columns = pa.schema([("first", pa.int8())])

    def __init__(self, _settings: StubParser) -> None:
        """Nothing is set."""

    def parse(self, rows: pa.RecordBatch) -> Parsed:
        return Parsed(pa.RecordBatch.from_arrays([pa.nulls(len(rows), pa.int8())], schema=self.columns))


def test_a_parser(tmp_path: Path) -> None:
    example, input_of = "kind: stub", lambda rng: rng.randbytes(8)
    union: Any = Annotated[get_args(ParserSettings)[0] | StubParser, Discriminator("kind")]

    def check(_: Place) -> None:
        test_fuzz.test_each_kind_of_settings_has_a_parser_and_is_fuzzed()
        test_documented.test_each_kind_has_an_example()
        assert parser_of(cast("Any", StubParser()), "orders").columns.names == ["first"]

    steps = [
        Step("in the union `ParserSettings`", lambda at: at.patch.setattr(test_fuzz, "ParserSettings", union)),
        Step("its line in `PARSERS`", lambda at: at.patch.setitem(PARSERS, "stub", StubColumns)),
        Step("example in `docs/topics.md`", lambda at: at.patch.setitem(test_documented.EXAMPLES, "stub", example)),
        Step("a line in `KINDS`", lambda at: at.patch.setitem(test_fuzz.KINDS, "stub", (example, input_of))),
    ]
    follow("A parser", steps, check, tmp_path)


def check_store(place: Place) -> None:
    place.patch.setattr(test_schemes, "ROOT", place.root)
    test_schemes.test_each_scheme_is_opened_and_has_credentials_and_settings_for_the_lake()
    test_schemes.test_unused_options_are_options()
    test_schemes.test_the_documented_table_of_options_is_that_of_the_code()


def tell_of_options(text: str) -> str:
    return re.sub(r"^(\| `store\..*)$", r"\1 yes |", text, flags=re.MULTILINE)


STORE_STEPS = (
    Step(
        "the line of the scheme in `SCHEMES`",
        lambda at: at.patch.setitem(SCHEMES, "stub", Scheme("stub://<name>", re.compile("[a-z]+"), "STUB_")),
    ),
    Step("the tables of `docs/storage.md`", lambda at: at.edit("storage.md", tell_of_options)),
)


def test_a_store_of_a_cloud_that_obstore_reaches(tmp_path: Path) -> None:
    def add_cloud(at: Place) -> None:
        at.patch.setitem(CLOUDS, "stub", CLOUDS["gs"])
        for registry in (OPENED_BY, SETTINGS_OF_DELTA):  # which were made from the clouds when they were imported
            at.patch.setitem(registry, "stub", registry["gs"])

    steps = [
        *STORE_STEPS,
        Step("`CLOUDS` in", add_cloud),
        Step("`CONNECT` in", lambda at: at.patch.setitem(CONNECT, "stub", CONNECT["gs"])),
    ]
    follow("A store", steps, check_store, tmp_path)


def test_a_store_of_another_kind(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)

    def check(place: Place) -> None:
        check_store(place)
        assert open_store("stub://raw").url == store.url

    steps = [
        *STORE_STEPS,
        Step("the line in `OPENED_BY`", lambda at: at.patch.setitem(OPENED_BY, "stub", lambda *_: store)),
        Step("in `SETTINGS_OF_DELTA`", lambda at: at.patch.setitem(SETTINGS_OF_DELTA, "stub", lambda *_: {})),
    ]
    follow("A store", steps, check, tmp_path)


def test_a_kind_of_incident(tmp_path: Path) -> None:
    kinds: Any = Literal[(*get_args(IncidentKind), "stub")]
    known: Any = KINDS

    def check(place: Place) -> None:
        place.patch.setattr(test_docs, "ROOT", place.root)
        test_kinds.test_every_kind_is_registered_and_has_a_source()
        test_kinds.test_every_source_finds_something()
        test_docs.test_every_incident_is_documented()
        test_docs.test_troubleshooting_names_every_incident_and_error()

    steps = [
        Step("the name in `IncidentKind`", lambda at: at.patch.setattr(test_kinds, "IncidentKind", kinds)),
        Step("its line in `KINDS` with its sources", lambda at: at.patch.setitem(known, "stub", {"agents"})),
        Step("A row in `docs/alerts.md`", lambda at: at.edit("alerts.md", lambda text: f"{text}\n| `stub` | | |\n")),
        Step("`docs/troubleshooting.md`", lambda at: at.edit("troubleshooting.md", lambda text: f"{text}\n`stub`\n")),
    ]
    follow("A kind of incident", steps, check, tmp_path)


def test_a_command_that_writes(tmp_path: Path) -> None:
    def stub() -> None:
        LocalStore(tmp_path).put("key", b"")

    def register(place: Place) -> None:
        place.patch.setattr(app, "registered_commands", [*app.registered_commands])
        app.command()(stub)

    def mark(place: Place) -> None:
        place.patch.setattr(options, "WRITING", {*options.WRITING})
        options.writes(stub)

    def check(place: Place) -> None:
        refuse_unmarked_writes(place.patch)
        assert CliRunner().invoke(app, ["stub"], catch_exceptions=False).exit_code == 0

    steps = [Step("registered in `cli/app.py`", register), Step("mark it with `writes`", mark)]
    follow("A command", steps, check, tmp_path)


def test_a_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Stub(OneTopicOptions):
        """Show its topic."""

        name: ClassVar[str] = "stub"

    def work(options: Stub, _: RunningJob) -> int:
        show(options.topic)
        return 0

    def write_work(place: Place) -> None:
        module = ModuleType("tidemark_spark.jobs.stub")
        place.patch.setitem(sys.modules, module.__name__, module)
        place.patch.setattr(module, "work", work, raising=False)

    def write_program(place: Place) -> None:
        text = (ROOT / "spark" / "jobs" / "vacuum.py").read_text()
        (place.root / "stub.py").write_text(text.replace("vacuum", "stub"))

    def check(place: Place) -> None:
        arguments = ["--topics", "topics.yaml", "--topic", "orders", "--lineage", "off"]
        place.patch.setattr(sys, "argv", ["stub.py", *arguments])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(place.root / "stub.py"), run_name="__main__")
        assert (ended.value.code, capsys.readouterr().out) == (0, "orders\n")

    steps = [
        Step("its name in `JOBS`", lambda at: at.patch.setitem(JOBS, "stub", Stub)),
        Step("A module of that name in `tidemark_spark/jobs`, with a function `work`", write_work),
        Step("A program in `spark/jobs` that runs it", write_program),
    ]
    follow("A job", steps, check, tmp_path)


def test_a_metric_of_the_agent(tmp_path: Path) -> None:
    class MoreMetrics(Metrics):
        def __init__(self) -> None:
            super().__init__()
            self.stub = self._gauge("stub_bytes", "Bytes of stubs.")

    rows = metrics_doc.lines(MoreMetrics())

    def check(place: Place) -> None:
        place.patch.setattr(test_metrics, "ROOT", place.root)
        test_metrics.test_the_page_is_current()
        assert any(row.name.endswith("_stub_bytes") for row in test_metrics.LINES)

    steps = [
        Step(
            "A line in `uploader_agent/observability/metrics.py`",
            lambda at: at.patch.setattr(test_metrics, "LINES", rows),
        ),
        Step("metrics_doc > docs/metrics.md`", lambda at: at.edit("metrics.md", lambda _: metrics_doc.page(rows))),
    ]
    follow("A metric of the agent", steps, check, tmp_path)


WITH_A_COLUMN = """
import importlib, sys
from importlib.util import find_spec, module_from_spec
from pathlib import Path

spec = find_spec("tidemark.formats.table.base_columns")
source, first = Path(spec.origin).read_text(), "BASE_COLUMNS: Final = (\\n"
assert first in source
line = 'BaseColumn("kafka_stub", "int64", encoding="dictionary", statistics=True),\\n'
sys.modules[spec.name] = module = module_from_spec(spec)
exec(source.replace(first, first + line), vars(module))

from tidemark.decode.schema import SCHEMA
from tidemark.topics import TopicSettings
from tidemark_spark.convert import parquet_writer, quarantine

assert "kafka_stub" in SCHEMA.names
assert TopicSettings(topic="orders", cluster="east", table="orders", keep=("stub",)).keep == ("stub",)
assert "kafka_stub" in parquet_writer._DICTIONARY
assert "kafka_stub" in parquet_writer._STATISTICS
assert "kafka_stub" in [field.name for field in quarantine._FIELDS]
"""


def test_a_base_column() -> None:
    assert "schema, settings, encoding, statistics and quarantine follow" in section("A base column")
    subprocess.run([sys.executable, "-c", WITH_A_COLUMN], check=True, cwd=ROOT)
