"""Looking after a deployment: what is wrong now, since when, and who has been told.

* :mod:`tidemark.monitoring.observe_cluster`     reads the store, only where it changed
* :mod:`tidemark.monitoring.topic_conditions`  what is wrong with a topic, by what was read: pure
* :mod:`tidemark.monitoring.deployment_conditions`  ... and beside the tables: agents, scan, DAG files
* :mod:`tidemark.monitoring.observer_state`   what one look leaves for the next
* :mod:`tidemark.monitoring.incident_store`   the incidents' object, changed by compare-and-set
* :mod:`tidemark.monitoring.messages`    which messages are due, and their words: pure
"""
