"""The agent in simulated time: one broker's agent with all its threads, run by a clock and a seed.

What runs is the agent itself: loop, leadership, partitions, watcher, poller with its client, queue, workers, index
thread, hold. What is simulated is what it waits for and asks: time and threads (``clock``, ``threads``), inotify over
real files (``disk``), the cluster and its answers (``broker``, ``client``), the bucket (``store``). ``schedule`` draws
what happens, ``faults`` what goes wrong meanwhile, ``oracle`` knows what must be true, and ``mutants`` plants what the
simulation must see. ``python -m tests.uploader_agent.simulation --help`` runs schedules. See `docs/agent-design.md`.
"""
