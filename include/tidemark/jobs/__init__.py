"""The jobs of ``spark/jobs``: what each does, its options, and its command line."""
