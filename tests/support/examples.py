"""The examples in docstrings, run as a reader would."""

from __future__ import annotations

import doctest
import importlib
from collections.abc import Mapping
from typing import Any


def failures_of(name: str, replaced: Mapping[str, str]) -> tuple[int, str]:
    """How many examples the module or class ``name`` has, with its functions and methods, and what failed of them.

    ``replaced`` are addresses that stand for those of a test.
    """
    module, _, attribute = name.partition(":")
    found: Any = importlib.import_module(module)
    told: list[str] = []
    runner, count = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS), 0
    target = getattr(found, attribute) if attribute else found
    for one in doctest.DocTestFinder(exclude_empty=True).find(target, attribute or name, module=found):
        text = one.docstring or ""
        for old, new in replaced.items():
            text = text.replace(old, new)
        test = doctest.DocTestParser().get_doctest(text, one.globs, one.name, one.filename, one.lineno)
        runner.run(test, out=told.append)
        count += len(test.examples)
    return count, "".join(told)
