"""Tests of tables with versions."""
