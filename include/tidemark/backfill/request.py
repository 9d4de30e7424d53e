"""A backfill's request: the form of the DAG, the command line and the REST call, checked as a whole.

The check reports all mistakes at once, each with its field. Only topics of the topics file, dates and numbers are left
of a checked form: nothing else ever becomes part of a key or of a command.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import date, timedelta
from typing import Any, ClassVar, Final, Literal, get_args

from tidemark.config import hint
from tidemark.errors import ConfigError
from tidemark.formats import object_sizes
from tidemark.formats.base import StoredObject
from tidemark.topics import Deployment, TopicSettings

Mode = Literal["rebuild", "compare", "missing", "replay", "repair", "schema"]
"""The work of a backfill on its dates.

* ``rebuild``: converts all records from raw again, and replaces the files
* ``compare``: converts all records from raw again, and writes only a report of the rows that would change
* ``missing``: rebuilds only the dates that have lost files
* ``replay``: parses quarantined records again, without raw
* ``repair``: corrects the whole table from raw after somebody else changed it; ignores the dates
* ``schema``: makes the whole table again with the columns of a version of its registry's schema; ignores the dates
"""

MODES: Final[tuple[Mode, ...]] = get_args(Mode)
MOST_DAYS: Final = 366
MOST_TOPICS: Final = 100
LONGEST_REASON: Final = 500
APPROVE_ABOVE_DAYS: Final = 31
"""More rewritten dates than these need an approval, however small they are."""

DEFAULTS: Final[dict[str, Any]] = {
    "mode": "rebuild",
    "extend": False,
    "differences": True,
    "max_gib": 1000,
    "approve_above_gib": 100,
    "dry_run": True,
    "reason": None,
    "configuration": None,
    "schema_version": None,
}
FIELDS: Final = ("topics", "from_date", "to_date", *DEFAULTS)


class BackfillRequest(StoredObject):
    """``reports/<name>/request.json``: one topic of a checked form. ``by`` is the requester's name in Airflow.

    ``max_bytes`` limits the bytes read of the topic, ``approve_above`` the bytes read of all topics without approval.
    """

    most_bytes: ClassVar[int] = object_sizes.REPORT

    cluster: str
    topic: str
    mode: Mode
    first: date
    last: date
    extend: bool
    differences: bool
    dry_run: bool
    max_bytes: int
    approve_above: int
    reason: str
    by: str = ""
    run: str = ""
    schema_version: int | None = None

    @property
    def dates(self) -> list[str]:
        """The requested dates, as ISO."""
        return [str(self.first + timedelta(days=n)) for n in range((self.last - self.first).days + 1)]

    @property
    def compares(self) -> bool:
        """True if rows are compared. Lost files leave no rows to compare with."""
        return self.mode == "compare" or (self.mode in {"rebuild", "schema"} and self.differences)

    @property
    def rewrites(self) -> bool:
        """True if the run changes the table."""
        return self.mode != "compare" and not self.dry_run

    @property
    def label(self) -> str:
        """``cluster/topic``."""
        return f"{self.cluster}/{self.topic}"


def report_name(run: str) -> str:
    """The name of the reports of the run ``run``: 16 hexadecimal digits."""
    return hashlib.sha256(run.encode()).hexdigest()[:16]


def check_request(
    deployment: Deployment,
    form: Mapping[str, Any],
    *,
    today: date,
    by: str = "",
    run: str = "",
    approve_at_most: int = DEFAULTS["approve_above_gib"],
) -> list[BackfillRequest]:
    """The form as requests, one a topic. Up to ``approve_at_most`` GiB pass without approval in this deployment.

    Raises:
        ConfigError: with each field, the rule that it breaks, and what to do.
    """
    checked = _Form(deployment, {**DEFAULTS, **form}, approve_at_most)
    checked.known_fields(form)
    topics = checked.topics()
    first, last = checked.dates(today)
    numbers = {name: checked.number(name, least) for name, least in (("max_gib", 1), ("approve_above_gib", 0))}
    extend, differences, dry_run = (checked.flag(name) for name in ("extend", "differences", "dry_run"))
    mode, reason = checked.mode(), checked.reason()
    version = checked.schema_version(topics)
    checked.settings(topics)
    if checked.problems:
        raise ConfigError("the backfill's form", checked.problems)
    return [
        BackfillRequest(
            cluster=topic.cluster,
            topic=topic.topic,
            mode=mode,
            first=first,
            last=last,
            extend=extend,
            differences=differences,
            dry_run=dry_run,
            max_bytes=numbers["max_gib"] << 30,
            approve_above=numbers["approve_above_gib"] << 30,
            reason=reason,
            by=by,
            run=run,
            schema_version=version,
        )
        for topic in topics
    ]


class _Form:
    """A form under check. Notes each problem and continues; returned values count only if there is no problem."""

    def __init__(self, deployment: Deployment, form: Mapping[str, Any], approve_at_most: int) -> None:
        self._deployment, self._form, self._approve_at_most = deployment, form, approve_at_most
        self.problems: list[tuple[str, str]] = []

    def _wrong(self, field: str, rule: str) -> None:
        self.problems.append((field, rule))

    def known_fields(self, form: Mapping[str, Any]) -> None:
        for name in sorted(form.keys() - set(FIELDS)):
            self._wrong(name, f"is not a field of the form; {hint(name, FIELDS)}")

    def topics(self) -> list[TopicSettings]:
        named = self._form.get("topics")
        if not isinstance(named, list) or not named or not all(isinstance(label, str) for label in named):
            self._wrong("topics", "choose at least one, each as cluster/topic, such as kafka-1/orders")
            return []
        if len(named) > MOST_TOPICS:
            self._wrong("topics", f"{len(named)} are more than {MOST_TOPICS}; start several runs")
            return []
        return [topic for label in dict.fromkeys(named) if (topic := self._topic(label)) is not None]

    def _topic(self, label: str) -> TopicSettings | None:
        cluster, _, name = label.partition("/")
        try:
            return self._deployment.topic(name, cluster)
        except ConfigError:
            known = [f"{topic.cluster}/{topic.topic}" for topic in self._deployment.topics]
            self._wrong("topics", f"{label!r} is not in the topics file; {hint(label, known)}")
            return None

    def dates(self, today: date) -> tuple[date, date]:
        first, last = (self._date(name) for name in ("from_date", "to_date"))
        if first is None or last is None:
            return today, today
        if last < first:
            self._wrong("to_date", f"{last} is before from_date, {first}; swap them")
        elif (days := (last - first).days + 1) > MOST_DAYS:
            self._wrong("to_date", f"{days} days are more than {MOST_DAYS}; start several runs")
        if first > today + timedelta(days=1):
            self._wrong("from_date", f"{first} is in the future (today is {today}, UTC), so it has no records yet")
        return first, last

    def _date(self, field: str) -> date | None:
        value = self._form.get(field)
        try:
            return date.fromisoformat(str(value))
        except ValueError:
            given = "is missing" if value in (None, "") else f"{value!r} is not a date"
            self._wrong(field, f"{given}; give one such as 2026-01-31")
            return None

    def number(self, field: str, least: int) -> int:
        value = self._form[field]
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            self._wrong(field, f"{value!r} must be a whole number of GiB, {least} or more")
            return least
        if field == "approve_above_gib" and value > self._approve_at_most:
            self._wrong(field, f"{value} is too high: this deployment asks for approval above {self._approve_at_most}")
        return value

    def flag(self, field: str) -> bool:
        value = self._form[field]
        if not isinstance(value, bool):
            self._wrong(field, f"{value!r} must be true or false")
        return value is True

    def mode(self) -> Mode:
        value = self._form["mode"]
        if value not in MODES:
            self._wrong("mode", f"{value!r} must be one of {', '.join(MODES)}")
            return "compare"
        if value in {"missing", "repair", "schema"} and self._form["extend"] is True:
            rule = f"cannot be with mode {value}, which adds no date; untick it, or choose mode rebuild"
            self._wrong("extend", rule)
        mode: Mode = value
        return mode

    def schema_version(self, topics: list[TopicSettings]) -> int | None:
        value = self._form["schema_version"]
        if self._form["mode"] != "schema":
            if value is not None:
                self._wrong("schema_version", "is for mode schema alone; clear it, or choose that mode")
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            self._wrong(
                "schema_version", "is needed in mode schema: the version that `tidemark schema show` says waits"
            )
            return None
        if len(topics) > 1:
            self._wrong("topics", "must be one in mode schema, since each has versions of its own")
        return value

    def reason(self) -> str:
        value = self._form["reason"] or ""
        text = value.strip() if isinstance(value, str) else ""
        needed = self._form["dry_run"] is False and self._form["mode"] != "compare"
        if not isinstance(value, str) or len(text) > LONGEST_REASON or not all(c.isprintable() for c in text):
            self._wrong("reason", f"must be one line of text, {LONGEST_REASON} characters at most")
        elif needed and not text:
            self._wrong("reason", "is needed for what rewrites a table: say why, or tick dry_run")
        return text

    def settings(self, topics: list[TopicSettings]) -> None:
        wanted = self._form["configuration"]
        if wanted in (None, ""):
            return
        for topic in topics:
            if topic.digest != wanted:
                rule = (
                    f"{wanted!r} is not that of {topic.cluster}/{topic.topic}, which is {topic.digest}; dates are made "
                    "with the settings of the topics file: change them there first, and see `tidemark config check`"
                )
                self._wrong("configuration", rule)
