"""axe-core in a page: what it finds wrong for people who use a keyboard, a screen reader, or little contrast."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

from tests.support.browser import Browser

_FOUND = """
return axe.run().then((result) => result.violations.map((one) =>
  `${one.id} (${one.impact}): ${one.help}: ${one.nodes.map((node) => node.target.join(" ")).slice(0, 5).join(", ")}`));
"""


def violations(browser: Browser) -> list[str]:
    """What breaks a rule in the page as it is now: rule, impact, elements."""
    browser.run(_script())
    found: list[str] = browser.run(_FOUND)
    return found


@cache
def _script() -> str:
    """axe-core's one file. The package around it is not imported: it wants a driver that is not installed."""
    package = importlib.util.find_spec("axe_playwright_python")
    assert package is not None, "run `make env-airflow`"
    assert package.origin is not None
    return Path(package.origin).with_name("axe.min.js").read_text(encoding="utf-8")
