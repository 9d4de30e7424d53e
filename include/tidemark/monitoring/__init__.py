"""Observes a deployment: what is wrong now, since when, and which notifier has reported it.

* :mod:`tidemark.monitoring.observe_cluster` reads those objects of the store that have changed
* :mod:`tidemark.monitoring.topic_conditions` derives what is wrong with a topic, and is pure
* :mod:`tidemark.monitoring.deployment_conditions` does the same for agents, scan and DAG files
* :mod:`tidemark.monitoring.observer_state` is what one observation leaves for the next
* :mod:`tidemark.monitoring.incident_store` changes the object of the incidents by compare-and-set
* :mod:`tidemark.monitoring.messages` says which messages are due and writes their text, and is pure
"""
