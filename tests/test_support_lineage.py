"""The receiver of lineage events sees what is wrong in them."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.support.lineage import problems
from tidemark.lineage.facets import PRODUCER, runs

_SPEC = "https://openlineage.io/spec"
_STATISTICS = f"{_SPEC}/facets/1-0-2/OutputStatisticsOutputDatasetFacet.json#/$defs/OutputStatisticsOutputDatasetFacet"
_EVENT: dict[str, Any] = {
    "eventTime": "2026-11-24T09:00:00Z",
    "producer": PRODUCER,
    "schemaURL": f"{_SPEC}/2-0-2/OpenLineage.json#/$defs/RunEvent",
    "eventType": "COMPLETE",
    "run": {"runId": "0193b1b0-0000-7000-8000-000000000000", "facets": runs([])},
    "job": {"namespace": "default", "name": "ingest"},
    "inputs": [{"namespace": "kafka://east", "name": "orders"}],
    "outputs": [
        {
            "namespace": "s3://lake",
            "name": "orders",
            "outputFacets": {
                "outputStatistics": {"_producer": PRODUCER, "_schemaURL": _STATISTICS, "rowCount": 1, "size": 2}
            },
        }
    ],
}


def test_a_right_event_has_no_problems() -> None:
    assert problems(_EVENT) == []


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("eventType",), "DONE", "event.eventType"),
        (("run", "runId"), 7, "event.run.runId"),
        (("job", "name"), None, "event.job.name"),
        (("inputs", 0, "namespace"), ["kafka"], "event.inputs"),
        (("outputs", 0, "outputFacets", "outputStatistics", "rowCount"), "1", "rowCount"),
        (("outputs", 0, "outputFacets", "outputStatistics", "size"), True, "size"),
        (("run", "facets", "tidemark_runs", "runs"), [{"kind": 1}], "tidemark_runs"),
    ],
)
def test_a_wrong_value_is_named(path: tuple[Any, ...], value: object, says: str) -> None:
    event = copy.deepcopy(_EVENT)
    *parents, last = path
    place: Any = event
    for one in parents:
        place = place[one]
    place[last] = value
    found = problems(event)
    assert found
    assert all(says in one for one in found), found


@pytest.mark.parametrize("name", ["eventTime", "producer", "schemaURL", "run", "job"])
def test_what_is_missing_is_named(name: str) -> None:
    event = {key: value for key, value in _EVENT.items() if key != name}
    if name == "run":
        event["run"] = {"facets": {}}
        name = "runId"
    elif name == "job":
        event["job"] = {"namespace": "default"}
        name = "name"
    assert any(one.endswith(f"has no {name}") for one in problems(event))
