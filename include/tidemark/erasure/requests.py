"""What people write about erasure: one makes a request, and another approves it, or somebody withdraws it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from tidemark.config import hint
from tidemark.erasure.secret import Secret
from tidemark.errors import ConfigError, FormatError, NotFound, PreconditionFailed, TidemarkError
from tidemark.formats.keys import check_report
from tidemark.formats.raw.erasure import (
    DUE_AFTER,
    KEY_COLUMN,
    Approved,
    ErasureApproval,
    ErasureRequest,
    ErasureWithdrawal,
    NotApproved,
    PartitionEnd,
    SearchedTopic,
    StoredRequest,
    WantedValue,
)
from tidemark.formats.table.partitioning import names_of
from tidemark.raw_topic import RawTopic
from tidemark.storage import ClusterStore, Storage
from tidemark.store import StoreOptions, put_once
from tidemark.store.identity import identity
from tidemark.table.delta_table import TopicTable, committed_ledger
from tidemark.timestamps import utc_now
from tidemark.topics import Deployment, TopicSettings
from tidemark.words import plural


class NotAnotherPerson(TidemarkError):
    """Who wants to approve a request has made it."""


@dataclass(frozen=True, slots=True)
class ErasureFolder:
    """The requests for erasure of a cluster, and their approvals."""

    cluster: ClusterStore
    options: StoreOptions

    @classmethod
    def of(cls, deployment: Deployment, cluster: str) -> ErasureFolder:
        """The folder in the deployment's default store."""
        return cls(Storage(cluster, deployment.raw, deployment.store).cluster_store(), deployment.store)

    def request(
        self,
        searched: Sequence[SearchedTopic],
        through: Mapping[str, tuple[PartitionEnd, ...]],
        values: Iterable[bytes],
        secret: Secret,
        by: str,
        reason: str,
        due: date | None = None,
    ) -> ErasureRequest:
        """Write a request for the records with one of ``values`` below the ends ``through``.

        Without ``due`` it has 30 days.

        Raises:
            StoreError: the store failed; after UnknownOutcome it may have the request.
        """
        now = utc_now()
        wanted = (WantedValue(digest=secret.digest(value), probe=f"{secret.probe(value):08x}") for value in values)
        request = ErasureRequest(
            id=os.urandom(8).hex(),
            cluster=self.cluster.keys.cluster,
            topics=tuple(searched),
            values=tuple(sorted(wanted, key=lambda value: value.digest)),
            secret=secret.fingerprint,
            through=through,
            reason=reason,
            by=by,
            written_as=identity(self.options, self.cluster.store.url),
            at=now,
            due=due or (now + DUE_AFTER).date(),
        )
        put_once(self.cluster.store, self.cluster.keys.erasure(request.id, "request"), request.to_bytes())
        return request

    def approve(self, stored: StoredRequest, by: str, records: int | None) -> tuple[ErasureApproval, bool]:
        """Approve a request. Returns (the approval, whether it is new).

        Raises:
            NotAnotherPerson: ``by``, or the identity of this process in the store, has made the request.
            PreconditionFailed: the request has another approval, or was withdrawn.
            StoreError: the store failed.
        """
        approval = ErasureApproval(
            id=stored.request.id,
            request_sha256=stored.sha256,
            by=by,
            written_as=self.check(stored, by),
            records=records,
            at=utc_now(),
        )
        key = self.cluster.keys.erasure(stored.request.id, "approval")
        try:
            put_once(self.cluster.store, key, approval.to_bytes())
        except PreconditionFailed as error:
            kept = ErasureApproval.load(self.cluster.store, key)
            same = {"by", "records", "request_sha256"}
            if kept.model_dump(include=same) != approval.model_dump(include=same):
                rule = f"{kept.by} approved it at {kept.at:%Y-%m-%d %H:%M} UTC, with {kept.records or 'no'} records"
                raise PreconditionFailed(key, f"{rule}; an approval is final, so make another request") from error
            return kept, False
        return approval, True

    def withdraw(self, stored: StoredRequest, by: str, reason: str) -> ErasureWithdrawal:
        """Withdraw a request; returns the first withdrawal if there is one. Raises StoreError."""
        name = stored.request.id
        withdrawal = ErasureWithdrawal(
            id=name, reason=reason, by=by, written_as=identity(self.options, self.cluster.store.url), at=utc_now()
        )
        try:
            put_once(self.cluster.store, self.cluster.keys.erasure(name, "withdrawal"), withdrawal.to_bytes())
        except PreconditionFailed:
            return withdrawal_of(self.cluster, name) or withdrawal
        return withdrawal

    def check(self, stored: StoredRequest, by: str) -> str:
        """The identity of this process in the store.

        Raises:
            NotAnotherPerson: it cannot approve the request.
            PreconditionFailed: the request was withdrawn.
            StoreError: the store failed.
        """
        if (withdrawal := withdrawal_of(self.cluster, stored.request.id)) is not None:
            rule = f"{withdrawal.by} withdrew the request at {withdrawal.at:%Y-%m-%d %H:%M} UTC: make another"
            raise PreconditionFailed(self.cluster.keys.erasure(stored.request.id, "withdrawal"), rule)
        written_as = identity(self.options, self.cluster.store.url)
        if (objection := stored.objection(by, written_as)) is not None:
            raise NotAnotherPerson(f"request {stored.request.id}: {objection}")
        return written_as


def folders_of(deployment: Deployment, cluster: str | None) -> list[ErasureFolder]:
    """The folders of all clusters of the topics file, or of ``cluster``. Raises ConfigError if the file has none."""
    names = [name for name in deployment.clusters if cluster in {None, name}]
    if not names:
        rule = f"no topic belongs to a cluster {cluster}; {hint(str(cluster), deployment.clusters)}"
        raise ConfigError("the topics file", [("--cluster", rule)])
    return [ErasureFolder.of(deployment, name) for name in names]


def find_request(deployment: Deployment, cluster: str | None, name: str) -> tuple[ErasureFolder, StoredRequest]:
    """The request with the id ``name``, and its folder.

    Raises:
        NotFound: no cluster, or not this ``cluster``, has such a request.
        ConfigError, FormatError, StoreError: as :func:`folders_of` and :func:`read_request` raise them.
    """
    for folder in (folders := folders_of(deployment, cluster)):
        try:
            return folder, read_request(folder.cluster, name)
        except NotFound:
            continue
    raise NotFound(
        folders[0].cluster.keys.erasure(name, "request"), "there is no such request; see tidemark erase status"
    )


def summary(made: ErasureRequest) -> str:
    """A line about a request."""
    places = ", ".join(f"{made.cluster}/{searched.topic} {searched.column}" for searched in made.topics)
    when = f"{made.at:%Y-%m-%d %H:%M} UTC"
    return f"{plural(len(made.values), 'value')} of {places}, for {made.reason!r}, by {made.by} at {when}"


def ends_of(table: TopicTable) -> tuple[PartitionEnd, ...]:
    """The end of each partition of all incarnations: of what is stored, or is known to be committed in Kafka.

    Raises FormatError and StoreError.
    """
    raw, ledger = RawTopic(table), committed_ledger(table)
    ends = {state.key: state.next_offset for state in ledger.partitions}
    for key, entry in raw.vouched(ledger).items():
        ends[key] = max(ends.get(key, 0), entry.high_watermark)
    for part in raw.partitions(ledger):
        view = raw.view(part)
        ends[part.key] = max(ends.get(part.key, 0), view.end if view is not None else 0)
    return tuple(PartitionEnd(*key, end) for key, end in sorted(ends.items()))


def has_integers(topic: TopicSettings, column: str, *, confluent: bool) -> bool:
    """True if the values of ``column`` in the topic are integers.

    Raises:
        ConfigError: the topic has no such column, or its values cannot be compared, or are in paths.
    """
    import pyarrow as pa

    from tidemark.erasure.matcher import check_comparable
    from tidemark.parsers.base import column_at, no_rows
    from tidemark.parsers.partition_columns import partitioned_parser

    if column == KEY_COLUMN:
        return False
    place = f"topic {topic.cluster}/{topic.topic}"
    if confluent:
        raise ConfigError(place, [("--confluent", f"is about keys, and no part of the column {column}")])
    if column in names_of(topic.partition_by):
        rule = f"{column} is in partition_by, so paths and Delta's log have its values, which cannot be erased"
        raise ConfigError(place, [("--column", rule)])
    columns = partitioned_parser(topic.parser, topic.partition_by, topic.topic).columns
    try:
        kind = column_at(no_rows(columns, 0), column).type
    except ValueError as error:
        rule = f"{error}; the parser gives {', '.join(columns.names) or 'none'}"
        raise ConfigError(place, [("--column", rule)]) from error
    check_comparable(f"{column} of {place}", kind)
    return pa.types.is_integer(kind)


def read_request(cluster: ClusterStore, name: str) -> StoredRequest:
    """The request with the id ``name``; ``cluster`` is that of the deployment's default store.

    Raises:
        NotFound: there is none.
        FormatError: it does not parse, or is another one than its key names.
        StoreError: the store failed.
    """
    key = cluster.keys.erasure(name, "request")
    body = cluster.store.get(key, limit=ErasureRequest.most_bytes).body
    request = ErasureRequest.from_bytes(body, key)
    if (request.cluster, request.id) != (cluster.keys.cluster, name):
        raise FormatError(key, f"is request {request.cluster}/{request.id}, but its key names another")
    return StoredRequest(request, hashlib.sha256(body).hexdigest())


def withdrawal_of(cluster: ClusterStore, name: str) -> ErasureWithdrawal | None:
    """The withdrawal of the request with the id ``name``; raises FormatError and StoreError."""
    return ErasureWithdrawal.load_or_none(cluster.store, cluster.keys.erasure(name, "withdrawal"))


def approved(cluster: ClusterStore, name: str) -> Approved | NotApproved:
    """The request with the id ``name``, with its approval if another person has approved just these bytes.

    Raises:
        FormatError: one of its objects does not parse, or is another one than its key names.
        StoreError: the store failed, or there is no such request.
    """
    stored, withdrawal = read_request(cluster, name), withdrawal_of(cluster, name)
    key = cluster.keys.erasure(name, "approval")
    try:
        body = cluster.store.get(key, limit=ErasureApproval.most_bytes).body
    except NotFound:
        return NotApproved(stored.request, None, withdrawal)
    approval = ErasureApproval.from_bytes(body, key)
    if approval.id != name:
        raise FormatError(key, f"approves request {approval.id}, but its key names another")
    objection = stored.objection(approval.by, approval.written_as)
    if approval.request_sha256 != stored.sha256:
        objection = "the approval is of another content of the request"
    if objection is not None:
        return NotApproved(stored.request, objection, withdrawal)
    return Approved(stored.request, approval, hashlib.sha256(body).hexdigest(), withdrawal)


def all_requests(cluster: ClusterStore, but: Collection[str] = ()) -> Iterator[Approved | NotApproved]:
    """All requests of the cluster ``but`` those with these ids, by id; raises the errors of :func:`approved`."""
    for info in cluster.store.list(cluster.keys.erasures):
        name, _, part = info.key.removeprefix(cluster.keys.erasures).partition("/")
        if part == "request.json" and name not in but:
            try:
                check_report(name)
            except ValueError as error:
                raise FormatError(info.key, f"is no request for erasure: {error}") from error
            yield approved(cluster, name)
