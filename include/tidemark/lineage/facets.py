"""Facets of OpenLineage, as its JSON schemas have them, and Tidemark's own facet of a run.

Tidemark's facet is ``tidemark_runs``; ``docs/lineage/TidemarkRunsRunFacet.json`` is its schema.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from pydantic import JsonValue

if TYPE_CHECKING:
    from deltalake import Schema

    from tidemark.formats.lineage import Facets

PRODUCER: Final = f"urn:tidemark:{version('tidemark-kafka')}"
"""Who says it; a URI, as OpenLineage wants it."""

_SPEC: Final = "https://openlineage.io/spec/facets"
RUNS_SCHEMA: Final = "urn:tidemark:lineage:1-0-0:TidemarkRunsRunFacet"
"""The ``$id`` of the schema of ``tidemark_runs``."""


def runs(entries: Iterable[Mapping[str, JsonValue]]) -> Facets:
    """Tidemark's facet of a run: what was done to each table."""
    return {"tidemark_runs": {"_producer": PRODUCER, "_schemaURL": RUNS_SCHEMA, "runs": [dict(one) for one in entries]}}


def error_message(error: BaseException) -> Facets:
    """Why a run failed."""
    text = f"{type(error).__name__}: {error}"
    return _facet("errorMessage", "ErrorMessageRunFacet", "1-0-1", message=text, programmingLanguage="python")


def job_type() -> Facets:
    """The kind of job that Tidemark's are."""
    return _facet("jobType", "JobTypeJobFacet", "2-0-4", processingType="BATCH", integration="TIDEMARK", jobType="JOB")


def table_storage() -> Facets:
    """A Delta table of Parquet files."""
    return _facet("storage", "StorageDatasetFacet", "1-0-1", storageLayer="delta", fileFormat="parquet")


def symlinks(identifiers: Sequence[tuple[str, str]]) -> Facets:
    """Other names of a table: (namespace, name); no facet if there are none."""
    named: list[JsonValue] = [{"namespace": one, "name": name, "type": "TABLE"} for one, name in identifiers]
    return _facet("symlinks", "SymlinksDatasetFacet", "1-0-1", identifiers=named) if named else {}


def dataset_version(number: int) -> Facets:
    """The version of a Delta table."""
    return _facet("version", "DatasetVersionDatasetFacet", "1-0-1", datasetVersion=str(number))


def table_schema(schema: Schema) -> Facets:
    """The columns of a Delta table, with those inside of structs; types as Delta's protocol names them."""
    return _facet("schema", "SchemaDatasetFacet", "1-2-0", fields=_fields(_plain(schema)["fields"]))


def output_statistics(*, rows: int, files: int, size: int | None) -> Facets:
    """What was added to a dataset; ``size`` in bytes, None if it is not known."""
    sized: dict[str, JsonValue] = {} if size is None else {"size": size}
    name, ours = "OutputStatisticsOutputDatasetFacet", {"rowCount": rows, "fileCount": files}
    return _facet("outputStatistics", name, "1-0-2", **ours, **sized)


def assertions(found: Iterable[Mapping[str, JsonValue]]) -> Facets:
    """What was tested of a dataset, and whether it held."""
    name = "DataQualityAssertionsDatasetFacet"
    return _facet("dataQualityAssertions", name, "1-1-0", assertions=[dict(one) for one in found])


def _facet(name: str, kind: str, number: str, **fields: JsonValue) -> Facets:
    return {name: {"_producer": PRODUCER, "_schemaURL": f"{_SPEC}/{number}/{kind}.json#/$defs/{kind}", **fields}}


def _plain(schema: Schema) -> Any:
    import json

    return json.loads(schema.to_json())


def _fields(fields: Iterable[Mapping[str, Any]]) -> list[JsonValue]:
    found: list[JsonValue] = []
    for one in fields:
        kind, inner = one["type"], _struct(one["type"])
        told: dict[str, JsonValue] = {"name": one["name"], "type": kind if isinstance(kind, str) else kind["type"]}
        found.append({**told, "fields": _fields(inner["fields"])} if inner else told)
    return found


def _struct(kind: Any) -> Mapping[str, Any] | None:
    """The struct that a type is, or that the elements of an array are."""
    if not isinstance(kind, dict):
        return None
    return kind if kind["type"] == "struct" else _struct(kind.get("elementType") or kind.get("valueType"))
