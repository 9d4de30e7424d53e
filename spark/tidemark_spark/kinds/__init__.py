"""The kinds of runs: what the tasks of each read, and what it changes, as one class for each."""
