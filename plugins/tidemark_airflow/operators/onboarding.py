"""The task that proposes a topic, like ``tidemark topics add``, from the fields of a run's form.

It runs in the task's own process, with the connections named in ``[tidemark]``. No field takes a secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from tidemark.errors import ConfigError
from tidemark.onboarding.options import WantedTopic, byte_rate, need_extra
from tidemark.topics import Deployment
from tidemark_airflow import connections, settings
from tidemark_airflow.configuration import flag, label

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tidemark.onboarding.onboard import OnboardingRequest

DETECTED: Final = "detected"
"""A choice in the form: use the value found in the sample, or the library's default."""

NONE: Final = "none"
BEST: Final = "*"
"""Choices in the form: no registry; the best brokerset for the topic. Airflow treats an empty choice as missing."""


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
