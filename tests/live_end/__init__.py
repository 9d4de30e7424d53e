"""A model of the live end: seals, packs and heads against elections, kills and delayed writes.

``docs/agent-design.md`` describes the protocol. The model has no I/O and no clock. The actors (an agent on each
broker, a reader, the retention of packs) are generators that hand each access to the store, the disk or the broker to
the scheduler. A seed decides who moves next, which write is lost, late or repeated, and what happens to the brokers.

Not modelled: several partitions in a pack, dates, sane times, corrupt bytes, foreign epochs, acknowledged gaps, topics
without ids, other replicas that fill gaps, lineages that retention has cut. The model does not show these rules, which
are kept for other reasons:

* Heads are read again before a gap is recorded: a late write of the agent's own head could make a false gap.
* A new leader reads the heads after its claim. Otherwise it packs the same once more, and its seals have fewer records
  where compaction has run since.
* Batches that were read are checked against the lineage, although it is read again: a real read is not atomic.
* Lineages are compared by the ends of epochs. On compacted topics the model has no dead branches, since a cleaned log
  may not tell where an unclean election cut it.
* Readers take a seal before a range. Otherwise the late head of a deposed leader brings rows that compaction removed.
* Compaction leaves a record of each transactional batch. Where it emptied all batches of an aborted transaction on one
  broker, that broker's ranges do not list the transaction, and records of an older range could count as committed.
"""
