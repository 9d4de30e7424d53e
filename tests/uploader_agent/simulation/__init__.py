"""The agents of two brokers, the landing and the retention of packs in simulated time, run by a clock and a seed.

What runs is real code: each agent with all its threads (``process``), :func:`tidemark.planning.plan_ingest` with the
classes and the accounting of a run (``landing``), :func:`tidemark_spark.retention.packs.retain_packs`
(``pack_retention``). What is simulated is what it waits for and asks: time and threads (``clock``, ``threads``),
inotify over real files (``disk``), the cluster and its answers (``broker``, ``client``), the bucket (``store``).

The processes share the bucket alone. Each broker has its own disk, replicas and checkpoints; the controller's elections
reach a broker late. A table lies in memory: its ledger, and the batches that have landed in place of their records.

``schedule`` draws what happens, ``faults`` what goes wrong meanwhile, ``mutants`` and ``rule_mutants`` plant what the
simulation must see. Three parties judge:

* ``oracle``, at each write: an index says nothing untrue, a head names stored batches that were committed,
  ``offset.wm`` never goes back and has no gap that retention on a broker did not make, segments and packs are written
  once, a pack goes only if seals hold its batches. At the end: all that is committed is stored or in such a gap, and is
  told in time. No head, and no pack after another round of retention, is left of what is sealed.
* ``table_oracle``, at each plan and commit: no offset is LOST that was stored, what is planned is there and whole, only
  committed batches of the planned lineage have landed. At the end: the table is the true log as far as that is
  decided, and seals have all that has landed.
* ``world``, at the end: the agents say so themselves, and are healthy.

``python -m tests.uploader_agent.simulation --help`` runs schedules. See `docs/agent-design.md`.
"""
