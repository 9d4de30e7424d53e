"""Take the pictures of the continuity page that the README shows: ``make screenshots``. No test writes there."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.plugins.web.page_server import ANN, PageServer
from tests.plugins.web.page_world import PageWorld
from tests.plugins.world import CLUSTER
from tests.support.browser import Browser
from tests.support.paths import ROOT

IMAGES = ROOT / "docs" / "images"
# The pictures are of a deployment, not of the folder that it lies in for them.
_NAME_TABLE = """
for (const one of document.querySelectorAll(".facts code, .copyable code")) {
  const scheme = one.closest(".copyable:last-child") ? "s3a" : "s3";
  one.textContent = one.textContent.replace(/file:.*\\/lake\\/orders/, `${scheme}://lake/tables/orders`);
}
"""
_CLOSE_INCIDENTS = "document.querySelector('.incidents').open = false"


def main() -> None:
    """Write all pictures."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        world = PageWorld(home / "world", owner="shop")
        with PageServer(world, home) as server, Browser(home / "browser", size=(1180, 820)) as browser:
            browser.set_cookie(server.url, "_token", server.token(ANN))
            for scheme in ("light", "dark"):
                browser.prefer(prefers_color_scheme=scheme)
                browser.get(server.url)
                browser.first("th a")
                browser.picture(IMAGES / f"page-topics-{scheme}.png")
                browser.get(f"{server.url}?topic={CLUSTER}/orders&dt=2026-03-24")
                browser.first(".calendar button")
                browser.first("h3", text="2026-03-24")
                browser.first(".columns", text="kafka_offset long")
                browser.run(_NAME_TABLE)
                browser.run(_CLOSE_INCIDENTS)
                browser.picture(IMAGES / f"page-topic-{scheme}.png", whole=True)


if __name__ == "__main__":
    main()
