"""Adds a topic to the text of a topics file. Comments, order and quotes stay as they are.

A list of topics in block style gets lines, and no other line changes. One in flow style (``topics: [...]``) is written
again by ruamel.yaml, which keeps comments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, Final

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


def with_topic(text: str, source: Path, topic: Mapping[str, Any]) -> str:
    """``text``, of the topics file ``source``, with ``topic`` as its last topic. The result is not validated yet.

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
    """The cluster of topics that name none, by ``text``, which is valid; None if each names its own."""
    document = yaml.safe_load(text)
    found = (document.get("defaults") or {}).get("cluster") or document.get("cluster")
    return found if isinstance(found, str) else None


def checked(text: str, source: Path, before: Deployment, name: str, cluster: str) -> TopicSettings:
    """The settings of the added topic in ``text``, after what ``tidemark config check`` requires of the file.

    Raises:
        ConfigError: the text breaks a rule, or says something else of another topic than ``before``.
    """
    after = parse(Deployment, text, str(source))
    kept = after.model_copy(update={"topics": after.topics[:-1]})
    if kept != before:
        raise ConfigError(str(source), [("topics", "the change would alter more than the new topic; add it by hand")])
    return after.topic(name, cluster)


def _document(text: str, source: Path) -> CommentedMap:
    try:
        found = _yaml().load(text)
    except YAMLError as error:
        raise ConfigError(str(source), [("", f"is not valid YAML: {type(error).__name__}")]) from None
    if not isinstance(found, CommentedMap):
        raise ConfigError(str(source), [("", "must be a mapping of keys to values")])
    return found


def _yaml() -> YAML:
    found = YAML(typ="rt")
    found.preserve_quotes = True
    found.width = _WIDTH
    found.indent(mapping=2, sequence=4, offset=2)
    return found


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
    """The lines of ``topic`` as an item of a list whose dashes are in column ``dash``."""
    stream = StringIO()
    _yaml().dump(_commented(topic), stream)
    first, *others = stream.getvalue().splitlines()
    margin = " " * dash
    return "".join(f"{line}\n" for line in [f"{margin}- {first}", *(f"{margin}  {one}" for one in others)])


def _rewritten(document: CommentedMap, topics: CommentedSeq, topic: Mapping[str, Any]) -> str:
    topics.fa.set_block_style()
    topics.append(_commented(topic))
    stream = StringIO()
    _yaml().dump(document, stream)
    return stream.getvalue()


def _commented(value: Any, depth: int = 0) -> Any:
    """``value`` for ruamel.yaml: the mappings of a list, such as columns, and those far within take a line each."""
    if isinstance(value, Mapping):
        found = CommentedMap((key, _commented(one, depth + 1)) for key, one in value.items())
        if depth > 1:
            found.fa.set_flow_style()
        return found
    if isinstance(value, list | tuple):
        listed = CommentedSeq(_commented(one, depth + 2) for one in value)
        if all(not isinstance(one, Mapping) for one in value):
            listed.fa.set_flow_style()
        return listed
    return DoubleQuotedScalarString(value) if isinstance(value, str) and not _is_plain(value) else value


def _is_plain(text: str) -> bool:
    """Whether the reader of topics files, which goes by YAML 1.1, takes the bare ``text`` for this text."""
    try:
        found: object = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):
        return False
    return found == text
