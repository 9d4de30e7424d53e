"""Functions that make the DAGs of a deployment from its topics file."""
