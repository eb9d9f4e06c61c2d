"""Filters, maps and stages of the user."""
