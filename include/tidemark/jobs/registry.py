"""The jobs, each with its options. A class's text is the job's help: what it does, its output, its exit codes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, timedelta
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from tidemark.formats.table.statuses import AUDIT_PARTS
from tidemark.jobs.options import (
    Attempt,
    Day,
    DayOrNone,
    DryRunOptions,
    Exchange,
    JobOptions,
    JsonLines,
    Moment,
    NamedTopics,
    OneTopicOptions,
    Report,
    Says,
    SomeTopicsOptions,
    SparkOptions,
    TopicsOptions,
    user,
)


def _days(first: date, last: date) -> list[date]:
    return [first + timedelta(days=day) for day in range((last - first).days + 1)]


class PreviewOptions(DryRunOptions):
    """A job that makes a plan, which it can show."""

    report: Annotated[
        Report | None,
        Says(
            "write what would be done to the topic's reports, under this name, and the plan, for run_plan.py; convert "
            "nothing",
            metavar="NAME",
        ),
    ] = None

    @property
    def only_shows(self) -> bool:
        """See :attr:`TopicsOptions.only_shows`."""
        return self.dry_run or self.report is not None


class IngestOptions(DryRunOptions, SparkOptions, OneTopicOptions):
    """Land a topic's new records in its table, and close the dates that are complete.

    The last line of output is the result as JSON, or the plan for a dry run. Exit codes: 0 landed, stale or empty; 2 a
    configuration error; 1 others.
    """

    name: ClassVar[str] = "ingest"
    example: ClassVar[str] = "--topics topics.yaml --topic orders"

    attempt: Attempt = None
    dry_run: Annotated[bool, Says("print the plan, and do nothing")] = False


class LandLiveOptions(SparkOptions, TopicsOptions):
    """Land the new records of a cluster's due topics, which the cluster's landing in the lake lists, in one query.

    The output has a line of JSON for each topic. Exit codes: 0 for any outcome of the topics; 2 a configuration error;
    1 if Spark or the lake did not answer, and then the landing may be carried out again.
    """

    name: ClassVar[str] = "land_live"
    example: ClassVar[str] = "--topics topics.yaml --cluster prod"


ExchangeOption = Annotated[
    Exchange,
    Says(
        "together: one commit replaces the rows of all dates; by-date: one for each date, or for dates that exchange "
        "rows; after a kill, the same command goes on with those that are left"
    ),
]


class RunPlanOptions(SparkOptions, OneTopicOptions):
    """Carry out a plan that another job or Airflow stored. If it is carried out twice, it lands once.

    The last line of output is the result as JSON, or with --state the result of the state table. Exit codes: 0 landed,
    stale or empty; 2 a configuration error; 1 others. With --compare: 0 no row would change, 1 some would, 2 trouble.
    """

    name: ClassVar[str] = "run_plan"
    example: ClassVar[str] = "--topics topics.yaml --topic orders --plan KEY"

    plan: Annotated[str, Says("the plan's key in the lake", metavar="KEY")]
    exchange: ExchangeOption = "together"
    state: Annotated[
        bool,
        Says(
            "then bring the topic's state table, if it has one, to the newest commit; an error of it is printed, and "
            "does not change the exit code"
        ),
    ] = False
    compare: Annotated[
        bool,
        Says("write nothing, and print the rows that would change; exit code 0 if none, 1 if any, 2 for trouble"),
    ] = False
    report: Annotated[
        Report | None,
        Says(
            "with --compare: write these rows to the topic's reports as well, and exit with 0 either way",
            metavar="NAME",
        ),
    ] = None

    @property
    def only_shows(self) -> bool:
        """See :attr:`TopicsOptions.only_shows`."""
        return self.compare

    @property
    def failed(self) -> int:
        """See :attr:`TopicsOptions.failed`."""
        return 2 if self.compare and self.report is None else 1

    def problems(self) -> Iterator[tuple[str, str]]:
        """See :meth:`JobOptions.problems`."""
        yield from super().problems()
        if self.report is not None and not self.compare:
            yield "--report", "is an option of --compare"
        if self.compare and self.exchange == "by-date":
            yield "--exchange", "is no option of --compare, which exchanges nothing"


class RebuildOptions(PreviewOptions, SparkOptions, OneTopicOptions):
    """Make dates of a table again from raw, with the settings of the topics file and the code of this installation.

    The last line of output is the result, the preview or the comparison as JSON. Exit codes: 0 landed, stale or empty;
    2 a configuration error; 1 others. With --compare: 0 no row would change, 1 some would, 2 trouble.
    """

    name: ClassVar[str] = "rebuild"
    example: ClassVar[str] = "--topics topics.yaml --topic orders --from 2026-11-18 --to 2026-11-20 --dry-run"

    first: Annotated[Day | None, Says("first date to rebuild", flag="--from")] = None
    last: Annotated[Day | None, Says("last date to rebuild", flag="--to")] = None
    all: Annotated[bool, Says("rebuild all dates; then columns may become wider")] = False
    version: Annotated[
        int | None,
        Says(
            "with --all: accept what this version of the registry's schema proposes, see docs/schemas.md",
            flag="--schema",
            metavar="VERSION",
        ),
    ] = None
    extend: Annotated[bool, Says("also rebuild the dates that exchange rows with these because of the settings")] = (
        False
    )
    exchange: ExchangeOption = "together"
    missing: Annotated[bool, Says("rebuild only the dates that have lost files")] = False
    compare: Annotated[
        bool,
        Says(
            "write nothing, and print the rows that would change; exit code 0 if none, 1 if any, 2 for trouble. With "
            "--report write the preview, the plan and these rows there, and exit with 0 either way"
        ),
    ] = False
    at_most: Annotated[
        int | None, Field(ge=0), Says("with --compare: only if no more bytes are to be read", metavar="BYTES")
    ] = None

    @property
    def dates(self) -> list[str] | None:
        """The dates to rebuild; None stands for all."""
        if self.first is None or self.last is None:
            return None
        return [day.isoformat() for day in _days(self.first, self.last)]

    @property
    def only_shows(self) -> bool:
        """See :attr:`TopicsOptions.only_shows`."""
        return super().only_shows or self.compare

    @property
    def failed(self) -> int:
        """See :attr:`TopicsOptions.failed`."""
        return 2 if self.compare and self.report is None else 1

    def problems(self) -> Iterator[tuple[str, str]]:
        """See :meth:`JobOptions.problems`."""
        yield from super().problems()
        both = self.first is not None and self.last is not None and self.first <= self.last
        if (self.first, self.last) != (None, None) if self.all else not both:
            yield "--from, --to", "give both dates, with --to not before --from; or only --all"
        shows = self.dry_run or self.compare
        if self.exchange == "by-date" and not shows and (self.dates is None or self.report is not None):
            yield "--exchange", "by-date needs --from and --to, and takes no --report"
        if self.at_most is not None and not self.compare:
            yield "--at-most", "is an option of --compare"
        if self.version is not None and not self.all:
            yield "--schema", "needs --all: all rows must have the same columns"


class ReplayOptions(PreviewOptions, SparkOptions, OneTopicOptions):
    """Parse quarantined records of a topic again, with the parser of the topics file; raw is not needed.

    The last line of output is the result or the preview as JSON. Exit codes: 0 landed, stale or empty; 2 a
    configuration error; 1 others.
    """

    name: ClassVar[str] = "replay"
    example: ClassVar[str] = "--topics topics.yaml --topic orders --dt 2026-11-20 --dt none"

    dt: Annotated[
        tuple[DayOrNone, ...],
        Says(
            "date of the records' timestamps, or none for records without a sane timestamp; repeatable (default: all)",
            metavar="DATE",
        ),
    ] = ()


class RepairOptions(PreviewOptions, SparkOptions, OneTopicOptions):
    """Repair a table from raw after another program changed it.

    The last line of output is the result or the preview as JSON. Exit codes: 0 landed, stale or empty; 2 a
    configuration error; 1 others.
    """

    name: ClassVar[str] = "repair"
    example: ClassVar[str] = "--topics topics.yaml --topic orders --dry-run"


class AuditOptions(SparkOptions, SomeTopicsOptions):
    """Prove tables equal to their raw segments and to their evidence, and report every difference.

    The report is written below the topic's ledger, and printed. Exit codes: 0 no difference; 1 a difference, or the
    audit failed; 2 a configuration error.
    """

    name: ClassVar[str] = "audit"
    example: ClassVar[str] = "--topics topics.yaml --topic orders --dt 2026-11-20"
    uses_catalogs: ClassVar[bool] = True

    json_lines: JsonLines = False
    dt: Annotated[tuple[Day, ...], Says("a date to audit; repeatable (default: all)")] = ()
    first: Annotated[Day | None, Says("first date to audit", flag="--from")] = None
    last: Annotated[Day | None, Says("last date to audit", flag="--to")] = None
    since: Annotated[
        Moment | None,
        Says(
            "pass over topics of which these dates passed an audit at this time or later, such as "
            "2026-11-21T03:00:00+00:00: a retry goes on where the last try ended"
        ),
    ] = None

    @property
    def dates(self) -> list[str]:
        """The dates to audit; none stands for all."""
        between = [] if self.first is None or self.last is None else _days(self.first, self.last)
        return sorted({day.isoformat() for day in (*self.dt, *between)})

    def problems(self) -> Iterator[tuple[str, str]]:
        """See :meth:`JobOptions.problems`."""
        yield from super().problems()
        if (self.first is None) != (self.last is None):
            yield "--from, --to", "both are needed"
        elif self.first is not None and self.last is not None and self.last < self.first:
            yield "--from, --to", "--to lies before --from"


class CompactOptions(DryRunOptions, SparkOptions, SomeTopicsOptions):
    """Merge small files of the tables of topics into larger ones; no row changes.

    The last line of output of each topic is the result as JSON, or the plan for a dry run; the lines before describe
    the merges. A topic that fails does not keep others from their work. Exit codes: 0 landed, stale or empty; 2 a
    configuration error; 1 others.
    """

    name: ClassVar[str] = "compact"
    example: ClassVar[str] = "--topics topics.yaml --topic orders --dt 2026-11-20 --dry-run"

    topic: NamedTopics
    dt: Annotated[tuple[Day, ...], Says("a date to merge files of; repeatable (default: those that are due)")] = ()
    attempt: Attempt = None
    dry_run: Annotated[bool, Says("print what would be merged, and do nothing")] = False
    json_lines: Annotated[
        bool, Says("print only the last line of each topic: the result, or the plan", flag="--json")
    ] = False

    def problems(self) -> Iterator[tuple[str, str]]:
        """See :meth:`JobOptions.problems`."""
        yield from super().problems()
        if self.attempt is not None and len(self.topic) > 1:
            yield "--attempt", "is of one topic: name one --topic"


class CompactLiveOptions(SparkOptions, TopicsOptions):
    """Merge small files of the tables of a cluster whose topics have a freshness, one after the other; no row changes.

    The output has a line of JSON for each table with a merge: its result. Exit codes: 0 each table landed, was stale or
    had nothing to merge; 2 a configuration error; 1 a table failed, and the others are done.
    """

    name: ClassVar[str] = "compact_live"
    example: ClassVar[str] = "--topics topics.yaml --cluster prod"


class RetainOptions(DryRunOptions, SomeTopicsOptions):
    """Remove past dates from tables, and raw segments that are past the backfill window, by each topic's policy.

    Only topics with retention.apply: true lose data, and only data that a report named a day before. The reports are
    printed and written below the topic's ledger. Exit codes: 0 done; 2 a configuration error; 1 others.
    """

    name: ClassVar[str] = "retain"
    example: ClassVar[str] = "--topics topics.yaml --topic orders --only raw --dry-run"

    json_lines: JsonLines = False
    only: Annotated[Literal["table", "raw"] | None, Says("one of both: each may have credentials of its own")] = None
    dry_run: Annotated[bool, Says("only report what would be removed, and why the rest stays")] = False
    by: Annotated[str, Says("the name in the report and the tombstones")] = Field(default_factory=user)

    @property
    def deletes_raw(self) -> bool:
        """See :attr:`TopicsOptions.deletes_raw`."""
        return self.only != "table"


class RetainPacksOptions(DryRunOptions):
    """Remove the packs whose batches are all in seals, in a whole cluster, as a pack has batches of many topics.

    A pack is removed two days after all of it is in seals. The reports are printed, one for each store and prefix.
    With --forget, report the packed ranges of a topic id that nothing will ever seal, or give them up. Exit codes: 0
    done; 2 a configuration error; 1 others.
    """

    name: ClassVar[str] = "retain_packs"
    example: ClassVar[str] = "--topics topics.yaml --dry-run"

    json_lines: JsonLines = False
    dry_run: Annotated[bool, Says("only report what would be removed, and why others stay")] = False
    forget: Annotated[
        str | None,
        Says(
            "instead, report the packed ranges of a topic id that nothing will ever seal, because its prefix or "
            "metadata was removed; with --apply, give them up",
            metavar="TOPIC_ID",
        ),
    ] = None
    apply: Annotated[bool, Says("with --forget: write the record that gives them up")] = False
    by: Annotated[str | None, Says("with --apply: the person who gives them up", metavar="NAME")] = None
    reason: Annotated[str | None, Says("with --apply: the reason")] = None

    @property
    def deletes_raw(self) -> bool:
        """See :attr:`TopicsOptions.deletes_raw`."""
        return True

    def problems(self) -> Iterator[tuple[str, str]]:
        """See :meth:`JobOptions.problems`."""
        yield from super().problems()
        if self.forget and self.apply and not (self.by and self.reason):
            yield "--apply", "needs --by and --reason"


class EraseOptions(DryRunOptions, SparkOptions, SomeTopicsOptions):
    """Carry out the approved requests for erasure: mask the records that they name, and take them out of the tables.

    The environment variable TIDEMARK_ERASURE_SECRET has the secret of the requests. Exit codes: 0 done; 2 a
    configuration error; 1 others, or a request was refused, since it finds too much.
    """

    name: ClassVar[str] = "erase"
    example: ClassVar[str] = "--topics topics.yaml --topic orders --dry-run"

    json_lines: JsonLines = False
    dry_run: Annotated[bool, Says("count what the requests find, also those that nobody has approved")] = False
    by: Annotated[str, Says("the name in the reports")] = Field(default_factory=user)


class StateOptions(SparkOptions, SomeTopicsOptions):
    """Bring the state tables of topics, one row for each key, to the newest commits of their tables.

    Exit codes: 0 done, also if nothing had changed or another run was first; 2 a configuration error; 1 others, or with
    --audit a difference.
    """

    name: ClassVar[str] = "state"
    example: ClassVar[str] = "--topics topics.yaml --topic customers"

    audit: Annotated[bool, Says(f"compare 1/{AUDIT_PARTS} of the keys with the table, and change nothing")] = False
    part: Annotated[int | None, Field(ge=0, lt=AUDIT_PARTS), Says("the part to audit (default: by the date)")] = None
    since: Annotated[
        Moment | None,
        Says(
            "with --audit: pass over topics of which the part passed an audit at this time or later, such as "
            "2026-11-21T03:00:00+00:00: a retry goes on where the last try ended"
        ),
    ] = None
    due: Annotated[bool, Says("pass over topics whose state.every has not passed yet")] = False
    rebuild: Annotated[bool, Says("make the state again from all rows of the table")] = False

    def problems(self) -> Iterator[tuple[str, str]]:
        """See :meth:`JobOptions.problems`."""
        yield from super().problems()
        if sum((self.audit, self.due, self.rebuild)) > 1:
            yield "--audit, --due, --rebuild", "only one of them says what is done"
        if self.since is not None and not self.audit:
            yield "--since", "is an option of --audit"


class VacuumOptions(DryRunOptions, SomeTopicsOptions):
    """Remove objects that no reader and no run can need: leftovers of dead runs, replaced objects, and old reports.

    A line of output for each topic lists the removed objects, as JSON. A topic that fails does not keep others from
    their work. Exit codes: 0 done; 2 a configuration error; 1 others.
    """

    name: ClassVar[str] = "vacuum"
    example: ClassVar[str] = "--topics topics.yaml --topic orders --dry-run"

    topic: NamedTopics
    dry_run: Annotated[bool, Says("print what would be removed, and do nothing")] = False


class MirrorOptions(SomeTopicsOptions):
    """List the tables of a cluster in the catalogs of the topics file: a snapshot for each commit.

    The output is the state of each table in each catalog, as JSON. Exit codes: 0 all are up to date; 2 a configuration
    error; 1 a catalog did not answer, or refuses, and the others are done.
    """

    name: ClassVar[str] = "mirror"
    example: ClassVar[str] = "--topics topics.yaml --cluster prod"
    beside_airflow: ClassVar[bool] = True
    uses_catalogs: ClassVar[bool] = True


class ExportOptions(SparkOptions, OneTopicOptions):
    """Write the raw records of a topic as lines of text, as Hadoop SequenceFiles or as MessagePack.

    The last line of output is a summary as JSON, the lines before are the files. Exit codes: 0 done; 2 a configuration
    error; 1 others.
    """

    name: ClassVar[str] = "export"
    example: ClassVar[str] = "--topics topics.yaml --topic orders --to s3://exports/orders"

    to: Annotated[str, Says("where: s3://<bucket>[/<prefix>], or any other store", metavar="URL")]
    format: Annotated[Literal["messagepack", "sequence", "text"], Says("the files' format")] = "text"
    option: Annotated[
        tuple[str, ...],
        Says(
            "of Spark's format tidemark: fromOffset, toOffset, fromTime, toTime, partitions, isolation, …; repeatable",
            metavar="NAME=VALUE",
        ),
    ] = ()


class ConnectOptions(JobOptions):
    """A Spark Connect server for the other jobs, until it is ended.

    Sessions share the Python workers and their loaded libraries, as nothing is uploaded to a session.
    """

    name: ClassVar[str] = "connect"
    needs_spark: ClassVar[bool] = True


class WarmUpOptions(SparkOptions):
    """Load libraries and kernels in the workers of a Spark Connect server, once after its start.

    Exit codes: 0 done; 2 if no server is named; 1 if it does not answer.
    """

    name: ClassVar[str] = "warm_up"
    example: ClassVar[str] = "--remote sc://127.0.0.1:15002 --workers 4"

    workers: Annotated[int, Says("the server's cores")] = 2
    parser: Annotated[
        tuple[str, ...],
        Says(
            "load only what topics with parsers of this kind need; may be repeated (default: of all kinds)",
            metavar="KIND",
        ),
    ] = ()


JOBS: Final[dict[str, type[JobOptions]]] = {
    job.name: job
    for job in (
        IngestOptions,
        LandLiveOptions,
        RunPlanOptions,
        RebuildOptions,
        ReplayOptions,
        RepairOptions,
        AuditOptions,
        CompactOptions,
        CompactLiveOptions,
        RetainOptions,
        RetainPacksOptions,
        EraseOptions,
        StateOptions,
        VacuumOptions,
        MirrorOptions,
        ExportOptions,
        ConnectOptions,
        WarmUpOptions,
    )
}
"""The jobs by name."""
