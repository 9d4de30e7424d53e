"""The settings of a topic with the schema that was adopted for it."""

from __future__ import annotations

from tidemark.errors import ConfigError
from tidemark.formats.base import Version
from tidemark.formats.keys import TableKeys
from tidemark.formats.table.schema_state import Definition, SchemaState
from tidemark.parsers.settings import FollowingParser, SettingsFile, followed_by
from tidemark.store import Store
from tidemark.topics import TopicSettings


def read_state(store: Store, keys: TableKeys) -> Version[SchemaState] | None:
    """The schema adopted for a topic; None if there is none. Raises StoreError and FormatError."""
    return SchemaState.load_version_or_none(store, keys.schema)


def with_adopted(topic: TopicSettings, store: Store, keys: TableKeys) -> TopicSettings:
    """``topic`` with its adopted schema, if it follows one and has adopted any."""
    if followed_by(topic.parser) is None:
        return topic
    state = read_state(store, keys)
    if state is None or state.value.kind != topic.parser.kind:
        return topic
    return with_definition(topic, state.value.adopted, state.value.subject)


def with_definition(topic: TopicSettings, definition: Definition, subject: str) -> TopicSettings:
    """``topic``, which follows ``subject``, with ``definition``. Raises ConfigError if that cannot be read."""
    parser = topic.parser
    assert isinstance(parser, FollowingParser)
    name = f"{subject}, version {definition.version}"
    try:
        return topic.model_copy(update={"parser": parser.adopting(SettingsFile(name, definition.data))})
    except ValueError as error:
        raise ConfigError(f"topic {topic.cluster}/{topic.topic}", [("parser.schema", f"{name}: {error}")]) from error
