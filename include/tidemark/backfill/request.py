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
from tidemark.jobs.options import EXCHANGES, Exchange
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
BY_DATE: Final = ("rebuild", "missing")
"""The modes that may exchange the rows of one date after the other."""

MOST_DAYS: Final = 366
MOST_TOPICS: Final = 100
LONGEST_REASON: Final = 500
APPROVE_ABOVE_DAYS: Final = 31
"""More rewritten dates than these need an approval, however small they are."""

DEFAULTS: Final[dict[str, Any]] = {
    "mode": "rebuild",
    "exchange": "together",
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
    exchange: Exchange = "together"
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
    checked = _Form(form, approve_at_most)
    values = checked.values(today)
    topics = checked.of_file(deployment)
    checked.settings(topics)
    checked.refuse()
    return [BackfillRequest(cluster=topic.cluster, topic=topic.topic, by=by, run=run, **values) for topic in topics]


def check_form(form: Mapping[str, Any], *, today: date) -> None:
    """Check what ``form`` says by itself, before anybody asks who knows the topics file and the limit for approvals.

    Raises:
        ConfigError: with each field, the rule that it breaks, and what to do.
    """
    checked = _Form(form, None)
    checked.values(today)
    checked.refuse()


class _Form:
    """A form under check. Notes each problem and continues; returned values count only if there is no problem."""

    def __init__(self, form: Mapping[str, Any], approve_at_most: int | None) -> None:
        self._given, self._form, self._approve_at_most = form, {**DEFAULTS, **form}, approve_at_most
        self._problems: list[tuple[str, str]] = []

    def refuse(self) -> None:
        """Raise ConfigError if there was a problem."""
        if self._problems:
            raise ConfigError("the backfill's form", self._problems)

    def values(self, today: date) -> dict[str, Any]:
        """The fields of a request beside its topic."""
        self._known_fields()
        labels = self._labels()
        first, last = self._dates(today)
        numbers = {name: self._number(name, least) for name, least in (("max_gib", 1), ("approve_above_gib", 0))}
        return {
            "first": first,
            "last": last,
            **{name: self._flag(name) for name in ("extend", "differences", "dry_run")},
            "mode": self._mode(),
            "exchange": self._exchange(),
            "reason": self._reason(),
            "schema_version": self._schema_version(labels),
            "max_bytes": numbers["max_gib"] << 30,
            "approve_above": numbers["approve_above_gib"] << 30,
        }

    def of_file(self, deployment: Deployment) -> list[TopicSettings]:
        """The topics of the form, as ``deployment`` has them."""
        known = {f"{topic.cluster}/{topic.topic}": topic for topic in deployment.topics}
        labels = self._form["topics"] if not any(field == "topics" for field, _ in self._problems) else []
        for label in labels:
            if label not in known:
                self._wrong("topics", f"{label!r} is not in the topics file; {hint(label, known)}")
        return [known[label] for label in dict.fromkeys(labels) if label in known]

    def _wrong(self, field: str, rule: str) -> None:
        self._problems.append((field, rule))

    def _known_fields(self) -> None:
        for name in sorted(self._given.keys() - set(FIELDS)):
            self._wrong(name, f"is not a field of the form; {hint(name, FIELDS)}")

    def _labels(self) -> list[str]:
        named = self._form.get("topics")
        if not isinstance(named, list) or not named or not all(isinstance(label, str) for label in named):
            self._wrong("topics", "choose at least one, each as cluster/topic, such as kafka-1/orders")
            return []
        if len(named) > MOST_TOPICS:
            self._wrong("topics", f"{len(named)} are more than {MOST_TOPICS}; start several runs")
            return []
        labels = list(dict.fromkeys(named))
        for label in labels:
            if not all(label.partition("/")):
                self._wrong("topics", f"{label!r} must be cluster/topic, such as kafka-1/orders")
        return labels

    def _dates(self, today: date) -> tuple[date, date]:
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

    def _number(self, field: str, least: int) -> int:
        value = self._form[field]
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            self._wrong(field, f"{value!r} must be a whole number of GiB, {least} or more")
            return least
        limit = self._approve_at_most if field == "approve_above_gib" else None
        if limit is not None and value > limit:
            self._wrong(field, f"{value} is too high: this deployment asks for approval above {limit}")
        return value

    def _flag(self, field: str) -> bool:
        value = self._form[field]
        if not isinstance(value, bool):
            self._wrong(field, f"{value!r} must be true or false")
        return value is True

    def _mode(self) -> Mode:
        value = self._form["mode"]
        if value not in MODES:
            self._wrong("mode", f"{value!r} must be one of {', '.join(MODES)}")
            return "compare"
        if value in {"missing", "repair", "schema"} and self._form["extend"] is True:
            rule = f"cannot be with mode {value}, which adds no date; leave it out, or choose mode rebuild"
            self._wrong("extend", rule)
        mode: Mode = value
        return mode

    def _exchange(self) -> Exchange:
        value = self._form["exchange"]
        if value not in EXCHANGES:
            self._wrong("exchange", f"{value!r} must be one of {', '.join(EXCHANGES)}")
            return "together"
        if value == "by-date" and self._form["mode"] not in BY_DATE:
            self._wrong("exchange", f"can be by-date only in mode {' or '.join(BY_DATE)}; leave it out")
        exchange: Exchange = value
        return exchange

    def _schema_version(self, labels: list[str]) -> int | None:
        value = self._form["schema_version"]
        if self._form["mode"] != "schema":
            if value is not None:
                self._wrong("schema_version", "is for mode schema alone; leave it out, or choose that mode")
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            self._wrong(
                "schema_version", "is needed in mode schema: the version that `tidemark schema show` says waits"
            )
            return None
        if len(labels) > 1:
            self._wrong("topics", "must be one in mode schema, since each has versions of its own")
        return value

    def _reason(self) -> str:
        value = self._form["reason"] or ""
        text = value.strip() if isinstance(value, str) else ""
        needed = self._form["dry_run"] is False and self._form["mode"] != "compare"
        if not isinstance(value, str) or len(text) > LONGEST_REASON or not all(c.isprintable() for c in text):
            self._wrong("reason", f"must be one line of text, {LONGEST_REASON} characters at most")
        elif needed and not text:
            self._wrong("reason", "is needed for what rewrites a table: say why, or make it a dry run")
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
