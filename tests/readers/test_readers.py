"""The same question has the same answer in every reader, in every state of a table: that of Python."""

from __future__ import annotations

import math
import pickle
import random
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import duckdb
import pytest

from tests.readers.asking import READERS, Tally
from tests.readers.tables import STATES
from tests.readers.truth import Asked, Question, sampled
from tests.support.iceberg import packages
from tests.support.paths import ROOT, env_python
from tests.support.spark import delta_conf, jars_env, spark_submit

HERE: Final = [one for one in READERS if not one.startswith(("DataFusion", "Daft", "chDB", "Spark"))]
ELSEWHERE: Final = [one for one in READERS if one.startswith(("DataFusion", "Daft", "chDB"))]
SPARK: Final = [one for one in READERS if one.startswith("Spark")]


def _in_with_zero(question: Question) -> bool:
    """0.0 and -0.0 are equal, but some look a list's values up by their bits."""
    return question.operator == "in" and _with_zero(question)


def _with_zero(question: Question) -> bool:
    """Some tell 0.0 from -0.0 in each comparison."""
    return any(isinstance(value, float) and value == 0.0 for value in question.operands)


def _of_clickhouse(question: Question) -> bool:
    """ClickHouse's lists are never null, its times begin in 1900, and texts of folders stay as they are written."""
    return question.column in {"tags", "moment", "part"} or _in_with_zero(question)


def _infinite_float(question: Question) -> bool:
    """To pyiceberg, an infinity is a number beyond the limits of 32 bits."""
    return question.column == "f32" and any(isinstance(one, float) and math.isinf(one) for one in question.operands)


FAULTS: Final[Mapping[str, Callable[[Question], bool]]] = {
    **dict.fromkeys(("Daft, the Delta table", "Daft, the files"), _with_zero),
    "chDB, the files": _of_clickhouse,
    "pyiceberg": lambda question: _in_with_zero(question) or _infinite_float(question),
    **dict.fromkeys(
        (
            *("delta-rs", "delta-rs, as a dataset", "delta-rs, by SQL", "delta-rs, to pandas"),
            *("Polars, by pyarrow", "DuckDB, over delta-rs", "pyarrow"),
            *("DataFusion, delta-rs's provider", "DataFusion, delta-rs's dataset"),
        ),
        _in_with_zero,
    ),
}
"""What readers are known to answer wrongly, by their names; docs/reading.md says so."""


def _answered(python: Path, readers: Sequence[str], tables: Sequence[Asked], path: str = "") -> dict[str, Tally]:
    """What became of the questions in a process of ``python``."""
    done = subprocess.run(
        [python, "-m", "tests.readers.asking", *readers],
        input=pickle.dumps(tuple(tables)),
        env={"PYTHONPATH": f"{path}:{ROOT}", "TZ": "UTC", "HOME": str(Path.home())},
        cwd=ROOT,
        capture_output=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return _tallies(done.stdout)


def _tallies(pickled: bytes) -> dict[str, Tally]:
    found: Mapping[str, tuple[Any, ...]] = pickle.loads(pickled)  # noqa: S301 - the tests' own
    return {reader: Tally(*fields) for reader, fields in found.items()}


def _check(found: Mapping[str, Tally]) -> list[str]:
    """A line of totals for each reader; no answer may be wrong but for the known faults."""
    lines, wrong = [], []
    for reader, tally in found.items():
        known = FAULTS.get(reader)
        faults = [answer for answer in tally.wrong if known is not None and known(answer[1])]
        unknown = [answer for answer in tally.wrong if answer not in faults]
        told = f"{len(tally.refused)} refused loudly, {len(unknown)} wrong"
        lines.append(f"{reader}: {tally.asked} asked, {tally.right} right, {told}, {len(faults)} known faults")
        wrong += [f"{reader}: {one}"[:300] for one in unknown]
        assert tally.asked == tally.right + len(tally.refused) + len(tally.wrong)
    assert wrong == [], "\n".join(wrong[:40])
    return lines


def test_a_sample_of_questions_has_the_same_answer_in_every_reader_here(tmp_path: Path, rng: random.Random) -> None:
    states = rng.sample([*STATES], 2)
    tables = [sampled(rng, STATES[state](tmp_path / str(number)), 25) for number, state in enumerate(states)]
    found = _answered(Path(sys.executable), HERE, tables)
    _check(found)
    assert all(tally.right for tally in found.values() if tally.asked), {
        name: tally.refused[:1] for name, tally in found.items()
    }


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> list[Asked]:
    """All tables, with all questions."""
    folder = tmp_path_factory.mktemp("tables")
    return [make(folder / str(number)) for number, make in enumerate(STATES.values())]


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("reader", HERE)
def test_every_question_has_the_right_answer(
    reader: str, tables: list[Asked], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = _check(_answered(Path(sys.executable), [reader], tables))
    with capsys.disabled():
        sys.stdout.write("\n".join(["", *lines]))


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("reader", ELSEWHERE)
def test_every_question_has_the_right_answer_in_readers_of_their_own_environment(
    reader: str, tables: list[Asked], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = _check(_answered(env_python("build"), [reader], tables, str(packages("readers"))))
    with capsys.disabled():
        sys.stdout.write("\n".join(["", *lines]))


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_a_sample_of_questions_has_the_right_answer_in_spark(
    tables: list[Asked], tmp_path: Path, rng: random.Random, capsys: pytest.CaptureFixture[str]
) -> None:
    job = tmp_path / "job"
    job.write_bytes(pickle.dumps(tuple(sampled(rng, table, 60) for table in tables)))
    script = Path(__file__).with_name("by_spark.py")
    env = {**jars_env("delta-spark"), "TZ": "UTC", "PYTHONPATH": str(ROOT)}
    spark_submit(script, job, *SPARK, conf=delta_conf(), env=env, timeout=3000)
    lines = _check(_tallies(job.with_suffix(".answers").read_bytes()))
    with capsys.disabled():
        sys.stdout.write("\n".join(["", *lines]))


PAGE: Final = (ROOT / "docs" / "reading.md").read_text()


def recipe(section: str, table: Asked) -> str:
    """The page's code for a table in a directory, up to ``table``, which has all dates."""
    [code] = re.findall(rf"^## {section}\n(?:(?!^##).)*?```python\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE)
    code = re.sub(r"^(?:(?:server|place|found) = |duckdb\.sql\().*\n", "", code, flags=re.MULTILINE)
    files = "\n".join(table.files)
    code = re.sub(r"subprocess\.check_output\(.*?, text=True\)", lambda _: repr(files), code)
    code = re.sub(r"s3a?://lake/tables/orders", table.url, code)
    return code.replace('removeprefix("s3://")', 'removeprefix("file://")')


@pytest.mark.parametrize("section", ["DuckDB", "DuckDB, over the directory at rest", "pyarrow"])
def test_each_recipe_over_files_has_the_columns_of_all_files(section: str, tmp_path: Path) -> None:
    asked = STATES["added"](tmp_path)
    scope: dict[str, Any] = {"duckdb": duckdb}
    exec(recipe(section, asked), scope)  # noqa: S102 - the page's own
    table = scope["table"]
    assert {*asked.types} <= {*(table.columns if section.startswith("DuckDB") else table.schema.names)}
