"""A backfill as a person asks for it: the form of the DAG, the command line and the REST call, checked as a whole.

All that is wrong is told at once, each with its field, so that a form need not be sent again for every mistake. What is
left is topics of the topics file, dates, and numbers: nothing else ever becomes part of a key or of a command.
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
"""What is done with the dates.

* ``rebuild``: all their records are converted from raw again, and replace the files there are
* ``compare``: they are converted as well, and nothing is written but which rows would change
* ``missing``: a rebuild of those dates alone of which files are lost
* ``replay``: their quarantined records are parsed again, without raw
* ``repair``: the whole table is made right from raw after somebody else changed it; the dates say nothing
* ``schema``: the whole table is made again with the columns of a version of its registry's schema; likewise
"""

MODES: Final[tuple[Mode, ...]] = get_args(Mode)
MOST_DAYS: Final = 366
MOST_TOPICS: Final = 100
LONGEST_REASON: Final = 500
APPROVE_ABOVE_DAYS: Final = 31
"""More dates than these that are rewritten need an approval, however small they are."""

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
    """``reports/<name>/request.json``: one topic of a checked form. ``by`` is who asked, as Airflow knows them.

    ``max_bytes`` is what may be read of the topic, ``approve_above`` what may be read of all unapproved.
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
        """The dates that were asked for, as ISO."""
        return [str(self.first + timedelta(days=n)) for n in range((self.last - self.first).days + 1)]

    @property
    def compares(self) -> bool:
        """Whether rows are compared one by one; of lost files there are none to compare with."""
        return self.mode == "compare" or (self.mode in {"rebuild", "schema"} and self.differences)

    @property
    def rewrites(self) -> bool:
        """Whether the table is to change."""
        return self.mode != "compare" and not self.dry_run

    @property
    def label(self) -> str:
        """``cluster/topic``."""
        return f"{self.cluster}/{self.topic}"


def report_name(run: str) -> str:
    """The name under which the run ``run`` keeps its reports: 16 hexadecimal digits, whatever the run is called."""
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
    """The form as requests, one a topic. ``approve_at_most`` is how many GiB the deployment lets pass unapproved.

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
            cluster=one.cluster,
            topic=one.topic,
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
        for one in topics
    ]


class _Form:
    """Notes each problem and goes on; what it returns counts only if there is none."""

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
        if not isinstance(named, list) or not named or not all(isinstance(one, str) for one in named):
            self._wrong("topics", "choose at least one, each as cluster/topic, such as kafka-1/orders")
            return []
        if len(named) > MOST_TOPICS:
            self._wrong("topics", f"{len(named)} are more than {MOST_TOPICS}; start several runs")
            return []
        return [found for one in dict.fromkeys(named) if (found := self._topic(one)) is not None]

    def _topic(self, label: str) -> TopicSettings | None:
        cluster, _, name = label.partition("/")
        try:
            return self._deployment.topic(name, cluster)
        except ConfigError:
            known = [f"{one.cluster}/{one.topic}" for one in self._deployment.topics]
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
        found: Mode = value
        return found

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
        for one in topics:
            if one.digest != wanted:
                rule = (
                    f"{wanted!r} is not that of {one.cluster}/{one.topic}, which is {one.digest}; dates are made with "
                    "the settings of the topics file: change them there first, and see `tidemark config check`"
                )
                self._wrong("configuration", rule)
