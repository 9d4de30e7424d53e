"""The options of a job as a model, which is read from a command line and writes one.

For example, ``VacuumOptions.of(topics="topics.yaml", topic=["orders"], dry_run=True).arguments()`` is ``["--topics",
"topics.yaml", "--topic", "orders", "--dry-run"]``, and ``VacuumOptions.parse`` makes an equal model of these words. So
whoever starts a job, such as a task of Airflow, and the job itself agree on every option.
"""

from __future__ import annotations

import getpass
import inspect
import socket
from collections.abc import Iterator, Sequence
from datetime import date, datetime
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, Self, Union, get_args, get_origin

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field
from pydantic.fields import FieldInfo

from tidemark.config import Settings, checked
from tidemark.errors import ConfigError
from tidemark.formats.keys import check_report

EVENTS: Final = "events"
OFF: Final = "off"
"""Values of ``--lineage``; the others are places of a hand-over, see :mod:`tidemark.openlineage.hand_over`."""

Exchange = Literal["together", "by-date"]
"""How a rebuild replaces the rows of its dates: in one commit, or in one for each date."""

EXCHANGES: Final[tuple[Exchange, ...]] = get_args(Exchange)

MOST_ATTEMPT: Final = (1 << 63) - 1


class Says:
    """What the command line says of a field: ``flag`` if it is not the field's name, and ``metavar`` for its value."""

    def __init__(self, does: str = "", *, flag: str = "", metavar: str = "") -> None:
        self.does, self.flag, self.metavar = does, flag, metavar


class Word(NamedTuple):
    """An option of a command line. ``choices`` are all of its values, if these are few."""

    flag: str
    does: str
    metavar: str
    field: FieldInfo
    choices: tuple[str, ...]

    @property
    def is_flag(self) -> bool:
        """True if the option has no value."""
        return self.field.annotation is bool

    @property
    def repeats(self) -> bool:
        """True if the option may be given several times."""
        return get_origin(self.field.annotation) is tuple


class JobOptions(Settings):
    """A job with its options. A class derived from it is one job of :data:`tidemark.jobs.registry.JOBS`.

    ``name`` is that of the program in ``spark/jobs`` without ``.py``, and of the module of ``tidemark_spark.jobs`` that
    does the work. ``example`` is the part of a command line behind the program's name.
    """

    model_config = ConfigDict(defer_build=True)

    name: ClassVar[str]
    example: ClassVar[str] = ""
    needs_spark: ClassVar[bool] = False
    """True if the job may have tasks for Spark. The others are started as plain Python, without a JVM."""

    beside_airflow: ClassVar[bool] = False
    """True if the job runs where Airflow's task runs, as it needs secrets that are variables there."""

    uses_catalogs: ClassVar[bool] = False
    """True if the job opens the catalogs of the topics file."""

    @classmethod
    def program(cls) -> str:
        """The name of the file in ``spark/jobs``."""
        return f"{cls.name}.py"

    @classmethod
    def of(cls, **options: Any) -> Self:
        """The job with ``options``. Raises ConfigError if they break a rule: it names them as the command line does."""
        words = cls.words()
        try:
            job = checked(cls, options, cls.program())
        except ConfigError as error:
            flags = {name: word.flag for name, word in words.items()}
            problems = [(flags.get(field.partition(".")[0], field), rule) for field, rule in error.problems]
            raise ConfigError(cls.program(), problems) from None
        if problems := list(job.problems()):
            raise ConfigError(cls.program(), problems)
        return job

    def problems(self) -> Iterator[tuple[str, str]]:
        """(option, rule) of each rule about several options that is broken."""
        yield from ()

    @classmethod
    @cache
    def words(cls) -> dict[str, Word]:
        """The options by their field, in the order of the command line."""
        return {name: _word(name, field) for name, field in cls.model_fields.items()}

    def arguments(self) -> list[str]:
        """The words of the command line that :meth:`parse` turns into an equal model."""
        found: list[str] = []
        for name, word in self.words().items():
            value = getattr(self, name)
            if word.is_flag:
                found += [word.flag] * value
            elif word.repeats:
                found += (part for each in value for part in (word.flag, _text(each)))
            elif value != word.field.default:
                found += [word.flag, _text(value)]
        return found

    @classmethod
    def parse(cls, arguments: Sequence[str]) -> Self:
        """The job of a command line.

        Raises:
            ConfigError: an option has a wrong value.
            SystemExit: after ``--help``, and after words that are no options or lack a value.
        """
        given = cls._given(arguments)
        if given is None:
            given = cls._told(arguments)
        return cls.of(**{name: value for name, value in given.items() if value is not None})

    @classmethod
    def _given(cls, arguments: Sequence[str]) -> dict[str, Any] | None:
        """The values in ``arguments`` as :meth:`arguments` writes them; None for others, of which typer has to tell.

        A job is started over and over, and to load typer takes longer than all else about its command line.
        """
        names = {word.flag: name for name, word in cls.words().items()}
        given: dict[str, Any] = {}
        words = iter(arguments)
        for flag in words:
            if flag not in names:
                return None
            word = cls.words()[names[flag]]
            value = True if word.is_flag else next(words, None)
            if value is None:
                return None
            given[names[flag]] = [*given.get(names[flag], ()), value] if word.repeats else value
        required = {name for name, word in cls.words().items() if word.field.is_required()}
        return given if required <= given.keys() else None

    @classmethod
    def _told(cls, arguments: Sequence[str]) -> dict[str, Any]:
        """The values in ``arguments`` as typer reads them. Raises SystemExit after help, and after what it refuses."""
        import typer

        given: list[dict[str, Any]] = []
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
        app.command(epilog=f"Example: {cls.command()}")(cls._signed(lambda **options: given.append(options)))
        try:
            typer.main.get_command(app)(args=list(arguments), prog_name=cls.program())
        except SystemExit:
            if not given:
                raise
        return given[0]

    @classmethod
    def command(cls) -> str:
        """The command of the example."""
        start = "spark-submit" if cls.needs_spark else "python"
        return f"{start} spark/jobs/{cls.program()} {cls.example}".rstrip()

    @classmethod
    def _signed(cls, function: Any) -> Any:
        """``function`` with a parameter for each option, from which typer makes the command."""
        import typer

        parameters = []
        for name, word in cls.words().items():
            kind: Any = bool if word.is_flag else list[str] if word.repeats else str
            if word.choices:
                kind = Literal[word.choices]
            default = word.field.get_default(call_default_factory=True)
            option = typer.Option(
                word.flag, help=word.does, metavar=None if word.is_flag or word.choices else word.metavar
            )
            parameters.append(
                inspect.Parameter(
                    name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=inspect.Parameter.empty
                    if word.field.is_required()
                    else list(default)
                    if word.repeats
                    else default,
                    annotation=Annotated[kind if default is not None else kind | None, option],
                )
            )
        function.__signature__ = inspect.Signature(parameters)
        function.__doc__ = inspect.getdoc(cls)
        return function


def _word(name: str, field: FieldInfo) -> Word:
    option = next((part for part in field.metadata if isinstance(part, Says)), Says())
    kind = _of_value(field.annotation)
    return Word(
        flag=option.flag or f"--{name.replace('_', '-')}",
        does=option.does,
        metavar=option.metavar or _METAVARS.get(kind, "TEXT"),
        field=field,
        choices=get_args(kind) if get_origin(kind) is Literal else (),
    )


def _of_value(kind: Any) -> Any:
    """The type of one value of an option: without None, without the tuple of a repeatable one, without notes."""
    if get_origin(kind) in {Annotated, tuple, Union, UnionType}:  # the first part says it
        return _of_value(get_args(kind)[0])
    return kind


_METAVARS: Final[dict[Any, str]] = {date: "DATE", datetime: "TIME", int: "N", Path: "FILE"}


def _text(value: Any) -> str:
    return value.isoformat() if isinstance(value, date) else str(value)


def _date(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return date.fromisoformat(value)
    except ValueError as error:
        raise ValueError(f"{value!r} is not a date such as 2026-11-20") from error


def _date_or_none(value: object) -> object:
    try:
        return value if value == "none" else _date(value)
    except ValueError as error:
        raise ValueError(f"{value!r} is neither a date such as 2026-11-20, nor none") from error


def _moment(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        at = datetime.fromisoformat(value)
    except ValueError as error:
        raise ValueError(f"{value!r} is not a time such as 2026-11-21T03:00:00+00:00") from error
    if at.tzinfo is None:
        raise ValueError(f"{value!r} has no time zone: add it, such as +00:00")
    return at


def _attempt(value: object) -> object:
    if isinstance(value, str) and (not value.isdecimal() or int(value) > MOST_ATTEMPT):
        raise ValueError(f"{value!r} is not a number from 0 to {MOST_ATTEMPT}")
    return value


def _lineage(value: str) -> str:
    if value in {EVENTS, OFF}:
        return value
    try:
        return check_report(value)
    except ValueError as error:
        raise ValueError(f"{value!r} must be {EVENTS}, {OFF}, or a place: 16 of 0-9 a-f") from error


def user() -> str:
    """The name of who runs this process, and where."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


Day = Annotated[date, BeforeValidator(_date)]
"""A date, written 2026-11-20."""

DayOrNone = Annotated[date | Literal["none"], BeforeValidator(_date_or_none)]
"""A date, or none for what has no date."""

Moment = Annotated[datetime, BeforeValidator(_moment)]
"""A time with its zone, written 2026-11-21T03:00:00+00:00."""

Attempt = Annotated[
    int | None,
    BeforeValidator(_attempt),
    Field(ge=0, le=MOST_ATTEMPT),
    Says("execute this attempt's plan; make it if it does not exist"),
]
"""The number of an attempt."""

Names = Annotated[tuple[str, ...], BeforeValidator(lambda names: (names,) if isinstance(names, str) else names)]
"""Names, of which one may be given by itself."""

NamedTopics = Annotated[Names, Field(min_length=1), Says("repeatable", metavar="NAME")]
"""One topic or several, of a job that does not take all."""

JsonLines = Annotated[bool, Says("print the reports as JSON, one a line", flag="--json")]
"""Whether reports are for programs."""

Report = Annotated[str, AfterValidator(check_report)]
"""The name of a report: 16 of 0-9 a-f."""


class TopicsOptions(JobOptions):
    """A job for topics of a topics file."""

    topics: Annotated[Path, Says("the topics file")]
    cluster: Annotated[str | None, Says("needed where two clusters have the topic's name", metavar="NAME")] = None
    lineage: Annotated[
        str,
        AfterValidator(_lineage),
        Says(
            "events: send OpenLineage events if OPENLINEAGE_URL or another variable of its client says where; off: "
            "send none; or the place where the task that started the job takes what it sends",
            metavar="WHERE",
        ),
    ] = EVENTS

    @property
    def named(self) -> tuple[str, ...]:
        """The topics of the command line; none stands for all of the file, or of the cluster."""
        return ()

    @property
    def only_shows(self) -> bool:
        """True if the job writes nothing, but shows what it would do."""
        return False

    @property
    def failed(self) -> int:
        """The exit code after an error: 2 if 1 is an answer."""
        return 1

    @property
    def deletes_raw(self) -> bool:
        """True if the job removes objects of raw: only a role of its own may do so."""
        return False


class OneTopicOptions(TopicsOptions):
    """A job for one topic."""

    topic: Annotated[str, Says(metavar="NAME")]

    @property
    def named(self) -> tuple[str, ...]:
        """The topic of the command line."""
        return (self.topic,)


class SomeTopicsOptions(TopicsOptions):
    """A job for some topics or all."""

    topic: Annotated[Names, Says("repeatable (default: all of the file)", metavar="NAME")] = ()

    @property
    def named(self) -> tuple[str, ...]:
        """The topics of the command line."""
        return self.topic


class SparkOptions(JobOptions):
    """A job with tasks for Spark, and the options that say where that is."""

    needs_spark: ClassVar[bool] = True

    master: Annotated[str | None, Says("Spark's master, where spark-submit does not say it (default: local[*])")] = None
    remote: Annotated[
        str | None,
        Says(
            "a Spark Connect server, such as sc://127.0.0.1:15002 (default: SPARK_REMOTE, which other users cannot "
            "see; put a token there)",
            metavar="URL",
        ),
    ] = None

    def problems(self) -> Iterator[tuple[str, str]]:
        """See :meth:`JobOptions.problems`."""
        yield from super().problems()
        if self.master is not None and self.remote is not None:
            yield "--master, --remote", "only one of both says where Spark is"


class DryRunOptions(TopicsOptions):
    """A job that can say what it would do."""

    dry_run: Annotated[bool, Says("print what would be done, and do nothing")] = False

    @property
    def only_shows(self) -> bool:
        """See :attr:`TopicsOptions.only_shows`."""
        return self.dry_run
