"""Limits of rows beside their length, and choices of rows by their load."""
