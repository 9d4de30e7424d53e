"""Measurements behind the published figures: ``make bench``. They are not tests: a slow result fails nothing."""
