"""The rule that a command which is not marked by ``writes`` only reads, in each test of a command."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partialmethod
from types import CodeType, FrameType
from typing import Any

import pytest

from tidemark.cli import options
from tidemark.cli.app import app, commands
from tidemark.store.local import LocalStore


def command_of(frame: FrameType | None, reading: dict[CodeType, str]) -> str | None:
    """The name of the command, of those that only ``reading`` names, that has called this frame."""
    while frame is not None and frame.f_code not in reading:
        frame = frame.f_back
    return reading[frame.f_code] if frame is not None else None


def refuse_unmarked_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the change of a store fail if a command that is not marked makes it."""
    reading = {function.__code__: name for name, function in commands(app) if function not in options.WRITING}

    def written(store: LocalStore, *arguments: Any, real: Callable[..., Any], **more: Any) -> Any:
        result = real(store, *arguments, **more)
        name = command_of(sys._getframe(), reading)
        assert name is None, f"tidemark {name} writes: mark its function with tidemark.cli.options.writes"
        return result

    for change in ("put", "copy", "delete"):
        monkeypatch.setattr(LocalStore, change, partialmethod(written, real=getattr(LocalStore, change)))


@pytest.fixture(autouse=True)
def only_marked_commands_write(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_unmarked_writes(monkeypatch)
