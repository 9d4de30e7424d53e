"""The site that `make docs` builds: complete, strict, and without any other host."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections.abc import Iterator
from functools import cache, partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import get_args
from urllib.parse import urlsplit

import pytest
import yaml
from typing_extensions import override

from release.version import stated
from tests.support.browser import Browser
from tests.support.paths import ROOT, env_bin
from tidemark.formats.keys import MANIFEST_EXTENSION, WATERMARK_NAME
from tidemark.kafka_log.indexes import SegmentFileKind

VERSION = stated().rpartition(".")[0]
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "srcset", "object": "data", "form": "action"}
"""The attributes by which a browser loads something of itself; those of ``link`` depend on its ``rel``."""


def build(folder: Path, config: Path = ROOT / "mkdocs.yml") -> subprocess.CompletedProcess[str]:
    command: list[str | Path] = [
        env_bin("docs", "python"),
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--config-file",
        config,
        "--site-dir",
        folder,
    ]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of this version, in its folder of versions."""
    folder = tmp_path_factory.mktemp("site")
    done = build(folder)
    assert done.returncode == 0, done.stderr
    return folder / VERSION


class Page(HTMLParser):
    """What a page loads, where its links lead, and the texts of its paragraphs and headings."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.names: set[str] = set()
        self.paragraphs: list[str] = []
        self._inside = False
        self.feed(text)

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.names.add(values.get("id", ""))
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag == "link" and values.get("rel") not in {"canonical", "prev", "next"}:
            self.loads.append(values["href"])
        if (name := LOADED.get(tag)) in values:
            self.loads.append(values[name or ""])
        if tag == "p":
            self._inside = True
            self.paragraphs.append("")
        elif tag == "br":
            self.handle_data("\n")

    @override
    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside and tag != "p"

    @override
    def handle_data(self, data: str) -> None:
        if self._inside:
            self.paragraphs[-1] += data


@cache
def parsed(path: Path) -> Page:
    return Page(path.read_text())


def pages(site: Path) -> Iterator[tuple[str, Page]]:
    return ((str(path.relative_to(site)), parsed(path)) for path in sorted(site.rglob("*.html")))


def foreign(page: Page) -> list[str]:
    return [one for one in page.loads if urlsplit(one).netloc or one.startswith("//")]


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    found = {name: foreign(page) for name, page in pages(site)}
    assert len(found) > 60
    assert not {name: urls for name, urls in found.items() if urls}
    styles = "".join(sheet.read_text() for sheet in site.rglob("*.css"))
    assert len(styles) > 10_000
    assert not re.findall(r"(?:@import\s*|url\()['\"]?(?:https?:)?//[^'\")]+", styles)


def test_a_page_that_loads_from_another_host_is_seen() -> None:
    page = Page(
        '<link rel="stylesheet" href="//fonts.example/a.css"><script src="https://cdn.example/x.js"></script><a href="https://e">'
    )
    assert foreign(page) == ["//fonts.example/a.css", "https://cdn.example/x.js"]


def test_every_link_of_the_site_leads_somewhere(site: Path) -> None:
    """Also of the pages of files of the repository, and of the theme's own."""
    lost = []
    for name, page in pages(site):
        here = site / name
        for link in (*page.links, *page.loads):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or name == "404.html":
                continue
            target = (here.parent / parts.path).resolve() if parts.path else here
            target = target / "index.html" if target.is_dir() else target
            if not target.exists() or (
                parts.fragment and target.suffix == ".html" and parts.fragment not in parsed(target).names
            ):
                lost.append((name, link))
    assert not lost


def test_a_broken_link_fails(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    config = tmp_path / "mkdocs.yml"
    config.write_text(
        f"INHERIT: {ROOT / 'mkdocs.yml'}\nhooks: ['{ROOT / 'release/site.py'}']\nnav: [start.md]\nplugins: []\n"
    )
    for link, told in (("gone.md", "gone.md"), ("#gone", "#gone"), ("../gone.py", "gone.py")):
        (docs / "start.md").write_text(f"# Home\n\n[there]({link})\n")
        done = build(tmp_path / "site", config)
        assert done.returncode, link
        assert told in done.stderr
    (docs / "start.md").write_text("# Home\n\n[there](#home)\n")
    assert build(tmp_path / "site", config).returncode == 0


def test_every_page_is_in_the_navigation() -> None:
    class Loader(yaml.SafeLoader):
        """Leaves out what names Python's functions."""

    Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)
    nav = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)["nav"]  # noqa: S506 (a subclass of the safe loader)
    named = re.findall(r"[\w/-]+\.md", str(nav))
    there = [str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")]
    assert sorted(named) == sorted(there)


def test_lists_and_tables_of_the_pages_are_such_on_the_site(site: Path) -> None:
    """Which the site's Markdown, unlike that of forges, wants an empty line before, and contents four columns in."""
    mark = re.compile(r"^ *(?:[*-] |\d+\. |\||```)", re.MULTILINE)
    found = [(name, text) for name, page in pages(site) for text in page.paragraphs if mark.search(text)]
    assert not found


def test_the_site_names_its_version_and_those_beside_it(site: Path) -> None:
    assert f"Tidemark {stated()}" in (site / "index.html").read_text()
    older = site.parent / "0.9"
    older.mkdir(exist_ok=True)
    assert build(site.parent).returncode == 0
    versions = json.loads((site.parent / "versions.json").read_text())
    assert [(one["version"], one["aliases"]) for one in versions] == [(VERSION, ["latest"]), ("0.9", [])]
    assert f"url={VERSION}/index.html" in (site.parent / "index.html").read_text()


def test_the_search_knows_the_pages(site: Path) -> None:
    found = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    places = {one["location"].partition("#")[0] for one in found}
    assert {"quick-start.html", "api/reading.html", "faq.html"} <= places
    assert not [place for place in places if place.startswith("repository/deploy/policies")]


def named_by_keys() -> set[str]:
    """The folders and objects that the code's key functions name: of a cluster, of a topic, of a table."""
    code = (ROOT / "include" / "tidemark" / "formats" / "keys.py").read_text()
    of_cluster = re.findall(r"_under\(['\"](_\w+)['\"]\)", code)
    of_topic = [name.removesuffix(".json") for name in re.findall(r"_state\(\s*\"([a-z.]+)\"", code)]
    return {*of_cluster, *of_topic, *re.findall(r"[}/](_iceberg|_SUCCESS|__quarantine)\b", code)}


def named_by_the_picture(text: str) -> set[str]:
    """The names in the boxes of the picture of all objects."""
    boxes = re.findall(r"\[\"<b>[^<]*</b>(.*?)\"\]", text.partition("\n## All objects")[2])
    return {name for box in boxes for name in re.split(r"<br>| ", box) if name}


def test_the_picture_of_all_objects_has_the_names_of_the_code() -> None:
    named = named_by_the_picture((ROOT / "docs" / "diagrams.md").read_text())
    stored = {*get_args(SegmentFileKind), MANIFEST_EXTENSION} - {"snapshot"}
    segment = {f".{extension}" for extension in stored} | {WATERMARK_NAME}
    table = {"dt=…/*.parquet", "_delta_log"}
    assert named == named_by_keys() | segment | table
    assert len(named) > 40


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    """The site's address on this machine, as a plain server of files serves it."""
    handler = partial(QuietHandler, directory=str(site.parent))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/{site.name}"
        server.shutdown()
        thread.join()


class QuietHandler(SimpleHTTPRequestHandler):
    """Writes no log."""

    @override
    def log_message(self, format: str, *args: object) -> None:
        pass


def test_a_browser_shows_every_page_in_three_widths(
    starts_browser: None, site: Path, address: str, tmp_path: Path
) -> None:
    """No page is wider than its window, each diagram is drawn, and nothing that a page wants is missing."""
    fits = "return document.documentElement.scrollWidth <= innerWidth"
    with Browser(tmp_path / "browser") as browser:
        for name in (name for name, _ in pages(site) if not name.startswith(("404", "repository/"))):
            browser.get(f"{address}/{name}")
            for width in (1280, 768, 390):
                browser.set_width(width)
                browser.wait(lambda: browser.run(fits), what=f"{name} to fit {width} px")
        browser.set_width(1280)
        for preferred, scheme in (("light", "default"), ("dark", "slate")):
            browser.prefer(prefers_color_scheme=preferred)
            browser.get(f"{address}/diagrams.html")
            browser.wait(lambda: len(browser.all("div.mermaid")) == 4, what="four diagrams")
            browser.first(f"body[data-md-color-scheme={scheme}]")
        browser.first(".md-version__current", text=VERSION)
        browser.click(".md-search__input")
        browser.press(*"erasure")
        browser.first(".md-search-result__link", text="Erasure")
        assert browser.console() == []


def test_each_answer_has_its_proof_and_each_kind_of_people_five_pages() -> None:
    docs = ROOT / "docs"
    _, *answers = (docs / "faq.md").read_text().split("\n## ")
    assert len(answers) > 12
    assert not [one.splitlines()[0] for one in answers if not re.search(r"^\*Proof:\* .*\]\(", one, re.MULTILINE)]
    rows = {page.name: re.findall(r"^\| \[", page.read_text(), re.MULTILINE) for page in docs.glob("for-*.md")}
    assert {name: len(found) for name, found in rows.items()} == dict.fromkeys(rows, 5)
    assert len(rows) == 4
