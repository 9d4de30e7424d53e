"""Formats of objects beside a table: plans, ledgers, reports and the states of jobs."""
