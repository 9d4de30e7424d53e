"""Docstrings of the code, as the site's pages take them: examples, lists of settings and Sphinx's roles as Markdown."""

from __future__ import annotations

import re
from typing import Any, Final

import griffe

_EXAMPLE: Final = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)
_ROLE: Final = re.compile(r":(?:class|meth|func|data|mod|attr):`~?([^`]+)`")
_SETTING: Final = re.compile(r"^(?::param )?([a-z_]+): (?=\S)", re.MULTILINE)


def as_markdown(text: str) -> str:
    """A docstring with fences around its examples, and its settings as a list."""
    parts = _EXAMPLE.split(text)
    settings = (_SETTING.sub(r"* `\1`: ", _ROLE.sub(r"`\1`", part)) for part in parts)
    examples = [f"```pycon\n{example}\n```" for example in _EXAMPLE.findall(text)]
    return "".join(part for pair in zip(settings, [*examples, ""], strict=True) for part in pair)


class Docstrings(griffe.Extension):  # type: ignore[misc]  # dev has no griffe
    """Rewrites each docstring before the site's generator parses it."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called once for each module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
