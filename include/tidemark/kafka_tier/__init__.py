"""Reads what Kafka's own tiered storage (KIP-405) has left in a store, without a broker.

The objects are those of Aiven's ``tiered-storage-for-apache-kafka``, the remote storage manager of most clusters that
run themselves. A *copy* of a segment is three objects: ``.log``, ``.indexes``, and ``.rsm-manifest``, which is written
last and without which the other two cannot be read. Nothing here writes.

* :mod:`~tidemark.kafka_tier.manifest` names the objects, and describes a copy.
* :mod:`~tidemark.kafka_tier.copies` lists the copies of a topic, gives their original bytes, which
  :mod:`~tidemark.kafka_tier.encryption` decrypts, tells which copies count, and checks them.

Source of the format: KIP-405, and the objects that Kafka 4.3.1 writes through the plugin. docs/tiered.md describes it.
"""
