"""The parser and the state table that a topic's records need: from a person's hints, else from the sample."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

import pyarrow as pa

from tidemark.config import hint
from tidemark.errors import ConfigError
from tidemark.onboarding.detection import Detected, JsonColumnFound, infer_changes, infer_columns
from tidemark.onboarding.facts import Sample, TopicFacts
from tidemark.onboarding.options import Format
from tidemark.parsers.confluent_framing import split_frame, split_message
from tidemark.parsers.json.document import document
from tidemark.parsers.row_parser import RefusedRecord
from tidemark.parsers.schema_registry import SchemaKind, SchemaRegistry, Written
from tidemark.parsers.settings import Registry
from tidemark.topics import TopicSettings

_KINDS: Final[dict[SchemaKind, Format]] = {"AVRO": "avro", "JSON": "json", "PROTOBUF": "protobuf"}


class ProposalHints(NamedTuple):
    """A person's hints about the records. Paths, and a registry's name, are as the topics file would have them."""

    format: Format | None = None
    schema: str | None = None
    descriptors: str | None = None
    message: str | None = None
    registry: str | None = None
    subject: str | None = None
    misfits: Literal["quarantine", "land"] | None = None


class ParserProposal(NamedTuple):
    """``settings`` are the topic's ``parser``, None for bytes; ``inferred`` are columns of JSON without a schema.

    With ``changes`` they are those of Debezium's envelope.
    """

    settings: dict[str, Any] | None
    inferred: tuple[JsonColumnFound, ...] = ()
    notes: tuple[str, ...] = ()
    changes: bool = False


def propose_parser(
    topic: str, detected: Detected, sample: Sample | None, hints: ProposalHints, registries: Mapping[str, Registry]
) -> ParserProposal:
    """The parser, without an event time; ``registries`` are those of the topics file.

    Raises:
        ConfigError: the records' format is not known; names the option that would state it.
        RegistryUnavailable: the registry does not answer.
    """
    if hints.registry is not None and hints.format != "bytes":
        if hints.registry not in registries:
            known = hint(hints.registry, registries)
            rule = f"{hints.registry} is not one of the `registries` of the topics file; {known}; add it there first"
            raise ConfigError("--registry", [("", rule)])
        return _registered(topic, detected, sample, hints, registries[hints.registry])
    chosen = hints.format or _format(topic, detected, hints)
    if chosen == "json":
        return _json(topic, detected, sample, hints)
    if chosen == "avro":
        if hints.schema is None:
            raise _unclear(topic, "--format avro needs the table's schema: --schema FILE, or --registry NAME")
        return ParserProposal(_with_misfits({"kind": "avro", "schema": hints.schema}, hints))
    if chosen == "protobuf":
        if hints.descriptors is None or hints.message is None:
            raise _unclear(topic, "Protobuf needs --descriptors FILE and --message NAME, or --registry NAME")
        settings = {"kind": "protobuf", "descriptors": hints.descriptors, "message": hints.message}
        return ParserProposal(_with_misfits(settings, hints))
    note = (
        f"values are kept as bytes: they look like {detected.shape}" if detected.values else "values are kept as bytes"
    )
    return ParserProposal(None, notes=(note,))


def with_times(proposal: ParserProposal, units: Mapping[str, str | None]) -> ParserProposal:
    """``proposal`` with columns of whole numbers as times: ``units`` has those that count since 1970, by name."""
    if proposal.settings is None or not proposal.inferred:
        return proposal
    columns = tuple(
        column._replace(kind=f"timestamp({units[column.name]})")
        if column.kind == "int64" and units.get(column.name)
        else column
        for column in proposal.inferred
    )
    settings = {**proposal.settings, "columns": [column.settings for column in columns]}
    return proposal._replace(settings=settings, inferred=columns)


def propose_state(
    topic: TopicSettings, facts: TopicFacts | None, sample: Sample | None, proposal: ParserProposal, columns: pa.Schema
) -> dict[str, Any] | None:
    """The ``state`` of a topic whose values become ``columns``; None if it needs no state table, or cannot have one.

    It gets one if each record of the sample has a key, and Kafka compacts the topic, or its values are Debezium's.
    """
    if topic.state is not None or sample is None or not len(sample.rows) or sample.rows.column("kafka_key").null_count:
        return None
    kept = {"key", "timestamp", "value"} <= {*topic.keep}
    types = {field.name: field.type for field in columns}
    nested = types.get("op") == pa.string() and isinstance(types.get("after"), pa.StructType)
    if proposal.changes or nested:
        return {"envelope": "debezium"} if kept else None
    compacted = facts is not None and facts.compacted
    return {} if compacted and kept else None


def _format(topic: str, detected: Detected, hints: ProposalHints) -> Format:
    if hints.schema is not None:
        return "avro"
    if hints.descriptors is not None:
        return "protobuf"
    if not detected.values:
        raise _unclear(topic, "has no record that shows its format; produce some, or state --format")
    if detected.shape == "json":
        return "json"
    if detected.framing == "confluent":
        numbers = ", ".join(map(str, list(detected.numbers)[:5]))
        raise _unclear(topic, f"values have Confluent's framing (schemas {numbers}): give --registry NAME")
    if detected.shape in {"text", "json value", "avro container", "empty"}:
        return "bytes"
    if detected.shape == "protobuf":
        rule = "values look like Protobuf: give --descriptors FILE and --message NAME, or state --format"
        raise _unclear(topic, rule)
    raise _unclear(topic, "the format of its values is not recognized: state --format, with --schema FILE for Avro")


def _json(topic: str, detected: Detected, sample: Sample | None, hints: ProposalHints) -> ParserProposal:
    documents = []
    for value in sample.values if sample is not None else ():
        try:
            content = split_frame(value)[1] if value is not None and detected.framing == "confluent" else value
            documents += [document(content)] if content is not None else []
        except RefusedRecord:
            continue  # counted as refused when the parser is tried
    changes = infer_changes(documents)
    columns, left_out = changes or infer_columns(documents)
    if not columns:
        raise _unclear(topic, "the sample has no JSON object with a field, so there are no columns; state --format")
    settings: dict[str, Any] = {"kind": "json", "columns": [column.settings for column in columns]}
    if detected.framing == "confluent":
        settings["framing"] = "confluent"
    notes = tuple(f"{name} {why}, and is left out" for name, why in left_out.items())
    return ParserProposal(_with_misfits(settings, hints), columns, notes, changes=changes is not None)


def _registered(
    topic: str, detected: Detected, sample: Sample | None, hints: ProposalHints, registry: Registry
) -> ParserProposal:
    if detected.values and detected.framing != "confluent":
        rule = "values do not have Confluent's framing, so they name no schema of a registry; leave --registry out"
        raise _unclear(topic, rule)
    kind, written = _written(topic, detected, hints, registry)
    settings: dict[str, Any] = {
        "kind": kind,
        "framing": "confluent",
        "schema": {"registry": hints.registry, "subject": hints.subject or f"{topic}-value"},
    }
    if kind == "protobuf":
        settings["message"] = hints.message or _message(topic, sample, written)
    return ParserProposal(_with_misfits(settings, hints))


def _written(topic: str, detected: Detected, hints: ProposalHints, registry: Registry) -> tuple[Format, Written | None]:
    """The schema that most records name, with its kind; the kind of the hints if no record names a schema."""
    if not detected.numbers:
        if hints.format is None:
            raise _unclear(topic, "has no record that names a schema: state --format avro, json or protobuf")
        return hints.format, None
    number = next(iter(detected.numbers))
    reasons = []
    for kind, format_ in _KINDS.items():
        if hints.format in {None, format_}:
            schema = SchemaRegistry(registry, kind, brief=True).find([number])[number]
            if isinstance(schema, Written):
                return format_, schema
            reasons.append(str(schema))
    raise _unclear(topic, f"most records name schema {number}, which {reasons[-1]}; check --registry and --format")


def _message(topic: str, sample: Sample | None, written: Written | None) -> str:
    """The full name of a message: that of the first record that names one."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.message import DecodeError

    for value in sample.values if sample is not None and written is not None else ():
        try:
            indexes, _ = split_message(split_frame(value or b"")[1])
            file = FileDescriptorProto.FromString(base64.b64decode(written.texts[-1] if written else ""))
            first, *inner = indexes
            at = file.message_type[first]
            names = [*([file.package] if file.package else []), at.name]
            for index in inner:
                at = at.nested_type[index]
                names.append(at.name)
        except (RefusedRecord, DecodeError, ValueError, IndexError):
            continue
        return ".".join(names)
    raise _unclear(topic, "no record names its message: give --message NAME")


def _with_misfits(settings: dict[str, Any], hints: ProposalHints) -> dict[str, Any]:
    return settings | ({"misfits": hints.misfits} if hints.misfits else {})


def _unclear(topic: str, rule: str) -> ConfigError:
    return ConfigError(topic, [("", rule)])
