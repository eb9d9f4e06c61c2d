"""Resuming a run with changed settings."""
