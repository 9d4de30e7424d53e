"""The contract between writers and readers of the store: the keys and formats of all its objects."""
