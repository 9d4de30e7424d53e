"""What the result of a test file depends on, as far as this tree holds it: named by a digest.

That is all of the product and of the build, and of the tests what the file names, directly or through what it names:
modules, files beside it, the conftest.py of its folders. So a mended test runs again without all the others. Documents
count for the files that mention one; files at the top of ``tests`` look at everything, so for them everything counts.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from tests.support.paths import ROOT

_MODULE = re.compile(r"\btests(?:\.\w+)+")
_BESIDE = re.compile(r"\b\w+\.py\b")
_DOCUMENT = re.compile(r"\.md\b|\"docs\"")


class Inputs:
    """Of the working tree at ``root`` as it is now, files included that git does not track yet."""

    def __init__(self, root: Path = ROOT) -> None:
        """Raises CalledProcessError where ``root`` is no git repository."""
        self._root = root
        self._blobs = _blobs(root)
        self.shared = _digest(blob for path, blob in self._blobs.items() if not _counts_by_name(path))
        """The digest of what counts for every test file."""
        self._tree = _digest(self._blobs.values())
        self._digests: dict[str, str] = {}
        self._named: dict[str, set[str]] = {}
        self._folders: defaultdict[str, list[str]] = defaultdict(list)
        for path in self._blobs:
            self._folders[path.rpartition("/")[0]].append(path)

    def digest(self, test_file: str) -> str:
        """The digest of what counts for a test file, named by its path from the root."""
        if test_file not in self._digests:
            self._digests[test_file] = self._find(test_file)
        return self._digests[test_file]

    def _find(self, test_file: str) -> str:
        if test_file not in self._blobs or str(PurePosixPath(test_file).parent) == "tests":
            return self._tree
        found: set[str] = set()
        todo = [test_file]
        while todo:
            path = todo.pop()
            if path not in found and path in self._blobs:
                found.add(path)
                todo += self._named_by(path)
        return _digest([self.shared, *(self._blobs[path] for path in sorted(found))])

    def _named_by(self, path: str) -> set[str]:
        if path not in self._named:
            self._named[path] = {one for one in self._names_in(path) if one in self._blobs}
        return self._named[path]

    def _names_in(self, path: str) -> Iterator[str]:
        for parent in PurePosixPath(path).parents:
            yield from (f"{parent}/conftest.py", f"{parent}/__init__.py")
        if not path.endswith(".py"):
            return
        text = (self._root / path).read_text(encoding="utf-8")
        for name in set(_MODULE.findall(text)):
            module = name.replace(".", "/")
            yield from (f"{module}.py", f"{module.rpartition('/')[0]}.py", *self._folders.get(module, ()))
        yield from (f"{path.rpartition('/')[0]}/{name}" for name in set(_BESIDE.findall(text)))
        if not path.startswith("tests/support/") and _DOCUMENT.search(text):
            yield from (one for one in self._blobs if one.endswith(".md"))


def _counts_by_name(path: str) -> bool:
    return path.endswith(".md") or (path.startswith("tests/") and path.endswith(".py"))


def _blobs(root: Path) -> dict[str, str]:
    """Git's name for the content of each file by its path, in order."""
    with tempfile.TemporaryDirectory(prefix="tidemark-index-") as folder:
        env = os.environ | {"GIT_INDEX_FILE": str(Path(folder, "index"))}

        def git(*arguments: str) -> str:
            command = ["git", *arguments]
            return subprocess.run(command, cwd=root, env=env, check=True, capture_output=True, text=True).stdout

        git("read-tree", "HEAD")
        git("add", "--all")
        lines = [line.partition("\t") for line in git("ls-files", "--stage", "-z").split("\0") if line]
        return dict(sorted((path, f"{state} {path}") for state, _, path in lines))


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
