"""Functions that make the DAGs of a deployment by its topics file."""
