"""Takes erased rows out of a table: a worker's tasks, and the evidence of what they leave."""
