"""The checks that a release must pass: ``make release-check``."""
