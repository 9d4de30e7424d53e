"""A model of the live end: seals, packs and heads against elections, kills and delayed writes.

``docs/live-end-design.md`` describes the protocol. The model has no I/O and no clock. The actors (an agent on each
broker, a reader, the retention of packs) are generators that hand each access to the store, the disk or the broker to
the scheduler. A seed decides who moves next, which write is lost, late or repeated, and what happens to the brokers.
"""
