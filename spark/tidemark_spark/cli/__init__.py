"""The command lines of the jobs."""
