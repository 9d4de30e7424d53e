from __future__ import annotations

from typing import get_args

from tidemark.monitoring.incidents import KINDS, IncidentKind, Source, found_by


def test_every_kind_is_registered_and_has_a_source() -> None:
    assert set(KINDS) == set(get_args(IncidentKind))
    assert not [kind for kind, sources in KINDS.items() if not sources]


def test_every_source_finds_something() -> None:
    assert all(found_by(source) for source in get_args(Source))
    assert found_by(*get_args(Source)) == set(KINDS)
