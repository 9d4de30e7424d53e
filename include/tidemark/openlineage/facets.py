"""Facets of OpenLineage, as its JSON schemas have them, and the lineage of a job, put together from its parts.

Tidemark's own facet of a run is ``tidemark_runs``; ``docs/lineage/TidemarkRunsRunFacet.json`` is its schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pydantic import JsonValue

from tidemark.formats.raw.lineage import Dataset, JobLineage
from tidemark.installation import VERSION

if TYPE_CHECKING:
    from deltalake import Schema

    from tidemark.formats.raw.lineage import Facets

PRODUCER: Final = f"urn:tidemark:{VERSION}"
"""The producer of the metadata, a URI as OpenLineage wants it."""

_SPEC: Final = "https://openlineage.io/spec/facets"
RUNS_SCHEMA: Final = "urn:tidemark:lineage:1-0-0:TidemarkRunsRunFacet"
"""The ``$id`` of the schema of ``tidemark_runs``."""


def runs(entries: Iterable[Mapping[str, JsonValue]]) -> Facets:
    """Tidemark's facet of a run: one entry for each table."""
    listed: list[JsonValue] = [dict(entry) for entry in entries]
    return {"tidemark_runs": {"_producer": PRODUCER, "_schemaURL": RUNS_SCHEMA, "runs": listed}}


def error_message(error: BaseException) -> Facets:
    """The facet of a failed run: its error."""
    text = f"{type(error).__name__}: {error}"
    return _facet("errorMessage", "ErrorMessageRunFacet", "1-0-1", message=text, programmingLanguage="python")


def job_type() -> Facets:
    """The facet of a job of Tidemark."""
    return _facet("jobType", "JobTypeJobFacet", "2-0-4", processingType="BATCH", integration="TIDEMARK", jobType="JOB")


def table_storage() -> Facets:
    """The facet of a Delta table of Parquet files."""
    return _facet("storage", "StorageDatasetFacet", "1-0-1", storageLayer="delta", fileFormat="parquet")


def symlinks(identifiers: Sequence[tuple[str, str]]) -> Facets:
    """The facet of a table's other names, (namespace, name); empty if there are none."""
    named: list[JsonValue] = [{"namespace": space, "name": name, "type": "TABLE"} for space, name in identifiers]
    return _facet("symlinks", "SymlinksDatasetFacet", "1-0-1", identifiers=named) if named else {}


def dataset_version(number: int) -> Facets:
    """The facet of a Delta table's version."""
    return _facet("version", "DatasetVersionDatasetFacet", "1-0-1", datasetVersion=str(number))


def table_schema(schema: Schema) -> Facets:
    """The facet of a Delta table's columns, with the fields of structs; types as Delta's protocol names them."""
    return _facet("schema", "SchemaDatasetFacet", "1-2-0", fields=_fields(json.loads(schema.to_json())["fields"]))


def output_statistics(*, rows: int, files: int, size: int | None) -> Facets:
    """The facet of the rows and files added to a dataset; ``size`` in bytes, None if it is not known."""
    sized: dict[str, JsonValue] = {} if size is None else {"size": size}
    name, ours = "OutputStatisticsOutputDatasetFacet", {"rowCount": rows, "fileCount": files}
    return _facet("outputStatistics", name, "1-0-2", **ours, **sized)


def assertions(tests: Iterable[Mapping[str, JsonValue]]) -> Facets:
    """The facet of a dataset's tests and their results."""
    name = "DataQualityAssertionsDatasetFacet"
    return _facet("dataQualityAssertions", name, "1-1-0", assertions=[dict(test) for test in tests])


def _facet(name: str, kind: str, number: str, **fields: JsonValue) -> Facets:
    return {name: {"_producer": PRODUCER, "_schemaURL": f"{_SPEC}/{number}/{kind}.json#/$defs/{kind}", **fields}}


def _fields(fields: Iterable[Mapping[str, Any]]) -> list[JsonValue]:
    listed: list[JsonValue] = []
    for field in fields:
        kind, inner = field["type"], _struct(field["type"])
        entry: dict[str, JsonValue] = {"name": field["name"], "type": kind if isinstance(kind, str) else kind["type"]}
        listed.append({**entry, "fields": _fields(inner["fields"])} if inner else entry)
    return listed


def _struct(kind: Any) -> Mapping[str, Any] | None:
    """The struct of a type, or of an array's elements; None for other types."""
    if not isinstance(kind, dict):
        return None
    return kind if kind["type"] == "struct" else _struct(kind.get("elementType") or kind.get("valueType"))


class LineagePart(NamedTuple):
    """A part of a job's lineage: its datasets, and its entry in Tidemark's facet of the run."""

    inputs: tuple[Dataset, ...] = ()
    outputs: tuple[Dataset, ...] = ()
    entry: Mapping[str, JsonValue] | None = None


def joined(parts: Iterable[LineagePart]) -> JobLineage:
    """All ``parts`` together. A dataset is listed once as an input and once as an output; its last part counts."""
    all_parts = list(parts)
    entries = [part.entry for part in all_parts if part.entry is not None]
    return JobLineage(
        inputs=_once(dataset for part in all_parts for dataset in part.inputs),
        outputs=_once(dataset for part in all_parts for dataset in part.outputs),
        run=runs(entries) if entries else {},
    )


def _once(datasets: Iterable[Dataset]) -> tuple[Dataset, ...]:
    return tuple({dataset.key: dataset for dataset in datasets}.values())
