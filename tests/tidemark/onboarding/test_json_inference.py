from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pydantic import TypeAdapter

from tidemark.errors import ConfigError
from tidemark.onboarding.detection import infer_columns
from tidemark.onboarding.facts import SAMPLE_COLUMNS
from tidemark.onboarding.onboard import tried
from tidemark.parsers.json.document import document
from tidemark.parsers.settings import JsonParser
from tidemark.topics import TopicSettings


def inferred(*documents: Any) -> dict[str, str]:
    columns, _ = infer_columns([document(json.dumps(one).encode()) for one in documents])
    return {one.name: one.kind for one in columns}


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([True, False], "boolean"),
        ([1, -(1 << 63), (1 << 63) - 1], "int64"),
        ([1, 1 << 63], "decimal(38,0)"),
        ([1, 1.5], "double"),
        (["2026-11-20T08:00:00Z", "2026-11-20 09:00"], "timestamp(iso8601)"),
        (["2026-11-20"], "date"),
        (["2026-11-31"], "string"),
        (["a", "2026-11-20"], "string"),
        ([[1], [], None], "list<int64>"),
        ([["a"], ["b", "2026-11-20"]], "list<string>"),
        ([[{"a": 1}]], "json"),
        ([1, "a"], "json"),
        ([{"a": 1}, 2], "json"),
        ([1] * 99 + ["a"], "int64"),
        ([1] * 98 + ["a"] * 2, "json"),
        ([{}], "json"),
    ],
)
def test_the_type_is_the_narrowest_that_nearly_all_values_have(values: list[Any], kind: str) -> None:
    assert inferred(*({"a": value} for value in values)) == {"a": kind}


def test_objects_become_columns_and_what_has_no_type_is_left_out() -> None:
    documents: list[dict[str, Any]] = [
        {"customer": {"name": "ada", "tags": []}, "gone": None},
        {"customer": {"name": None}},
    ]
    [one], left_out = infer_columns(documents)
    assert (one.name, one.path, one.null, one.misfit) == ("customer_name", ("customer", "name"), 1, 0)
    assert list(left_out) == ["customer.tags", "gone"]
    assert one.settings == {"name": "customer_name", "type": "string", "path": "customer.name"}


def test_misfits_and_overflows_are_counted() -> None:
    [one], _ = infer_columns([{"a": 1}] * 198 + [{"a": 1 << 70}, {"a": "x"}])
    assert (one.kind, one.misfit, one.overflow) == ("int64", 2, 1)


def test_names_are_made_valid_and_unique() -> None:
    found, _ = infer_columns([{"dt": 1, "kafka_key": 2, "a b": 3, "A_B": 4, "x.y": {"z": 5}, "": 6}])
    names = [one.name for one in found]
    assert names == ["field_dt", "field_kafka_key", "a_b", "A_B_2", "x.y_z"]
    assert found[-1].settings["path"] == ["x.y", "z"]


def test_an_object_of_keys_without_end_is_one_column() -> None:
    assert inferred({"by_id": {str(number): 1 for number in range(300)}}) == {"by_id": "json"}


def test_too_many_columns_are_refused() -> None:
    with pytest.raises(ConfigError, match="600 different fields"):
        infer_columns([{f"a{number}": 1 for number in range(600)}])


def _value(rng: random.Random, depth: int) -> Any:
    kinds = ["null", "bool", "int", "large", "float", "text", "instant", "list", "object"]
    kind = rng.choice(kinds if depth else kinds[:-2])
    simple = {
        "null": None,
        "bool": True,
        "int": rng.randrange(1 << 40),
        "large": 1 << 65,
        "float": rng.random(),
        "text": "é",
        "instant": "2026-11-20T08:00:00Z",
    }
    if kind == "list":
        return [_value(rng, depth - 1) for _ in range(rng.randrange(3))]
    if kind == "object":
        return {
            rng.choice(["a", "b", "dt", "A", "c d", "e.f"]): _value(rng, depth - 1) for _ in range(rng.randrange(4))
        }
    return simple[kind]


def test_the_parser_refuses_only_what_was_counted_as_a_misfit(rng: random.Random) -> None:
    """Random documents: what is inferred is valid, and the real parser agrees with the counts."""
    for _ in range(60):
        documents = [{key: _value(rng, 3) for key in "abcde"} for _ in range(rng.choice([1, 3, 150]))]
        found, _ = infer_columns([document(json.dumps(one).encode()) for one in documents])
        if not found:
            continue
        settings: JsonParser = TypeAdapter(JsonParser).validate_python(
            {"kind": "json", "columns": [one.settings for one in found]}
        )
        rows = pa.RecordBatch.from_pylist(
            [
                {"kafka_partition": 0, "kafka_offset": at, "kafka_value": json.dumps(one).encode(), "kafka_headers": []}
                for at, one in enumerate(documents)
            ],
            schema=SAMPLE_COLUMNS,
        )
        topic = TopicSettings(topic="t", cluster="c", table="t", parser=settings)
        trial = tried(topic, rows, datetime(2026, 11, 24, tzinfo=UTC))
        assert trial.refused <= sum(one.misfit for one in found)
        assert all(trial.refused >= one.misfit for one in found)
