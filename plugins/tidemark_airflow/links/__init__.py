"""Addresses of pages, and the buttons that lead to them."""
