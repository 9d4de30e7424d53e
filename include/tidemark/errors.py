"""The one tree of errors.

* TidemarkError
  x ConfigError           a file that a person wrote is wrong: file, field, rule
  x FormatError           an object in the store or a file of the broker does not parse: name, field, rule
    + SegmentError        ... and it is a log segment: also the byte position and offset of the bad batch
    + LaterFormat         ... because a later version of Tidemark wrote it: it is whole, and must not be replaced
    + AbortsUnreadable    ... and it lists a segment's aborted transactions: without it no record of them is certain
  x StoreError            the store did not do as requested
    + NotFound            the object is not there
    + PreconditionFailed  If-Match or If-None-Match did not hold: somebody else was there first
    + Refused             the store will not do it until a person acts
      + AccessDenied      ... the credentials or the policy do not allow it
      + BucketMissing     ... there is no such bucket
    + UnknownOutcome      no answer, or one that proves nothing: the request may or may not have taken effect
      + SlowDown          ... because the store gets too many requests
  x AirflowError          Airflow's REST API refused, or did not answer
  x BrokerError           Kafka's brokers refused, or did not answer
  x RegistryUnavailable   a schema could not be fetched; the task is run again
  x SparkUnavailable      Spark did not start, or did not answer
  x TaskFailed            a task of Spark's failed for good, with one of these errors in the worker
  x ParserError           a parser broke its promise, and no row is the cause
  x ContinuityError       an offset is missing, or is claimed twice
    + GapError            ... and the gap is known: the offsets that are missing, and why
    + OutOfRange          ... because older records are removed, or nothing is there yet
    + StateStopped        ... so a state table keeps its last commit until a person acts
  x NeverSeen             no agent was ever seen for a topic: its name or place is wrong, or no agent runs
  x WakeupError           a consumer's `wakeup` was called: nothing is wrong
  x PublishError          a commit to a table was not made
    + StaleRun            ... because the table has moved on since the run was planned
    + TableTampered       ... because somebody changed the table behind Tidemark's back
  x MirrorError           a catalog does not list a table as it is
  x RestoreError          a restore into a topic cannot continue
    + ForeignRecords      ... because the target holds records of another writer
    + NotEqual            ... because the target does not hold the restored records

Each message names the file or object, the offset or field, the rule that is broken, and what to do.
A failed outcome and an unknown one are different things: only :class:`UnknownOutcome` may have taken effect.
"""

from __future__ import annotations


class TidemarkError(Exception):
    """Base of all errors that Tidemark raises on purpose."""


class ConfigError(TidemarkError):
    """A configuration file is wrong; command lines exit with code 2.

    ``problems`` has one entry per broken rule: (field path such as ``topics.orders.lateness``, the rule in words).
    """

    def __init__(self, source: str, problems: list[tuple[str, str]]) -> None:
        self.source = source
        self.problems = problems
        lines = [f"{source}: {field}: {rule}" if field else f"{source}: {rule}" for field, rule in problems]
        super().__init__("\n".join(lines))


class FormatError(TidemarkError):
    """Bytes that do not follow their format: ``name`` is the object's key or the file's path."""

    def __init__(self, name: str, rule: str) -> None:
        self.name = name
        self.rule = rule
        super().__init__(f"{name}: {rule}")


class SegmentError(FormatError):
    """A log segment breaks the record-batch format at ``position`` (bytes), where ``offset`` was expected."""

    def __init__(self, name: str, position: int, offset: int, rule: str) -> None:
        super().__init__(name, f"at byte {position}, offset {offset}: {rule}")
        self.position = position
        self.offset = offset
        self.detail = rule


class LaterFormat(FormatError):
    """An object of a later format than this version reads. It is not damaged, so this version must not replace it.

    It is a FormatError because many readers hold back what they cannot read, and go on. The few writers let it pass.
    """


class AbortsUnreadable(FormatError):
    """A segment's ``.txnindex`` is missing, damaged, or another than its manifest describes; its partition waits."""


class StoreError(TidemarkError):
    """The store did not do as requested with ``key``."""

    def __init__(self, key: str, reason: str) -> None:
        self.key = key
        self.reason = reason
        super().__init__(f"{key}: {reason}")


class NotFound(StoreError):
    """There is no object under this key."""


class PreconditionFailed(StoreError):
    """The object's state is not the one that the request was conditional on."""


class Refused(StoreError):
    """The store refuses this until a person acts; the request itself is right."""


class AccessDenied(Refused):
    """The credentials are wrong, or the policy does not allow the request."""


class BucketMissing(Refused):
    """There is no such bucket: nothing is known about any key in it."""

    def __init__(self, key: str) -> None:
        super().__init__(key, "the bucket does not exist; create it, or correct its name in the configuration")


class UnknownOutcome(StoreError):
    """A request that may or may not have taken effect: read the object back before deciding anything."""


class SlowDown(UnknownOutcome):
    """The store gets more requests than it serves at the moment: send fewer."""


class AirflowError(TidemarkError):
    """Airflow's REST API refused with ``status``, or did not answer (None)."""

    def __init__(self, status: int | None, reason: str) -> None:
        self.status = status
        super().__init__(reason)


class BrokerError(TidemarkError):
    """Kafka's brokers refused, or did not answer; the cause is kafka-python's error."""


class RegistryUnavailable(TidemarkError):
    """A schema could not be fetched; nothing is known of the rows that name it, so the task is run again."""

    def __init__(self, url: str, reason: str) -> None:
        self.url = url
        super().__init__(f"{url}: {reason}; the run is tried again, or run it when the registry answers")


class SparkUnavailable(TidemarkError):
    """Spark did not start, or did not answer: nothing was done."""


class TaskFailed(TidemarkError):
    """A task of Spark's failed as often as it is tried; the message is the worker's."""


class ParserError(TidemarkError):
    """A parser broke its promise, as a custom function may; no row is the cause."""


class ContinuityError(TidemarkError):
    """The offsets of a partition do not join up."""


class GapError(ContinuityError):
    """The offsets ``[start, end)`` of a partition are missing in the store, for ``reason``."""

    def __init__(self, topic: str, partition: int, start: int, end: int, reason: str) -> None:
        self.topic = topic
        self.partition = partition
        self.start = start
        self.end = end
        self.reason = reason
        cure = "have an operator look for them"
        if reason == "remote_tier":
            cure = "read them from Kafka, whose own remote tier has them: a consumer in a preferred mode does"
        super().__init__(
            f"{topic}-{partition}: offsets {start} to {end - 1} are missing ({reason}); "
            f"skip gaps, seek to {end}, or {cure}"
        )


class OutOfRange(ContinuityError):
    """The remote tier has no offset ``offset`` of a partition: it holds ``[start, end)``."""

    def __init__(self, topic: str, partition: int, offset: int, start: int, end: int) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.start = start
        self.end = end
        super().__init__(
            f"{topic}-{partition}: offset {offset} is not in the remote tier, which has {start} to {end - 1}; "
            f"read from {start} on, or elsewhere"
        )


class StateStopped(ContinuityError):
    """A state table cannot follow its topic's table, and keeps its last commit until a person acts.

    ``place`` is the (incarnation, partition, offset) of the record that it stops at, None if no record is the cause.
    """

    def __init__(self, message: str, place: tuple[int, int, int] | None = None) -> None:
        self.place = place
        super().__init__(message)


class NeverSeen(TidemarkError):
    """No agent has ever reported a topic, so its absence from the store proves nothing."""


class WakeupError(TidemarkError):
    """A consumer's ``wakeup`` was called: the call that waited, or would have waited, delivered nothing."""


class PublishError(TidemarkError):
    """A commit to a table was not made."""


class StaleRun(PublishError):
    """The table has moved on since the run was planned; plan again, nothing is lost."""


class TableTampered(PublishError):
    """The table was changed by something other than Tidemark; a person undoes it, or repairs the table from raw."""


class MirrorError(TidemarkError):
    """A catalog does not list a table as it is; the table itself is not touched, and the next try continues."""


class RestoreError(TidemarkError):
    """A restore stopped; the target's records and the progress stay, and the same command continues from there."""


class ForeignRecords(RestoreError):
    """Somebody else writes, or wrote, to the ``partition`` of the target: seen at its offset ``offset``."""

    def __init__(self, topic: str, partition: int, offset: int, observation: str) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        super().__init__(f"{topic}-{partition}: at offset {offset} of the target, {observation}")


class NotEqual(RestoreError):
    """A partition of the target does not hold the restored records."""
