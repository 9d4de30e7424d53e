"""Stores of Google and Azure, by obstore."""
