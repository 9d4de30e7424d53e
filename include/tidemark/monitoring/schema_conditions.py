"""Conditions of a schema that a topic follows: changes that wait for a person, and a registry that is silent."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from tidemark.formats.table.schema_state import SchemaState
from tidemark.monitoring.incidents import Condition, in_utc
from tidemark.topics import TopicSettings

REGISTRY_PATIENCE: Final = timedelta(minutes=10)


def of(topic: TopicSettings, state: SchemaState) -> Iterator[Condition]:
    """The conditions of ``topic``, which follows the schema in ``state``."""
    name = f"{topic.cluster}/{topic.topic}"
    options = f"--topics FILE --cluster {topic.cluster} --topic {topic.topic}"
    proposal = state.proposal
    if proposal is not None and proposal.version != state.dismissed:
        rebuild = f"spark-submit spark/jobs/rebuild.py {options} --all --schema {proposal.version}"
        mend = f"{rebuild} makes all rows so (or tidemark_backfill in mode schema); --compare shows which rows change"
        if not proposal.can_be_rebuilt:
            mend = "register a version that fits, or give the topic another table"
        yield Condition(
            kind="schema",
            key=f"schema/{name}",
            cluster=topic.cluster,
            topic=topic.topic,
            since=proposal.at,
            title=f"{name}: version {proposal.version} of {state.subject} does not fit the table",
            text="; ".join(f"{change.path}: {change.detail}" for change in proposal.changes),
            likely="a producer has registered it; what fits lands, and records that cannot be read are in quarantine",
            mend=f"{mend}; tidemark schema dismiss {topic.topic} --version {proposal.version} leaves it as it is",
            fact=str(proposal.version),
        )
    if state.unanswered_since is not None:
        yield Condition(
            kind="schema",
            key=f"schema/{name}/registry",
            cluster=topic.cluster,
            topic=topic.topic,
            since=state.unanswered_since,
            title=f"{name}: the registry does not say which schema is the newest",
            text=f"of {state.subject} since {in_utc(state.unanswered_since)}: {state.reason}",
            likely="the registry does not answer, refuses, or has removed the subject; the schema stays as it is",
            mend="see parser.schema of the topic, and the registry's own log",
            patience=REGISTRY_PATIENCE,
        )
