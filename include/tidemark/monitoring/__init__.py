"""Observes a deployment: its present faults, since when they last, and the notifiers that have reported them.

* :mod:`tidemark.monitoring.observation` reads the objects of the store that have changed
* :mod:`tidemark.monitoring.topic_conditions` derives the conditions of a topic, and is pure
* :mod:`tidemark.monitoring.deployment_conditions` does the same for agents, scan and DAG files
* :mod:`tidemark.monitoring.observer_state` is the state that one observation leaves for the next
* :mod:`tidemark.monitoring.incident_store` changes the object of the incidents by compare-and-set
* :mod:`tidemark.monitoring.messages` selects the messages that are due and writes their text, and is pure
"""
