"""The DAG that proposes a topic: a form with the options of `tidemark topics add`, and a patch of the topics file.

The task asks Kafka, samples records, and tries its proposal. Its log has the report (columns, event times, rights,
rate, load, cost, freshness) and the patch; its XCom `return_value` is the patch, and `report` the report. It is red if
the topic is refused, with the reason. Nothing is changed: `git apply` makes the change. The form offers to change the
file only if the configuration has `[tidemark] onboarding_writes`.

For a topic that does not exist yet, *Placement* proposes partitions and brokers by load, and *Create* creates it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

from airflow.sdk import DAG, BaseOperator, Param
from airflow.sdk.exceptions import AirflowFailException

from tidemark.config import DURATION
from tidemark.errors import ConfigError
from tidemark.onboarding.options import (
    DEFAULT_PARTITION_RATE,
    DEFAULT_RECORDS,
    DEFAULT_REPLICATION_FACTOR,
    MOST_RECORDS,
    RATE,
    Format,
    SampleSource,
    TimeUnit,
    WantedTopic,
    byte_rate,
    need_extra,
)
from tidemark.parsers.settings import Misfits
from tidemark.topics import Deployment
from tidemark_airflow import connections, settings
from tidemark_airflow.configuration import flag, label
from tidemark_airflow.dag_factories import task_defaults

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tidemark.onboarding.onboard import OnboardingRequest

DETECTED: Final = "detected"
"""A choice in the form: use the value found in the sample, or the library's default."""

NONE: Final = "none"
BEST: Final = "*"
"""Choices in the form: no registry; the best brokerset for the topic. Airflow treats an empty choice as missing."""

DAG_ID = "tidemark_onboard"
_RUNS = 16
_MOST_PARTITIONS = 10_000

_ACTIONS = {
    "patch": "Propose the change of the topics file",
    "placement": "Placement: propose partitions and brokers of a topic that does not exist yet",
    "create": "Create: propose them, and create the topic",
}
_TOPIC = r"^(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}$"
_FILE = r"^(?!/)(?!.*\.\.)[a-zA-Z0-9._/-]{1,250}$"
_NAME = r"^[a-zA-Z0-9][a-zA-Z0-9._-]{0,200}$"

_TEXT: dict[str, Any] = {"type": ["null", "string"], "maxLength": 1000}


def form(deployment: Deployment) -> dict[str, Param]:
    """The fields, drawn and checked by Airflow; the library checks rules about several fields."""
    return {
        "cluster": _cluster(sorted({*deployment.clusters, *deployment.bootstrap})),
        "topic": Param(
            type="string",
            pattern=_TOPIC,
            title="Topic",
            description="Its name in Kafka; the topics file must not have it yet.",
        ),
        "action": Param(
            "patch", type="string", enum=list(_ACTIONS), values_display=_ACTIONS, title="Action",
            description="Create changes Kafka; the others only look.",
        ),
        **_writing(),
        **_sample(),
        **_records(deployment),
        **_table(),
        **_creation(),
    }  # fmt: skip


def _cluster(known: list[str]) -> Param:
    """The field for the cluster; without a default if there are several."""
    schema: dict[str, Any] = {"enum": known} if known else {}
    if len(known) == 1:
        schema["default"] = known[0]
    return Param(type="string", title="Cluster", description="A cluster of the topics file.", **schema)


def _writing() -> dict[str, Param]:
    if not flag("onboarding_writes"):
        return {}
    description = "Also change the topics file on the machine where the task runs, unless it has changed meanwhile."
    return {"write": Param(default=False, type="boolean", title="Write", description=description)}


def _choice(title: str, description: str, of: Any, section: str) -> Param:
    """A field with the values of a Literal, and the library's choice."""
    values = [DETECTED, *get_args(of)]
    return Param(DETECTED, type="string", enum=values, title=title, description=description, section=section)


def _sample() -> dict[str, Param]:
    section = "Sample"
    return {
        "sample_from": Param(
            "auto", type="string", enum=list(get_args(SampleSource)), title="Source", section=section,
            description="auto: the agents' stored segments, or else Kafka.",
        ),
        "records": Param(
            DEFAULT_RECORDS, type="integer", minimum=1, maximum=MOST_RECORDS, title="Records", section=section,
            description="At most; the first and the last of each partition.",
        ),
        "rate": Param(
            None, type=["null", "string"], pattern=f"^{RATE}$", title="Rate", section=section,
            description="Bytes a second, such as 20MiB or 20MB/s. Empty: measured. Needed for a topic to be created.",
        ),
        "compacted": Param(
            default=False, type="boolean", title="Compacted", section=section,
            description="The topic may be compacted: the table gets the records that remain at the upload.",
        ),
    }  # fmt: skip


def _records(deployment: Deployment) -> dict[str, Param]:
    section = "Records"
    known = [NONE, *sorted(deployment.registries)]
    file: dict[str, Any] = {"type": ["null", "string"], "pattern": _FILE, "section": section}
    text: dict[str, Any] = {**_TEXT, "section": section}
    return {
        "format": _choice("Format", "Format of the values.", Format, section),
        "registry": Param(
            NONE, type="string", enum=known, title="Schema registry", section=section,
            description="The table follows its schemas. Those of the topics file.",
        ),
        "subject": Param(
            None, title="Subject", description="Subject in the registry. Empty: <topic>-value.", **text
        ),
        "schema": Param(None, title="Avro schema", description="A file below the topics file's folder.", **file),
        "descriptors": Param(
            None, title="Protobuf descriptors", description="A file below the topics file's folder.", **file
        ),
        "message": Param(None, title="Protobuf message", description="Such as shop.Order.", **text),
        "misfits": _choice("Misfits", "Handling of values that their column cannot hold.", Misfits, section),
    }  # fmt: skip


def _table() -> dict[str, Param]:
    section = "Table"
    return {
        "event_time": Param(
            "auto", type="string", minLength=1, maxLength=1000, examples=["auto", "none"], title="Event time",
            description="A column, auto (the column nearest to the records' own time) or none.", section=section,
        ),
        "event_time_unit": _choice("Unit", "Of an event time that is a whole number.", TimeUnit, section),
        "table": Param(
            None, type=["null", "string"], pattern=_NAME, title="Name", section=section,
            description="Empty: the topic's.",
        ),
        "owner": Param(None, title="Owner", description="Shown in Airflow.", **_TEXT, section=section),
        "freshness": Param(
            None, type=["null", "string"], pattern=f"^{DURATION}$", title="Freshness", section=section,
            description="The promise from append to query, such as 60s. The agents need the same setting.",
        ),
    }  # fmt: skip


def _creation() -> dict[str, Param]:
    section = "A topic that does not exist yet"
    file = settings.brokersets()
    names = sorted({name for cluster in file.clusters.values() for name in cluster.brokersets}) if file else []
    return {
        "partitions": Param(
            None, type=["null", "integer"], minimum=1, maximum=_MOST_PARTITIONS, title="Partitions", section=section,
            description="A multiple of the brokerset's brokers. Empty: by the rate.",
        ),
        "partition_rate": Param(
            DEFAULT_PARTITION_RATE, type="string", pattern=f"^{RATE}$", title="Rate of a partition", section=section,
            description="Bytes a second that one partition may have.",
        ),
        "replication_factor": Param(
            DEFAULT_REPLICATION_FACTOR, type="integer", minimum=1, maximum=100, title="Replicas", section=section,
            description="Of each partition.",
        ),
        "brokerset": Param(
            BEST, type="string", enum=[BEST, *names], values_display={BEST: "the best for its load"},
            title="Brokerset", description="Of the brokersets file.", section=section,
        ),
    }  # fmt: skip


class OnboardOperator(BaseOperator):
    """Proposes the topic of the run's params: the change of the topics file as a patch, or how to create the topic.

    The report for a person is in the task's log, and as XCom ``report``.
    """

    def execute(self, context: Context) -> str:
        """Propose, and return the patch, or for a topic to be created the command that does it.

        Raises:
            AirflowFailException: the topic is refused, in the words of the command; a retry would give the same answer.
            TidemarkError: Kafka, the store or a registry does not answer.
        """
        fields = dict(context["params"])
        try:
            need_extra()
            report, answer = self._create(fields) if fields["action"] != "patch" else self._patch(fields)
        except ConfigError as error:
            raise AirflowFailException(str(error)) from None
        context["ti"].xcom_push(key="report", value=report)
        return answer

    def _patch(self, fields: Mapping[str, Any]) -> tuple[str, str]:
        from tidemark.onboarding.gather import look_at
        from tidemark.onboarding.report import lines, next_step

        deployment = settings.deployment()
        if fields.get("write") and not flag("onboarding_writes"):
            raise ConfigError("Airflow's configuration", [(label("onboarding_writes"), "does not allow to write")])
        request = request_of(fields, settings.topics_file())
        client = _client(deployment, request.cluster)
        onboarded, rights = look_at(
            request, deployment, client, fields["sample_from"], fields["records"], self.log.info
        )
        report, patch = "\n".join(lines(onboarded, rights)), onboarded.change.patch()
        self.log.info("%s\n%s", report, patch)
        if fields.get("write"):
            onboarded.change.write()
            self.log.info("%s: changed", request.path)
        self.log.info(next_step(onboarded))
        return report, patch

    def _create(self, fields: Mapping[str, Any]) -> tuple[str, str]:
        from tidemark.onboarding.creation import Creation, create

        shown: list[Creation] = []

        def show(creation: Creation) -> None:
            shown.append(creation)
            self.log.info("%s\n%s", "\n".join(creation.lines()), creation.command)

        deployment, wanted = settings.deployment(), wanted_of(fields)
        execute = fields["action"] == "create"
        client = _client(deployment, wanted.cluster)
        path = settings.brokersets_file()
        create(wanted, settings.topics_file(), deployment, client, path, show, execute=execute)
        if execute:
            self.log.info("%s: created; onboard it by another run", wanted.topic)
        return "\n".join(shown[0].lines()), shown[0].command


def request_of(fields: Mapping[str, Any], path: Path) -> OnboardingRequest:
    """The request in the form. Raises ConfigError."""
    from tidemark.onboarding.onboard import OnboardingRequest
    from tidemark.onboarding.proposal import ProposalHints

    def chosen(name: str) -> Any:
        return None if fields[name] == DETECTED else fields[name]

    hints = ProposalHints(
        format=chosen("format"),
        schema=fields["schema"],
        descriptors=fields["descriptors"],
        message=fields["message"],
        registry=None if fields["registry"] == NONE else fields["registry"],
        subject=fields["subject"],
        misfits=chosen("misfits"),
    )
    return OnboardingRequest(
        path=path,
        cluster=fields["cluster"],
        topic=fields["topic"],
        keys={name: fields[name] for name in ("table", "owner", "freshness") if fields[name]},
        hints=hints,
        event_time=fields["event_time"],
        unit=chosen("event_time_unit"),
        rate=byte_rate(fields["rate"], "--rate") if fields["rate"] else None,
        compacted=fields["compacted"],
    )


def wanted_of(fields: Mapping[str, Any]) -> WantedTopic:
    """The topic to be created. Raises ConfigError."""
    return WantedTopic(
        cluster=fields["cluster"],
        topic=fields["topic"],
        rate=byte_rate(fields["rate"], "--rate") if fields["rate"] else None,
        partition_rate=byte_rate(fields["partition_rate"], "--partition-rate"),
        partitions=fields["partitions"],
        replication_factor=fields["replication_factor"],
        brokerset=None if fields["brokerset"] == BEST else fields["brokerset"],
    )


def _client(deployment: Deployment, cluster: str) -> dict[str, Any] | None:
    return connections.kafka_client(cluster, deployment.bootstrap.get(cluster))


def onboarding_dag(deployment: Deployment) -> DAG:
    """The DAG; it is started by its form, by REST or from the command line, and is not paused."""
    with DAG(
        dag_id=DAG_ID,
        schedule=None,
        is_paused_upon_creation=False,
        max_active_runs=_RUNS,
        catchup=False,
        default_args={**task_defaults.DEFAULT_ARGS, "owner": "tidemark", "retries": 2},
        tags=["tidemark", "onboarding"],
        description="Looks at a topic and a sample of it, and proposes the change of the topics file that ingests it",
        doc_md=__doc__,
        params=form(deployment),
    ) as dag:
        OnboardOperator(task_id="propose")
    return dag
