"""The page of jobs in the documentation, made from the registry: ``python -m tidemark.jobs.page > docs/jobs.md``."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator

from tidemark.jobs.options import JobOptions, SparkOptions, TopicsOptions, Word, user
from tidemark.jobs.registry import JOBS

_HEAD = """\
# The jobs

This page is made from the code, by `python -m tidemark.jobs.page`, and a test compares the two. The programs lie in
`spark/jobs`, or with an installed wheel in `$(tidemark paths jobs)`. [Spark](spark.md) says how to start them. Airflow
starts most of them [by itself](maintenance.md).

A job prints its results to standard output, and whatever goes wrong to standard error. Its exit code is 0 if it has
done its work, 2 if an option or the topics file is wrong, and 1 after any other error, unless its section says
otherwise.
"""

_WITHOUT = "Nothing is converted, so no Spark is started: `python {program}` is enough.\n"


def page(jobs: Iterable[type[JobOptions]]) -> str:
    """The page of ``jobs``."""
    return "\n".join(
        [
            _HEAD,
            "## Options of all jobs for topics\n",
            *_table(TopicsOptions.words().values()),
            "\n## Options of all jobs with tasks for Spark\n",
            *_table(SparkOptions.words().values()),
            *(line for job in jobs for line in _section(job)),
        ]
    )


def _section(job: type[JobOptions]) -> Iterator[str]:
    common = {
        **(TopicsOptions.words() if issubclass(job, TopicsOptions) else {}),
        **(SparkOptions.words() if issubclass(job, SparkOptions) else {}),
    }
    yield f"\n## `{job.program()}`\n"
    yield f"{inspect.getdoc(job)}\n"
    if not job.needs_spark:
        yield _WITHOUT.format(program=job.program())
    if job.example:
        yield f"```bash\n{job.command()}\n```\n"
    own = [word for name, word in job.words().items() if name not in common]
    if own:
        yield from _table(own)


def _table(words: Iterable[Word]) -> Iterator[str]:
    yield "| option | what it says |"
    yield "|---|---|"
    for word in words:
        value = "" if word.is_flag else f" {'|'.join(word.choices) or word.metavar}".replace("|", r"\|")
        facts = ["required"] if word.field.is_required() else []
        default = word.field.get_default(call_default_factory=True)
        if default and not word.field.is_required():
            facts.append(f"default: `{str(default).replace(user(), 'USER@HOST')}`")
        does = "; ".join(part for part in (word.does, *facts) if part).replace("|", r"\|")
        yield f"| `{word.flag}{value}` | {does} |"


if __name__ == "__main__":
    sys.stdout.write(page(JOBS.values()))
