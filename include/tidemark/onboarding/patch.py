"""The change of the topics file as a patch, in place, or as a commit on a branch of its own."""

from __future__ import annotations

import difflib
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tidemark.errors import ConfigError

_GIT: Final = "git"
_NONE: Final = "0" * 40
"""The value that ``git update-ref`` takes for a branch that must not exist yet."""


class FileChange(NamedTuple):
    """A text file, with its content before and after."""

    path: Path
    before: str
    after: str

    def patch(self) -> str:
        """A unified diff that ``git apply`` and ``patch -p1`` take at the top of the repository, if there is one."""
        top = _top(self.path)
        resolved = self.path.resolve()
        name = (resolved.relative_to(top) if top else Path(self.path.name)).as_posix()
        lines = difflib.unified_diff(
            self.before.splitlines(keepends=True), self.after.splitlines(keepends=True), f"a/{name}", f"b/{name}"
        )
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)

    def write(self) -> None:
        """Replace the file at once. Raises ConfigError if it has changed since it was read."""
        self._check_unchanged(self.path.read_bytes().decode(), "has changed meanwhile; run it again")
        path = self.path.resolve()  # a link stays one
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
                file.write(self.after)
            Path(name).chmod(path.stat().st_mode & 0o777)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    def commit(self, branch: str, message: str, needed: Sequence[Path] = ()) -> str:
        """Make a commit of this change alone on the new ``branch``, from HEAD; return its id.

        Neither the working tree nor the index changes. ``needed`` are files that the change refers to.

        Raises:
            ConfigError: there is no repository, the branch exists, a file differs from HEAD, or git fails.
        """
        top = _top(self.path)
        if top is None:
            raise ConfigError("--branch", [("", f"{self.path} is not in a git repository; use --patch or --write")])
        _git(top, ["check-ref-format", "--branch", branch])
        name = self.path.resolve().relative_to(top).as_posix()
        self._check_unchanged(_git(top, ["show", f"HEAD:{name}"]), "differs from HEAD; commit it first")
        for path in needed:
            _check_committed(top, path)
        mode = _git(top, ["ls-tree", "HEAD", "--", name]).split()[0]
        with tempfile.TemporaryDirectory() as folder:
            index = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
            _git(top, ["read-tree", "HEAD"], index)
            blob = _git(top, ["hash-object", "-w", "--stdin"], given=self.after).strip()
            _git(top, ["update-index", "--cacheinfo", f"{mode},{blob},{name}"], index)
            tree = _git(top, ["write-tree"], index).strip()
        commit = _git(top, ["commit-tree", tree, "-p", "HEAD", "-F", "-"], given=message).strip()
        _git(top, ["update-ref", f"refs/heads/{branch}", commit, _NONE])
        return commit

    def _check_unchanged(self, content: str, rule: str) -> None:
        if content != self.before:
            raise ConfigError(str(self.path), [("", rule)])


def _check_committed(top: Path, path: Path) -> None:
    name = path.resolve()
    if not name.is_relative_to(top):
        raise ConfigError(str(path), [("", f"is outside the repository {top}, so a branch cannot contain it")])
    blob = _git(top, ["hash-object", "--", str(name)]).strip()
    listed = _git(top, ["ls-tree", "HEAD", "--", name.relative_to(top).as_posix()]).split()
    if len(listed) < 3 or listed[2] != blob:
        raise ConfigError(
            str(path), [("", "is not in HEAD, or differs from it, and the topic needs it; commit it first")]
        )


def _top(path: Path) -> Path | None:
    """The top of the repository of ``path``; None if it is in none, or if there is no git."""
    try:
        done = _run(["rev-parse", "--show-toplevel"], path.resolve().parent, {}, None)
    except FileNotFoundError:
        return None
    return Path(done.stdout.strip()).resolve() if done.returncode == 0 else None


def _git(top: Path, arguments: Sequence[str], more: Mapping[str, str] | None = None, given: str | None = None) -> str:
    done = _run(arguments, top, more or {}, given)
    if done.returncode:
        message = " ".join((done.stderr or done.stdout).split())
        raise ConfigError("--branch", [(f"git {arguments[0]}", f"failed: {message or 'git gave no reason'}")])
    return done.stdout


def _run(
    arguments: Sequence[str], folder: Path, more: Mapping[str, str], given: str | None
) -> subprocess.CompletedProcess[str]:
    """Git's result, with the ends of lines unchanged."""
    environment, content = {**os.environ, **more}, None if given is None else given.encode()
    done = subprocess.run(
        [_GIT, *arguments], cwd=folder, env=environment, input=content, capture_output=True, check=False
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())
