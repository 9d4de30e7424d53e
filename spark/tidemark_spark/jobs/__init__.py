"""The work of the jobs: a module for each, with a function ``work`` that gets the job's options."""
