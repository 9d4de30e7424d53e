"""Adds a topic to the text of a topics file. Comments, order and quotes stay as they are.

A list of topics in block style gets lines, and no other line changes. A list in flow style (``topics: [...]``) is
written again by ruamel.yaml, which keeps comments.
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
