"""Figures: ``make bench``. Not tests: nothing fails by being slow, everything that is measured is printed."""
