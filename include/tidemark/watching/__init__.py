"""Looking after a deployment: what is wrong now, since when, and who has been told.

* :mod:`tidemark.watching.looking`     reads the store, only where it changed
* :mod:`tidemark.watching.conditions`  what is wrong with a topic, by what was read: pure
* :mod:`tidemark.watching.deployment_conditions`  ... and beside the tables: agents, scan, DAG files
* :mod:`tidemark.watching.sightings`   what one look leaves for the next
* :mod:`tidemark.watching.recording`   the incidents' object, changed by compare-and-set
* :mod:`tidemark.watching.messages`    which messages are due, and their words: pure
"""
