"""A receiver of OpenLineage events, which checks each against OpenLineage's JSON schemas as it arrives."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from jsonschema import Draft202012Validator, FormatChecker  # type: ignore[import-untyped]  # has no types of its own
from referencing import Registry, Resource

from tests.support.paths import ROOT
from tests.support.ports import HOST
from tests.support.receivers import Serving

_SPEC: Final = Path(__file__).with_name("openlineage")
_OURS: Final = ROOT / "docs" / "lineage"


class LineageServer(Serving):
    """Takes events at ``/api/v1/lineage``. ``wrong`` has what a schema forbids, in words."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[dict[str, Any]] = []
        self.wrong: list[str] = []
        self.server = ThreadingHTTPServer((HOST, 0), _handler(self))

    @property
    def url(self) -> str:
        """Where to send to."""
        return f"http://{HOST}:{self.port}"

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
    """What a schema forbids in ``event``: in itself, and in each facet."""
    found = _told(_validator("https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"), event, "event")
    for place, facet in _facets(event):
        found += _told(_validator(_schema_of(facet)), facet, place)
    return found


def _told(validator: Draft202012Validator, value: Any, place: str) -> list[str]:
    return [f"{place}{error.json_path[1:]}: {error.message}" for error in validator.iter_errors(value)]


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


def _schema_of(facet: dict[str, Any]) -> str:
    """The schema that the facet names, in the version that is here; of somebody else's facet, that of any."""
    url = str(facet.get("_schemaURL"))
    if url in (one["$id"] for one in _all().values()):
        return f"{url}#/$defs/{url.rpartition(':')[2]}"
    name = url.rpartition("#")[0].rpartition("/")[2]
    if name in _all() and name != "OpenLineage.json":
        return f"{_all()[name]['$id']}#/$defs/{name.removesuffix('.json')}"
    return "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/BaseFacet"


@cache
def _all() -> dict[str, dict[str, Any]]:
    return {one.name: json.loads(one.read_text()) for one in (*_SPEC.glob("*.json"), *_OURS.glob("*.json"))}


@cache
def _validator(url: str) -> Draft202012Validator:
    resources = [(one["$id"], Resource.from_contents(one)) for one in _all().values()]
    registry: Registry[Any] = Registry().with_resources(resources)
    return Draft202012Validator({"$ref": url}, registry=registry, format_checker=FormatChecker())


def _handler(server: LineageServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path != "/api/v1/lineage":
                server.wrong.append(f"{self.path} is not where events go")
            server.wrong += problems(event)
            server.events.append(event)
            self.send_response(503 if server.refusing else 201)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Tests show what they need themselves."""

    return Handler
