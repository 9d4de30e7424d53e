"""A backfill's report as tables, for a page, an approval and a terminal alike.

The cells are data, some of it a person's text: the code that shows them must escape them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from tidemark.backfill.preview import DatePreview, Preview, estimated_minutes, estimated_requests
from tidemark.backfill.report import Approval, BackfillOutcome, BackfillReport, Comparison, DateChange, RecordCounts
from tidemark.backfill.request import Mode
from tidemark.formats.table.plan import RunProgress
from tidemark.terminal import columns
from tidemark.words import printable

MOST_ROWS: Final = 500
"""Most rows of a table that are shown. A note counts the others."""


class Section(NamedTuple):
    """A titled table; ``note`` explains it, or why it is empty."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


_NOTHING: Final = {
    "missing": "No file of these dates is lost.",
    "repair": "The table has the files of its evidence and no others, and all of them are there.",
}


def sections(report: BackfillReport) -> list[Section]:
    """The report, from the request to the outcome."""
    parts = [_asked(report)]
    if report.preview:
        rewrites = report.request.mode != "compare"
        parts += of_preview(report.preview, report.request.mode, compares=report.request.compares, rewrites=rewrites)
    if report.comparison:
        parts.append(of_comparison(report.comparison))
    if report.approval:
        parts.append(_approval(report.approval))
    if report.progress and not report.outcome:
        parts.append(_progress(report.progress))
    if report.outcome:
        parts.append(_outcome(report.outcome))
    return parts


def of_preview(preview: Preview, mode: Mode, *, compares: bool = False, rewrites: bool = True) -> list[Section]:
    """The dry run of a ``mode`` that compares rows, or rewrites them, or does both."""
    parts = [_planned(preview, mode, compares, rewrites), _dates(preview)]
    return [*parts, _reasons(preview)] if preview.reasons else parts


def of_comparison(comparison: Comparison) -> Section:
    """The differences."""
    if not comparison.differences:
        note = f"{comparison.rows:,} rows were compared with what raw gives now, and are the same."
        return Section("Row differences", (), (), note)
    header = ("Partition", "Date", "Records", "Before", "After", "Removed", "Added", "Changed", "From offset")
    rows = [
        (
            f"{diff.incarnation}/{diff.partition}",
            diff.dt or "none",
            diff.kind,
            *(f"{n:,}" for n in (diff.before, diff.after, diff.only_before, diff.only_after)),
            ", ".join(f"{n:,} in {name}" for name, n in sorted(diff.changed.items()))
            or ("others" if diff.others else ""),
            "; ".join(f"{name.replace('_', ' ')}: {offsets[0]}" for name, offsets in diff.offsets.items() if offsets),
        )
        for diff in comparison.differences
    ]
    return _capped("Row differences", header, rows, f"{comparison.rows:,} rows were compared with what raw gives now.")


def text(*parts: Section) -> str:
    """The tables for a terminal or a log."""
    return "\n\n".join("\n".join(_lines(part)) for part in parts)


def gib(size: int) -> str:
    """Bytes for a person: ``1.50 GiB``, or in a smaller unit."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:,.2f} {name}"
    return f"{size} B"


def _asked(report: BackfillReport) -> Section:
    request = report.request
    extend = ", and those that exchange rows with them" if request.extend else ""
    by_date = ", a commit for each date" if request.exchange == "by-date" else ""
    rows = [
        ("Topic", request.label),
        ("Dates", f"{request.first} to {request.last}{extend}"),
        ("Mode", f"{request.mode}{by_date}{', dry run' if request.dry_run else ''}"),
        ("Reason", request.reason or "none given"),
        ("Asked by", request.by or "unknown"),
        ("Run", request.run),
        ("State", report.state),
    ]
    if report.preview and report.preview.configuration:
        rows.insert(3, ("Settings", f"{report.preview.configuration}, those of the topics file"))
    return Section("Backfill", ("What", "Value"), tuple(rows))


def _planned(preview: Preview, mode: Mode, compares: bool, rewrites: bool) -> Section:
    if preview.empty:
        note = _NOTHING.get(mode, "There is nothing of these dates.")
        if preview.waiting:
            note += f" {preview.waiting:,} offsets are uploaded and not landed yet: ingestion lands them."
        return Section("What it does", (), (), note)
    time = estimated_minutes(preview, compares=compares, rewrites=rewrites)
    asked = estimated_requests(preview, compares=compares, rewrites=rewrites)
    files = preview.segments
    rows = [
        ("Dates", f"{len(preview.dates):,}"),
        ("Files of quarantine read" if preview.kind == "replay" else "Segments read", f"{files:,}"),
        ("Bytes read", f"{gib(preview.bytes)}{', twice: to compare, and to rewrite' if compares and rewrites else ''}"),
        ("Tasks", f"{preview.tasks:,}"),
        ("Files replaced", f"{len(preview.removes):,}" if rewrites else "none"),
        ("Estimated time", f"{time:,.1f} minutes, at {preview.rate / 1e6:,.0f} MB/s"),
        ("Estimated requests", f"{asked:,}"),
        *(("Column", column) for column in preview.columns),
    ]
    note = "Ingestion continues; what it lands after the dry run stays as it is."
    return Section("What it does", ("What", "Value"), tuple(rows), note)


def _dates(preview: Preview) -> Section:
    header = ("Date", "State", "Rows", "Quarantined", "Filtered", "Files", "Bytes", "By other settings", "Notes")
    return _capped("Dates as they are", header, [_date(preview, shown) for shown in preview.dates])


def _date(preview: Preview, shown: DatePreview) -> tuple[str, ...]:
    notes = ["added: exchanges rows"] if shown.dt in preview.added else []
    notes += [f"{len(shown.lost)} files lost"] if shown.lost else []
    notes += [f"{shown.after:,} records afterwards"] if shown.after is not None else []
    numbers = (f"{n:,}" for n in (shown.rows, shown.quarantined, shown.filtered, shown.files))
    return (shown.dt or "none", shown.state, *numbers, gib(shown.bytes), f"{shown.other_settings:,}", "; ".join(notes))


def _reasons(preview: Preview) -> Section:
    rows = [
        (f"{each.records:,}", each.schema_id or "none", _known(each.schema_version), each.reason)
        for each in preview.reasons
    ]
    note = "" if preview.reasons_of == preview.segments else f"Of the newest {preview.reasons_of:,} files."
    return Section("Why records were refused", ("Records", "Schema", "Version", "Reason"), tuple(rows), note)


def _known(version: int | None) -> str:
    return "" if version is None else f"{version:,}"


def _approval(approval: Approval) -> Section:
    verb = "approved" if approval.approved else "rejected"
    answer = "waited for" if approval.approved is None else f"{verb} by {approval.by}"
    rows = (("Needed, since", approval.why), ("Answer", answer), ("At", f"{approval.at:%Y-%m-%d %H:%M:%S} UTC"))
    return Section("Approval", ("What", "Value"), rows)


def _progress(progress: RunProgress) -> Section:
    share = 100 * progress.done // progress.total if progress.total else 100
    rows = (
        ("Tasks done", f"{progress.done:,} of {progress.total:,} ({share} %)"),
        ("At", f"{progress.at:%Y-%m-%d %H:%M:%S} UTC"),
    )
    return Section("Progress", ("What", "Value"), rows)


_ENDS: Final = {
    "landed": "",
    "stale": "The table has moved on since the dry run, and nothing was changed: start the backfill again.",
    "empty": "Nothing could be done, and nothing was changed.",
    "failed": "The job ended without a result; its log says why. Ledger and table are as the last commit left them.",
}


def _outcome(outcome: BackfillOutcome) -> Section:
    header = ("Date", "Landed", "Quarantined", "Filtered", "Landed more or less")
    note = _ENDS[outcome.status]
    if outcome.status == "landed":
        note = (
            f"Ledger {outcome.ledger_n}: {outcome.rows:,} rows in {outcome.files:,} files, "
            f"from {gib(outcome.bytes_read)} in {outcome.seconds:,.1f} s."
        )
    return _capped("Result", header, [_change(change) for change in outcome.dates], note)


def _change(change: DateChange) -> tuple[str, ...]:
    def both(name: str) -> str:
        before, after = getattr(change.before, name), getattr(change.after, name)
        return f"{after:,}" if before == after else f"{before:,} → {after:,}"

    more = change.after.landed - change.before.landed
    return (change.dt or "none", *(both(name) for name in RecordCounts.model_fields), f"{more:+,}" if more else "0")


def _capped(title: str, header: tuple[str, ...], rows: Sequence[tuple[str, ...]], note: str = "") -> Section:
    return capped(Section(title, header, tuple(rows), note), MOST_ROWS, "the report's JSON")


def capped(section: Section, most: int, place: str) -> Section:
    """``section`` with at most ``most`` rows; the note counts the others, and names their ``place``."""
    more = len(section.rows) - most
    if more <= 0:
        return section
    return section._replace(rows=section.rows[:most], note=f"{section.note} {more:,} rows more are in {place}.".strip())


def _lines(section: Section) -> list[str]:
    cells = [[printable(cell) for cell in row] for row in section.rows]
    table = [columns([section.header, *cells])] if cells else []
    return [section.title, *([section.note] if section.note else []), *table]


def markdown(sections: Sequence[Section]) -> str:
    """The tables as Markdown, with special characters in data escaped."""
    return "\n\n".join(part for section in sections for part in _markdown(section))


def _markdown(section: Section) -> list[str]:
    parts = [f"### {_escaped(section.title)}"]
    if section.note:
        parts.append(_escaped(section.note))
    if section.rows:
        head = [section.header, tuple("---" for _ in section.header)]
        cells = [*head[1:], *(tuple(_escaped(cell) for cell in row) for row in section.rows)]
        parts.append("\n".join(f"| {' | '.join(row)} |" for row in (head[0], *cells)))
    return parts


def _escaped(text: str) -> str:
    """``text`` so that Markdown shows it as it is: ASCII punctuation may be escaped (CommonMark 0.31, 2.4)."""
    return "".join(f"\\{c}" if c in _MARKDOWN else c for c in text)


_MARKDOWN: Final = frozenset("\\`*_{}[]<>()#+!|~&")
