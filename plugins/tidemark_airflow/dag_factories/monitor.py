"""The DAG that checks the deployment every minute: a problem becomes an incident, and people are notified once.

``observe`` looks, records, and returns the due messages. Each message is sent by a task of its own, with retries, a log
and a history, and recorded as sent only once its notifier has returned. So a message is sent at least once: if a worker
is killed between the two, it is sent again. A message that could not be sent is due again at the next look. Incidents
are in the store and not in Airflow, so neither a restart nor two concurrent looks make a second incident.

A topics file that does not load is itself an incident; the place to record it is known from the file's last valid
state.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple, TypedDict

from airflow.sdk import DAG, Variable, get_current_context
from airflow.sdk.exceptions import AirflowSkipException

from tidemark.errors import ConfigError
from tidemark.monitoring.incidents import KINDS, Unknown, found_by
from tidemark.topics import Deployment
from tidemark_airflow import settings
from tidemark_airflow.dag_factories import task_defaults
from tidemark_airflow.notifications import notifiers

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tidemark.monitoring.incidents import Incidents
    from tidemark.monitoring.observation import ClusterLook
    from tidemark.monitoring.observer_state import Sightings

WATCH_DAG: Final = "tidemark_watch"
_PLACE: Final = "tidemark_watch_place"
_BLIND: Final = "tidemark_watch_blind"
_MOST_NOTES: Final = 200
"""Most messages of one run; the rest is due in the next run."""
_AT_A_TIME: Final = 8

log = logging.getLogger(__name__)


class DueMessage(TypedDict):
    """A due message: small, as its content is in the store."""

    cluster: str
    notifier: str
    key: str
    label: str


def watch_dag() -> DAG:
    """``tidemark_watch``. Only its tasks read the topics file, so that it runs even with a wrong file."""
    with DAG(
        dag_id=WATCH_DAG,
        schedule="* * * * *",
        start_date=task_defaults.START,
        catchup=False,
        max_active_runs=1,
        default_args={
            **task_defaults.DEFAULT_ARGS,
            "owner": "tidemark",
            "retries": 2,
            "execution_timeout": timedelta(minutes=10),
            # A message that could not be sent is due again at the next look.
            "on_failure_callback": None,
        },
        tags=["tidemark", "watch"],
        description="Looks for problems every minute, and tells people once.",
        doc_md=__doc__,
    ) as dag:
        observed = task_defaults.task_of_promises(task_id="observe", on_failure_callback=on_blind)(observe)()
        send = task_defaults.task_of_promises(
            task_id="deliver",
            retries=3,
            retry_delay=timedelta(seconds=5),
            execution_timeout=timedelta(minutes=1),
            max_active_tis_per_dagrun=_AT_A_TIME,
            map_index_template="{{ label }}",
        )(deliver)
        send.expand(note=observed)
    return dag


class WatchPlace(NamedTuple):
    """The place of incidents. While the topics file is wrong (``problem``), the deployment has no topics."""

    deployment: Deployment
    clusters: tuple[str, ...]
    problem: str = ""


def observe() -> list[DueMessage]:
    """Look at each cluster, record opened, changed and closed incidents, and return the due messages.

    Raises:
        StoreError: the lake's store does not answer.
        FormatError: the incidents' object does not parse.
        ConfigError: the topics file is wrong and never was right before, or the notifiers are wrong.
    """
    from tidemark.monitoring.deployment_conditions import own_clock_off, topics_file_wrong
    from tidemark.monitoring.incident_store import compared, read_sightings, record
    from tidemark.monitoring.messages import due
    from tidemark.monitoring.observation import look
    from tidemark.store.clock import MOST
    from tidemark.timestamps import utc_now

    names, place = sorted(notifiers.configured()), find_place()
    reading = None if place.problem else compared(place.deployment)
    now = reading.now if reading else utc_now()
    notes: list[DueMessage] = []
    for cluster in place.clusters:
        before = read_sightings(place.deployment, cluster)
        seen = _blind(before, now) if place.problem else look(place.deployment, cluster, before, now)
        if reading is not None and abs(reading.skew) > MOST:
            seen = seen._replace(conditions=(*seen.conditions, own_clock_off(cluster, reading.skew, now)))
        if place.problem and cluster == place.clusters[0]:  # the file belongs to no cluster, and is reported once
            wrong = topics_file_wrong(cluster, settings.topics_file().name, place.problem, now)
            seen = seen._replace(conditions=(*seen.conditions, wrong))
        incidents = record(place.deployment, cluster, seen).incidents
        for incident in incidents:
            if incident.open:
                log.warning("open: %s: %s", incident.title, incident.text)
        notes += [
            {
                "cluster": cluster,
                "notifier": name,
                "key": message.key,
                "label": f"{name}: {message.status} {message.key}"[:250],
            }
            for name in names
            for message in due(incidents, name, now)
        ]
    _sees_again()
    return notes[:_MOST_NOTES]


def on_blind(context: Context) -> None:
    """Notify once that the look failed for good: the lake's store, which records the messages, does not answer."""
    if Variable.get(_BLIND, default=None) is None:
        error = context.get("exception")
        notifiers.tell_all(context, "Tidemark: opened: nobody looks after the deployment", f"{error}", _BLIND)
        Variable.set(_BLIND, str(datetime.now(UTC)), description="Since when Tidemark's watch fails")


def _sees_again() -> None:
    if Variable.get(_BLIND, default=None) is not None:
        context = get_current_context()
        notifiers.tell_all(context, "Tidemark: closed: the deployment is looked after again", "", _BLIND, "closed")
        Variable.delete(_BLIND)


def deliver(note: DueMessage) -> None:
    """Send the message with the note's key, then record that it was sent.

    Raises:
        AirflowSkipException: it has been sent meanwhile, or there is no news any more.
    """
    from tidemark.monitoring.incident_store import change_incidents, read_incidents
    from tidemark.monitoring.messages import delivered, due
    from tidemark.timestamps import utc_now

    context, deployment, name = get_current_context(), find_place().deployment, note["notifier"]
    context["label"] = note["label"]  # type: ignore[typeddict-unknown-key] # for map_index_template
    known = read_incidents(deployment, note["cluster"])
    message = next(
        (candidate for candidate in due(known.incidents, name, utc_now()) if candidate.key == note["key"]), None
    )
    if message is None:
        raise AirflowSkipException(f"{note['key']}: nothing is left to tell")
    notifiers.send(context, name, notifiers.news_of(message))
    at = utc_now()

    def sent(known: Incidents) -> Incidents:
        incidents = tuple(delivered(incident, name, message, at) for incident in known.incidents)
        return known.model_copy(update={"incidents": incidents})

    change_incidents(deployment, note["cluster"], sent)


def find_place() -> WatchPlace:
    """The deployment, or while the topics file is wrong, its last known place.

    Raises:
        ConfigError: the file is wrong, and never was right before.
    """
    known = Variable.get(_PLACE, default=None, deserialize_json=True)
    try:
        deployment = settings.deployment()
    except ConfigError as error:
        if known is None:
            raise
        fields = {"raw": {"url": known["lake"]}, "lake": known["lake"], "store": known["store"], "topics": ()}
        return WatchPlace(Deployment.model_validate(fields), tuple(known["clusters"]), str(error))
    store = deployment.store.model_dump(mode="json", exclude_defaults=True)
    place = {"lake": deployment.lake, "store": store, "clusters": list(deployment.clusters)}
    if place != known:
        Variable.set(_PLACE, place, description="Where Tidemark's incidents are recorded", serialize_json=True)
    return WatchPlace(deployment, deployment.clusters)


def _blind(before: Sightings, now: datetime) -> ClusterLook:
    """A look without any observation, so that all incidents stay unchanged."""
    from tidemark.monitoring.observation import ClusterLook

    unknown = Unknown(frozenset(KINDS) - found_by("topics file"))
    return ClusterLook((), (unknown,), before.model_copy(update={"at": now}))
