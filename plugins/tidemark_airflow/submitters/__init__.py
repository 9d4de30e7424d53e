"""Submitters of jobs: as child processes of the task, or on a platform that gives them an id."""
