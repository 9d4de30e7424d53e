"""Adoption of a registry's newest schema for a topic, as far as the table can take it.

Only jobs that land do so, before they plan. Other processes use the schema that was adopted last. The state is one
object, replaced under If-Match: of two jobs that see a newer schema, one adopts it and the other finds it adopted.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime
from typing import Final, NamedTuple

from tidemark.errors import ConfigError, NotFound, PreconditionFailed, RegistryUnavailable
from tidemark.formats.base import Version
from tidemark.formats.table.base_columns import PREFIX
from tidemark.formats.table.partitioning import HOUR
from tidemark.formats.table.schema_state import Definition, SchemaChange, SchemaState, SchemaStep, SchemaVersion
from tidemark.parsers.partition_columns import partitioned_parser
from tidemark.parsers.schema_registry import Registered, SchemaKind, SchemaRegistry, Unreadable, Written
from tidemark.parsers.settings import AvroParser, FollowingParser, ProtobufParser, RegistrySchema, followed_by
from tidemark.schemas.merge import Merge, read_state, with_definition
from tidemark.store.update import update
from tidemark.table.delta_table import TopicTable, open_delta
from tidemark.timestamps import utc_now
from tidemark.topics import TopicSettings

KINDS: Final[dict[str, SchemaKind]] = {"avro": "AVRO", "json": "JSON", "protobuf": "PROTOBUF"}

MAX_HISTORY: Final = 100

log = logging.getLogger(__name__)


def with_newest(topic: TopicSettings) -> TopicSettings:
    """``topic`` as if the newest schema that it follows was adopted as its first; nothing is written.

    Raises:
        RegistryUnavailable: the registry does not answer.
        ConfigError: it has no such subject, or none of its columns can be a table's; or the topic follows no subject.
    """
    followed = followed_by(topic.parser)
    if followed is None:
        raise ConfigError(f"topic {topic.cluster}/{topic.topic}", [("parser.schema", "names no registry and subject")])
    newest = SchemaRegistry(followed.registry, KINDS[topic.parser.kind], brief=True).newest(followed.subject)
    try:
        merge = _merged(topic, None, newest.written)
    except ValueError as error:
        rule = f"{followed.subject}, version {newest.version}, {error}"
        raise ConfigError(f"topic {topic.cluster}/{topic.topic}", [("parser.schema", rule)]) from error
    return with_definition(topic, _definition(newest, utc_now(), merge.definition, ()), followed.subject)


class Followed(NamedTuple):
    """A table with the newest schema, as far as it is adopted; ``adopted`` is true if this was done just now.

    ``waits`` is the version that a rebuild of the whole table would adopt, if any.
    """

    table: TopicTable
    adopted: bool = False
    waits: int | None = None


def follow(table: TopicTable) -> Followed:
    """``table`` with the newest schema, as far as it is adopted; unchanged if its topic follows no schema.

    A registry that does not answer, or has no readable schema, is noted, and changes nothing.

    Raises:
        RegistryUnavailable: the registry does not answer, and nothing was adopted yet.
        ConfigError: it has no such subject, or none of its columns can be a table's, and nothing was adopted yet.
    """
    topic = table.deployment.topic(table.topic.topic, table.topic.cluster)
    followed = followed_by(topic.parser)
    if followed is None:
        return Followed(table)
    stored = _state(table, topic)
    try:
        # Many topics may wait for this plan; the adopted schema is enough for now.
        registry = SchemaRegistry(followed.registry, KINDS[topic.parser.kind], brief=stored is not None)
        newest = registry.newest(followed.subject)
    except (RegistryUnavailable, ConfigError) as error:
        if stored is None:
            raise
        log.warning("%s: the schema stays as it is: %s", followed.subject, error)
        reason = " ".join(str(error).split())
        state = _updated(table, topic, lambda state, now: _unanswered(state, reason, now))
    else:
        if stored is None:
            _begin(table, topic, followed, newest)
        state = _updated(table, topic, lambda state, now: compared(topic, state, followed, newest, now))
    adopted = stored is not None and stored.value.adopted != state.adopted
    waits = state.proposal.version if state.proposal and state.proposal.can_be_rebuilt else None
    return Followed(table._replace(topic=with_definition(topic, state.adopted, state.subject)), adopted, waits)


def compared(
    topic: TopicSettings, state: SchemaState, followed: RegistrySchema, newest: Registered, now: datetime
) -> SchemaState:
    """``state`` after ``newest`` was read; unchanged if it has this version and nothing else waits or can be added.

    A version is judged again at each run until a person has dismissed it: a newer Tidemark may know better.
    """
    state = state.model_copy(update={"unanswered_since": None, "reason": ""})
    known = (state.newest.number, state.newest.version, state.subject)
    again = known == (newest.number, newest.version, followed.subject)
    if again and state.dismissed == newest.version:
        return state
    changes, adopted, wider = _judged(topic, state.adopted, newest, now, followed.subject)
    taken = _new(state, (change for change in changes if not change.waits))
    waiting = tuple(change for change in changes if change.waits)
    told = state.proposal.changes if state.proposal else ()
    if again and waiting == told and not any(change.kind == "added" for change in taken):
        return state
    after: dict[str, object] = {
        "subject": followed.subject,
        "newest": SchemaVersion(number=newest.number, version=newest.version, at=now),
        "proposal": _definition(newest, now, wider, waiting) if waiting else None,
    }
    before = state.proposal
    if before is not None and before.version == state.dismissed and {*waiting} <= {*before.changes}:
        after["dismissed"] = newest.version  # a person has seen all changes
    if adopted != state.adopted.data or taken or not waiting:
        step = _definition(newest, now, adopted, taken)
        after |= {"adopted": step, "history": _history(state.history, step)}
    return state.model_copy(update=after)


def adopted_proposal(state: SchemaState, version: int) -> SchemaState:
    """``state`` after a rebuild of the whole table with the proposal of ``version``; unchanged if there is none."""
    proposal = state.proposal
    if proposal is None or proposal.version != version:
        return state
    taken = tuple(change for change in proposal.changes if change.kind == "wider")
    left = tuple(change for change in proposal.changes if change.kind == "misfit")
    step = proposal.model_copy(update={"changes": taken})
    return state.model_copy(
        update={
            "adopted": step,
            "history": _history(state.history, step),
            "proposal": proposal.model_copy(update={"changes": left}) if left else None,
        }
    )


def proposed(table: TopicTable, version: int) -> TopicTable:
    """``table`` with the schema that waits for a rebuild of the whole table, or that such a rebuild has adopted.

    Raises:
        ConfigError: no schema of that version waits, or a rebuild can adopt no change of it.
    """
    topic = table.deployment.topic(table.topic.topic, table.topic.cluster)
    stored = _state(table, topic)
    proposal = stored.value.proposal if stored else None
    source = f"topic {topic.cluster}/{topic.topic}"
    if stored is not None and stored.value.adopted.version == version and not waits_for(stored.value, version):
        accepted = with_definition(topic, stored.value.adopted, stored.value.subject)
        return table._replace(topic=accepted, accepts=version)
    if stored is None or proposal is None or proposal.version != version:
        waits = f"version {proposal.version} does" if proposal else "none does"
        raise ConfigError(source, [("--schema", f"version {version} does not wait to be accepted, {waits}")])
    if not proposal.can_be_rebuilt:
        rule = "has changes that no rebuild can make: register another version, or name another table"
        raise ConfigError(source, [("--schema", f"version {version} {rule}")])
    return table._replace(topic=with_definition(topic, proposal, stored.value.subject), accepts=version)


def waits_for(state: SchemaState, version: int) -> bool:
    """True if the schema of ``version`` waits to be accepted."""
    return state.proposal is not None and state.proposal.version == version


def accept(table: TopicTable, version: int) -> None:
    """Record that the whole table was rebuilt with the proposal of ``version``."""
    topic = table.deployment.topic(table.topic.topic, table.topic.cluster)
    _updated(table, topic, lambda state, _: adopted_proposal(state, version))


def dismiss(table: TopicTable, version: int) -> SchemaState:
    """Stop alerts about the proposal of ``version``. Raises ConfigError if there is none."""
    topic = table.deployment.topic(table.topic.topic, table.topic.cluster)
    stored = _state(table, topic)
    proposal = stored.value.proposal if stored else None
    if proposal is None or proposal.version != version:
        rule = f"version {version} does not wait to be accepted"
        raise ConfigError(f"topic {topic.cluster}/{topic.topic}", [("--version", rule)])
    return _updated(table, topic, lambda state, _: state.model_copy(update={"dismissed": version}))


def revert(table: TopicTable, version: int) -> SchemaState:
    """Take back what was adopted after ``version``, and do not adopt the newest version again.

    The definition is made anew from the versions that were adopted up to then, which the registry still has.

    Raises:
        ConfigError: ``version`` is none that was adopted earlier, or cannot be read any more, or the table has columns
            that came later.
        RegistryUnavailable: the registry does not answer.
    """
    topic = table.deployment.topic(table.topic.topic, table.topic.cluster)
    source, followed, stored = f"topic {topic.cluster}/{topic.topic}", followed_by(topic.parser), _state(table, topic)
    history = stored.value.history if stored else ()
    kept = history[: max((at for at, step in enumerate(history, 1) if step.version == version), default=0)]
    if stored is None or followed is None or kept in ((), history) or len(history) == MAX_HISTORY:
        earlier = ", ".join(dict.fromkeys(str(step.version) for step in history[:-1])) or "none"
        raise ConfigError(source, [("--version", f"version {version} was not adopted earlier, but {earlier}")])
    found = SchemaRegistry(followed.registry, KINDS[topic.parser.kind]).find([step.number for step in kept])
    data: bytes | None = None
    for step in kept:
        written = found[step.number]
        if isinstance(written, Unreadable):
            rule = f"version {step.version} is schema {step.number}, which {written}"
            raise ConfigError(source, [("--version", rule)])
        data = _merged(topic, data, written, widen=step.can_be_rebuilt).definition
    assert data is not None, "a version was kept"
    last = Registered(kept[-1].number, kept[-1].version, Written(()))
    adopted = _definition(last, kept[-1].at, data, kept[-1].changes)
    earlier_topic = with_definition(topic, adopted, stored.value.subject)
    _check_columns(earlier_topic)
    _check_no_later(table, earlier_topic)

    def taken_back(state: SchemaState, now: datetime) -> SchemaState:
        newest = Registered(state.newest.number, state.newest.version, Written(()))
        change = SchemaChange(path=state.subject, kind="misfit", detail=f"was taken back to version {version}")
        proposal = _definition(newest, now, data, (change,))
        changed = {"adopted": adopted, "history": kept, "proposal": proposal, "dismissed": newest.version}
        return state.model_copy(update=changed)

    return _updated(table, topic, taken_back)


def _check_no_later(table: TopicTable, topic: TopicSettings) -> None:
    """Raise ConfigError if the table has columns that the parser of ``topic`` lacks."""
    delta = open_delta(table)
    known = set(partitioned_parser(topic.parser, topic.partition_by, topic.topic).columns.names)
    later = [] if delta is None else [field.name for field in delta.schema().fields if field.name not in known]
    later = [name for name in later if not name.startswith(PREFIX) and name not in {"dt", HOUR}]
    if later:
        rule = f"the table has the columns {', '.join(later)} by now: it keeps them, and their version"
        raise ConfigError(f"topic {topic.cluster}/{topic.topic}", [("--version", rule)])


def _state(table: TopicTable, topic: TopicSettings) -> Version[SchemaState] | None:
    """The adopted state, if it is of a parser of the same kind."""
    stored = read_state(table.store, table.keys)
    return stored if stored is not None and stored.value.kind == topic.parser.kind else None


def _updated(
    table: TopicTable, topic: TopicSettings, change: Callable[[SchemaState, datetime], SchemaState]
) -> SchemaState:
    """Apply ``change`` to the topic's existing state and the store's time."""
    now = table.store.now()

    def read() -> Version[SchemaState]:
        stored = _state(table, topic)
        if stored is None:
            raise NotFound(table.keys.schema, "was there a moment ago; run it again")
        return stored

    return update(table.store, table.keys.schema, read, lambda state: change(state, now), then="run it again")


def _begin(table: TopicTable, topic: TopicSettings, followed: RegistrySchema, newest: Registered) -> None:
    """Adopt the first schema, unless another process is faster. Raises ConfigError."""
    assert isinstance(topic.parser, FollowingParser)
    now = table.store.now()
    try:
        merge = _merged(topic, None, newest.written)
        taken = tuple(change for change in merge.changes if not change.waits)
        adopted = _definition(newest, now, merge.definition, taken)
        _check_columns(with_definition(topic, adopted, followed.subject))
    except ValueError as error:
        rule = f"{followed.subject}, version {newest.version}, {error}"
        raise ConfigError(f"topic {topic.cluster}/{topic.topic}", [("parser.schema", rule)]) from error
    waiting = tuple(change for change in merge.changes if change.waits)
    state = SchemaState(
        kind=topic.parser.kind,
        subject=followed.subject,
        adopted=adopted,
        history=_history((), adopted),
        newest=SchemaVersion(number=newest.number, version=newest.version, at=now),
        proposal=_definition(newest, now, merge.definition, waiting) if waiting else None,
    )
    of_another_kind = read_state(table.store, table.keys)
    etag = of_another_kind.etag if of_another_kind else None
    with suppress(PreconditionFailed):
        table.store.put(table.keys.schema, state.to_bytes(), if_match=etag, if_none_match=etag is None)


def _judged(
    topic: TopicSettings, adopted: Definition, newest: Registered, now: datetime, subject: str
) -> tuple[tuple[SchemaChange, ...], bytes, bytes]:
    """(changes in ``newest``, definition after their adoption, definition after a rebuild)."""
    try:
        merge = _merged(topic, adopted.data, newest.written)
        wide = merge
        if any(change.kind == "wider" for change in merge.changes):
            wide = _merged(topic, adopted.data, newest.written, widen=True)
        for merged in (merge, wide):
            made = _definition(newest, now, merged.definition, ())
            _check_columns(with_definition(topic, made, subject))
    except (ValueError, ConfigError) as error:
        whole = SchemaChange(path=subject, kind="misfit", detail=" ".join(str(error).split()))
        return (whole,), adopted.data, adopted.data
    return merge.changes, merge.definition, wide.definition


def _check_columns(topic: TopicSettings) -> None:
    """Raise ConfigError unless the columns of ``topic`` are valid for its table."""
    partitioned_parser(topic.parser, topic.partition_by, topic.topic)


def _merged(topic: TopicSettings, adopted: bytes | None, newest: Written, *, widen: bool = False) -> Merge:
    """The merge of two schemas. Raises ValueError if ``newest`` is not a schema of a table's rows."""
    if isinstance(topic.parser, AvroParser):
        from tidemark.schemas import avro_merge

        return avro_merge.merged(adopted, newest, widen=widen)
    if isinstance(topic.parser, ProtobufParser):
        from tidemark.schemas import protobuf_merge

        return protobuf_merge.merged(adopted, newest, topic.parser.message, widen=widen)
    from tidemark.schemas import json_columns

    return json_columns.merged(adopted, newest)


def _unanswered(state: SchemaState, reason: str, now: datetime) -> SchemaState:
    if state.unanswered_since is not None:
        return state
    return state.model_copy(update={"unanswered_since": now, "reason": reason})


def _new(state: SchemaState, changes: Iterable[SchemaChange]) -> tuple[SchemaChange, ...]:
    """The ``changes`` that are new: a column that was removed is missing in all later versions, too."""
    last = {change.path: change.kind for step in state.history for change in step.changes}
    return tuple(change for change in changes if change.kind != "removed" or last.get(change.path) != "removed")


def _definition(newest: Registered, now: datetime, data: bytes, changes: tuple[SchemaChange, ...]) -> Definition:
    definition = base64.b64encode(data).decode()
    return Definition(number=newest.number, version=newest.version, at=now, changes=changes, definition=definition)


def _history(before: tuple[SchemaStep, ...], step: SchemaStep) -> tuple[SchemaStep, ...]:
    made = SchemaStep(number=step.number, version=step.version, at=step.at, changes=step.changes)
    return (*before, made)[-MAX_HISTORY:]
