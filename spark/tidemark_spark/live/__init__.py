"""Lands many topics together: one client and one query for all, and a plan, a commit and a result for each."""
