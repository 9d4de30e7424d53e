"""Landing many topics together: one client, one query; a plan, a commit and a result of each."""
