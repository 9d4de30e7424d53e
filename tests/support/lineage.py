"""A receiver of OpenLineage events, which checks all that it got."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final

from openlineage.client.generated.base import BaseFacet, RunEvent
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from tests.support.lineage_types import facet_classes, misfits
from tests.support.paths import ROOT
from tests.support.ports import HOST
from tests.support.receivers import Serving

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # has no types of its own

_BASE: Final = "https://openlineage.io/spec/2-0-2/OpenLineage.json"
_OURS: Final = ROOT / "docs" / "lineage"


class LineageServer(Serving):
    """Takes events at ``/api/v1/lineage``, and answers at once: a client that waits too long sends an event again."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[dict[str, Any]] = []
        self.misdirected: list[str] = []
        self.server = ThreadingHTTPServer((HOST, 0), _handler(self))

    @property
    def url(self) -> str:
        """Where to send to."""
        return f"http://{HOST}:{self.port}"

    @property
    def wrong(self) -> list[str]:
        """What is wrong in the events, in words."""
        return [*self.misdirected, *(problem for event in list(self.events) for problem in problems(event))]

    def of(self, kind: str, job: str) -> list[dict[str, Any]]:
        """The events of a kind, such as COMPLETE, whose job's name contains ``job``."""
        return [one for one in list(self.events) if one["eventType"] == kind and job in one["job"]["name"]]

    def datasets(self) -> set[tuple[str, str]]:
        """(namespace, name) of all datasets that any event names."""
        return {named for one in list(self.events) for side in ("inputs", "outputs") for named in names(one, side)}


def names(event: dict[str, Any], side: str) -> list[tuple[str, str]]:
    """(namespace, name) of an event's datasets on one side, ``inputs`` or ``outputs``."""
    return sorted((one["namespace"], one["name"]) for one in event.get(side, ()))


def runs(event: dict[str, Any]) -> list[dict[str, Any]]:
    """The entries of Tidemark's facet."""
    found: list[dict[str, Any]] = event["run"]["facets"].get("tidemark_runs", {"runs": []})["runs"]
    return found


def problems(event: dict[str, Any]) -> list[str]:
    """What is wrong in ``event``: in itself, and in each facet."""
    found = [*misfits(RunEvent, event, "event")]
    for place, facet in _facets(event):
        name = str(facet.get("_schemaURL")).rpartition(":" if _is_ours(facet) else "/")[2]
        found += misfits(facet_classes().get(name, BaseFacet), facet, place)
        if _is_ours(facet):
            found += [f"{place}{one.json_path[1:]}: {one.message}" for one in _validator(name).iter_errors(facet)]
    return found


def _is_ours(facet: dict[str, Any]) -> bool:
    return str(facet.get("_schemaURL")).startswith("urn:tidemark:")


def _facets(event: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Where each facet is, and it."""
    of_datasets: Sequence[tuple[str, dict[str, Any]]] = [
        (f"{one['name']}.{kind}", one.get(kind) or {})
        for one in (*event.get("inputs", ()), *event.get("outputs", ()))
        for kind in ("facets", "inputFacets", "outputFacets")
    ]
    places = [("run", event["run"].get("facets") or {}), ("job", event["job"].get("facets") or {}), *of_datasets]
    for place, facets in places:
        yield from ((f"{place}.{name}", facet) for name, facet in facets.items())


@cache
def _validator(name: str) -> Draft202012Validator:
    """By the schema of a facet of ours. Of OpenLineage's, on which it builds, the classes say more."""
    from jsonschema import Draft202012Validator  # which parses grammars for a second when it is imported

    schema: dict[str, Any] = json.loads((_OURS / f"{name}.json").read_text())
    base: dict[str, Any] = {
        "$id": _BASE,
        "$defs": {"RunFacet": {"type": "object", "required": ["_producer", "_schemaURL"]}},
    }
    resources = [(one["$id"], Resource.from_contents(one, DRAFT202012)) for one in (schema, base)]
    registry: Registry[Any] = Registry().with_resources(resources)
    return Draft202012Validator({"$ref": f"{schema['$id']}#/$defs/{name}"}, registry=registry)


def _handler(server: LineageServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path != "/api/v1/lineage":
                server.misdirected.append(f"{self.path} is not where events go")
            server.events.append(event)
            self.send_response(503 if server.refusing else 201)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Tests show what they need themselves."""

    return Handler
