"""Adds a topic to a topics file: to its text, and then as a patch, in place, or as a commit on a branch of its own.

Comments, order and quotes stay as they are. A list of topics in block style gets lines, and no other line changes. A
list in flow style (``topics: [...]``) is written again by ruamel.yaml, which keeps comments.
"""

from __future__ import annotations

import difflib
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import YAMLError
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from tidemark.config import parse
from tidemark.errors import ConfigError
from tidemark.topics import Deployment, TopicSettings

_WIDTH: Final = 4096
"""Columns of a line; ruamel.yaml must not break lines that a person has not broken."""

_GIT: Final = "git"
_NO_BRANCH: Final = "0" * 40
"""The value that ``git update-ref`` takes for a branch that must not exist yet."""


def with_topic(text: str, source: Path, topic: Mapping[str, Any]) -> str:
    """The ``text`` of the topics file ``source``, with ``topic`` as its last topic. It is not validated yet.

    Raises:
        ConfigError: the file is not a mapping, or its ``topics`` are not a list.
    """
    document = _document(text, source)
    topics = document.get("topics")
    if not isinstance(topics, CommentedSeq):
        raise ConfigError(str(source), [("topics", "must be a list of topics")])
    if topics.fa.flow_style() or not topics:
        return _rewritten(document, topics, topic)
    lines = text.splitlines(keepends=True)
    dash, end = _last_item(lines, topics)
    added = _rendered(topic, dash)
    if end and not lines[end - 1].endswith("\n"):
        lines[end - 1] += "\n"
    return "".join([*lines[:end], added, *lines[end:]])


def default_cluster(text: str) -> str | None:
    """The cluster of topics that name none in the valid ``text``; None if each names its own."""
    document = yaml.safe_load(text)
    cluster = (document.get("defaults") or {}).get("cluster") or document.get("cluster")
    return cluster if isinstance(cluster, str) else None


def checked(text: str, source: Path, before: Deployment, name: str, cluster: str) -> TopicSettings:
    """The settings of the added topic in ``text``, after the checks of ``tidemark config check``.

    Raises:
        ConfigError: the text breaks a rule, or differs from ``before`` in another topic.
    """
    after = parse(Deployment, text, str(source))
    kept = after.model_copy(update={"topics": after.topics[:-1]})
    if kept != before:
        raise ConfigError(str(source), [("topics", "the change would alter more than the new topic; add it by hand")])
    return after.topic(name, cluster)


def _document(text: str, source: Path) -> CommentedMap:
    try:
        document = _yaml().load(text)
    except YAMLError as error:
        raise ConfigError(str(source), [("", f"is not valid YAML: {type(error).__name__}")]) from None
    if not isinstance(document, CommentedMap):
        raise ConfigError(str(source), [("", "must be a mapping of keys to values")])
    return document


def _yaml() -> YAML:
    yaml_ = YAML(typ="rt")
    yaml_.preserve_quotes = True
    yaml_.width = _WIDTH
    yaml_.indent(mapping=2, sequence=4, offset=2)
    return yaml_


def _last_item(lines: Sequence[str], topics: CommentedSeq) -> tuple[int, int]:
    """(the column of the items' dashes, the number of the line behind the last item)."""
    first, _ = topics.lc.item(len(topics) - 1)
    dash = lines[first].index("-")
    end = first + 1
    for number in range(first + 1, len(lines)):
        content = lines[number].strip()
        indent = len(lines[number]) - len(lines[number].lstrip())
        if content and indent > dash:
            end = number + 1
        elif content and not content.startswith("#"):
            break
    return dash, end


def _rendered(topic: Mapping[str, Any], dash: int) -> str:
    """The lines of ``topic`` as an item of a list with its dashes in column ``dash``."""
    stream = StringIO()
    _yaml().dump(_commented(topic), stream)
    first, *others = stream.getvalue().splitlines()
    margin = " " * dash
    return "".join(f"{line}\n" for line in [f"{margin}- {first}", *(f"{margin}  {line}" for line in others)])


def _rewritten(document: CommentedMap, topics: CommentedSeq, topic: Mapping[str, Any]) -> str:
    topics.fa.set_block_style()
    topics.append(_commented(topic))
    stream = StringIO()
    _yaml().dump(document, stream)
    return stream.getvalue()


def _commented(value: Any, depth: int = 0) -> Any:
    """``value`` for ruamel.yaml: mappings in a list, such as columns, and deep ones take a line each."""
    if isinstance(value, Mapping):
        mapping = CommentedMap((key, _commented(item, depth + 1)) for key, item in value.items())
        if depth > 1:
            mapping.fa.set_flow_style()
        return mapping
    if isinstance(value, list | tuple):
        listed = CommentedSeq(_commented(item, depth + 2) for item in value)
        if all(not isinstance(item, Mapping) for item in value):
            listed.fa.set_flow_style()
        return listed
    return DoubleQuotedScalarString(value) if isinstance(value, str) and not _is_plain(value) else value


def _is_plain(text: str) -> bool:
    """True if the reader of topics files, which follows YAML 1.1, reads the bare ``text`` as this text."""
    try:
        read: object = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):
        return False
    return read == text


class FileChange(NamedTuple):
    """A text file, with its content before and after."""

    path: Path
    before: str
    after: str

    def patch(self) -> str:
        """A unified diff that ``git apply`` and ``patch -p1`` take at the top of the repository, if there is one."""
        top = _git_top(self.path)
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
        top = _git_top(self.path)
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
        _git(top, ["update-ref", f"refs/heads/{branch}", commit, _NO_BRANCH])
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


def _git_top(path: Path) -> Path | None:
    """The top of the repository of ``path``; None if it is in none, or if there is no git."""
    try:
        done = _run_git(["rev-parse", "--show-toplevel"], path.resolve().parent, {}, None)
    except FileNotFoundError:
        return None
    return Path(done.stdout.strip()).resolve() if done.returncode == 0 else None


def _git(top: Path, arguments: Sequence[str], more: Mapping[str, str] | None = None, given: str | None = None) -> str:
    done = _run_git(arguments, top, more or {}, given)
    if done.returncode:
        message = " ".join((done.stderr or done.stdout).split())
        raise ConfigError("--branch", [(f"git {arguments[0]}", f"failed: {message or 'git gave no reason'}")])
    return done.stdout


def _run_git(
    arguments: Sequence[str], folder: Path, more: Mapping[str, str], given: str | None
) -> subprocess.CompletedProcess[str]:
    """Git's result, with the ends of lines unchanged."""
    environment, content = {**os.environ, **more}, None if given is None else given.encode()
    done = subprocess.run(
        [_GIT, *arguments], cwd=folder, env=environment, input=content, capture_output=True, check=False
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())
