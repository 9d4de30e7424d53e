"""What `make test-containers` does before any container runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from tests.containers import engine
from tests.containers.stack import FILE
from tests.containers.stand_ins import OVERRIDE


def put_in_path(folder: Path, programs: dict[str, str]) -> None:
    for name, command in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{command}\n")
        (folder / name).chmod(0o755)


@pytest.mark.parametrize(
    ("programs", "user", "lacks"),
    [
        ({}, 0, "no `docker`"),
        ({"docker": "false"}, 0, "`dockerd`"),
        ({"docker": "false", "dockerd": "true"}, 1000, "root"),
        ({"docker": "false", "dockerd": "true"}, 0, "no `docker compose`"),
        ({"docker": '[ "$1" = version ]'}, 1000, "no `docker compose`"),
        ({"docker": '[ "$1" = version ]', "go": "true"}, 1000, None),
        ({"docker": "false", "dockerd": "true", "go": "true"}, 0, None),
        ({"docker": "true"}, 1000, None),
    ],
)
def test_what_is_missing_is_named(
    programs: dict[str, str], user: int, lacks: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in_path(tmp_path, programs)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert (engine.missing() is None) == (lacks is None)
    assert (lacks or "") in (engine.missing() or "")


def test_a_command_that_fails_says_what_and_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "LOG", tmp_path / "log")
    assert engine.call("/bin/sh", "-c", "cat; echo aside >&2", given="back") == "back"
    with pytest.raises(RuntimeError, match=r"sh -c .*: exit code 3; the end of .*log:\nprinted\naside\nwhy$"):
        engine.call("/bin/sh", "-c", "echo printed; echo why >&2; exit 3")


def test_rules_of_tables_that_were_not_in_use_go_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "LOG", tmp_path / "log")
    rules = "*filter\n:FORWARD DROP\nCOMMIT\n"
    put_in_path(tmp_path, {"iptables-save": f"printf '{rules}'", "iptables-restore": f"/bin/cat >{tmp_path}/restored"})
    monkeypatch.setenv("PATH", str(tmp_path))
    with engine.network_restored():
        assert not (tmp_path / "restored").exists()
    assert (tmp_path / "restored").read_text() == f"*nat\nCOMMIT\n*filter\n:FORWARD ACCEPT\nCOMMIT\n{rules}"


def test_each_image_that_is_pulled_has_a_stand_in_that_no_registry_gives() -> None:
    changed = yaml.safe_load(OVERRIDE.read_text())["services"]
    pulled = {name for name, service in FILE["services"].items() if not service["image"].startswith("tidemark-")}
    built = {name for name, service in FILE["services"].items() if "build" in service}
    assert {name for name, service in changed.items() if "image" in service} == pulled
    assert set(changed) == pulled | built
    names = [service["image"] for service in changed.values() if "image" in service]
    names += [service["build"]["args"]["BASE"] for service in changed.values()]
    assert all(name.startswith("localhost/") for name in names)
