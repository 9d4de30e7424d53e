"""What a mutant is."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """``replacement`` for the one place of ``text`` in ``file`` breaks ``rule``; some of ``tests`` must fail then.

    A test is named by its module, as ``tests.test_docs::test_names``, so that :mod:`tests.support.inputs` knows it.
    """

    rule: str
    file: str
    text: str
    replacement: str
    tests: tuple[str, ...]
