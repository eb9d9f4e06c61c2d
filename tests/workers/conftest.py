"""Fixtures of these tests."""

from tests.support.forked import host as host
