"""What the documentation's site does beside MkDocs, as its hooks: links, versions, pictures, the diagrams' script.

The pages of ``docs/`` are read on forges, too. There a link may lead to a file of the repository; on the site each such
file is a page below ``repository/``. A folder of versions, each with a site, has a ``versions.json`` as mike writes it.
"""

from __future__ import annotations

import json
import posixpath
import re
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parent.parent
COPIES: Final = "repository"
"""The folder of the site with files of the repository."""
MERMAID: Final = "assets/mermaid.js"
_COLOURS: Final = """\
<script>{
  const line = "var(--md-mermaid-sequence-message-line-color)";
  const colours = `[id$="-arrowhead"] path { fill: ${line}; stroke: none }
    [id$="-crosshead"] path { stroke: ${line} }
    .sectionTitle, .sectionTitle > tspan { fill: var(--md-mermaid-sequence-loop-fg-color) }`;
  const initialize = mermaid.initialize;
  mermaid.initialize = (settings) => initialize({ ...settings, themeCSS: settings.themeCSS + colours });
}</script>"""
"""What the theme does not colour: it knows the heads of arrows by ids that Mermaid no longer gives them."""

_LINK: Final = re.compile(r"(?<=\]\()(?![a-z]+:|[#/])([^)#\s]+)|(?<=src=\")(?![a-z]+:|/)([^\"#]+)(?=\")")
_PICTURE: Final = re.compile(
    r"<picture>\s*<source media=\"\(prefers-color-scheme: dark\)\" srcset=\"([^\"]+)\">\s*"
    r"<img src=\"([^\"]+)\" alt=\"([^\"]*)\">\s*</picture>"
)
_LANGUAGES: Final = {".Dockerfile": "dockerfile", ".py": "python", ".sh": "bash", ".service": "ini", ".timer": "ini"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Build into a folder of the version, below the configured one."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    config.site_dir = str(Path(config.site_dir) / version.rpartition(".")[0])
    config.copyright = f"Tidemark {version}"
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files of the repository that pages link to, those that these link to, and the diagrams' script."""
    waiting = [f"docs/{file.src_uri}" for file in files.documentation_pages()]
    seen: set[str] = set()
    while waiting:
        source = waiting.pop()
        for path in _linked(source):
            if path not in seen and not path.startswith("docs/"):
                seen.add(path)
                waiting += [path] if path.endswith(".md") else []
                files.append(File.generated(config, _on_site(path), content=_copy(path)))
    package = find_spec("mermaidx")
    assert package is not None, "requirements/mermaid.txt has it"
    assert package.origin is not None, "it is a package of files"
    script = str(Path(package.origin).parent / MERMAID)
    files.append(File.generated(config, MERMAID, abs_src_path=script))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links lead to pages of the site; and pictures follow its switch instead of the system's colours."""
    uri = page.file.src_uri
    source = uri.removeprefix(f"{COPIES}/") if uri.startswith(f"{COPIES}/") else f"docs/{uri}"

    def moved(match: re.Match[str]) -> str:
        path = _resolved(source, match[0])
        return match[0] if path is None else posixpath.relpath(_on_site(path), posixpath.dirname(uri) or ".")

    if not source.endswith(".md"):
        return markdown
    markdown = _PICTURE.sub(r"![\3](\1#only-dark)\n![\3](\2#only-light)", markdown)
    return _LINK.sub(moved, "\n".join(_indented(markdown.split("\n"))))


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Load Mermaid before the theme asks for it, and on pages with diagrams only."""
    if 'class="mermaid"' not in output:
        return output
    script = posixpath.relpath(MERMAID, posixpath.dirname(page.file.dest_uri) or ".")
    return output.replace("</head>", f'<script src="{script}"></script>{_COLOURS}</head>', 1)


def on_post_build(config: MkDocsConfig) -> None:
    """List the versions that lie beside this one, and lead from their folder to the newest."""
    folder = Path(config.site_dir).parent
    names = [one.name for one in folder.iterdir() if re.fullmatch(r"\d+\.\d+", one.name)]
    newest, *older = sorted(names, key=lambda name: [int(part) for part in name.split(".")], reverse=True)
    versions = [{"version": name, "title": name, "aliases": ["latest"] * (name == newest)} for name in (newest, *older)]
    (folder / "versions.json").write_text(json.dumps(versions) + "\n")
    refresh = f'<meta http-equiv="refresh" content="0; url={newest}/index.html">'
    (folder / "index.html").write_text(f"<!doctype html>\n<title>Tidemark</title>\n{refresh}\n")


def _indented(lines: list[str]) -> Iterator[str]:
    """Put what belongs to an item of a list four columns in, where Python-Markdown wants it."""
    width, fenced, loose = 4, False, False
    for line in lines:
        fenced ^= line.startswith("```")
        inner = line.startswith(" " * width)
        if item := re.match(r"(?:\d+\.|[*-]) ", line):
            if loose:
                yield ""
            width, loose = len(item[0]), False
        elif line and not inner:
            width, loose = 4, False
        loose |= not line
        yield " " * (4 - width) + line if inner and not fenced else line


def _linked(source: str) -> Iterator[str]:
    text = _text(source)
    return (path for match in _LINK.finditer(text) if (path := _resolved(source, match[0])) is not None)


def _text(source: str) -> str:
    path = ROOT / source
    return path.read_text() if path.is_file() else ""


def _resolved(source: str, link: str) -> str | None:
    """The path in the repository that ``link`` in the file ``source`` leads to; None if there is nothing."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    return path if not path.startswith("..") and (ROOT / path).exists() else None


def _on_site(path: str) -> str:
    """The source of the page, or the file, that the site has for a path of the repository."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"{COPIES}/{path}" if path.endswith((".md", ".png", ".svg")) else f"{COPIES}/{path}.md"


def _copy(path: str) -> str:
    """The page of a file or folder of the repository."""
    source = ROOT / path
    if path.endswith(".md"):
        return source.read_text()
    head = f"---\nsearch: {{exclude: true}}\n---\n# `{path}`\n\n"
    if source.is_dir():
        names = sorted(one.name for one in source.iterdir() if not one.name.startswith(("_", ".")))
        return head + "".join(f"* `{name}`\n" for name in names)
    language = _LANGUAGES.get(source.suffix, source.suffix.removeprefix("."))
    return f"{head}````{language}\n{source.read_text()}\n````\n"
