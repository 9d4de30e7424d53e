"""Reads what Kafka's own tiered storage (KIP-405) has left in a store, without a broker.

The objects are those of Aiven's ``tiered-storage-for-apache-kafka``, the remote storage manager of most clusters that
run themselves. A *copy* of a segment is three objects: ``.log``, ``.indexes``, and ``.rsm-manifest``, which is written
last and without which the other two cannot be read. Nothing here writes.

* :mod:`~tidemark.kafka_tier.keys` names the objects, :mod:`~tidemark.kafka_tier.manifest` describes a copy.
* :mod:`~tidemark.kafka_tier.copies` lists the copies of a topic and gives their original bytes, which
  :mod:`~tidemark.kafka_tier.encryption` decrypts.
* :mod:`~tidemark.kafka_tier.proof` tells which copies count, :mod:`~tidemark.kafka_tier.proof` checks one.

Source of the format: KIP-405, and the objects that Kafka 4.3.1 writes through the plugin. docs/tiered.md describes it.
"""
