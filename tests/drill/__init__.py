"""Tests of `streampack drill`."""
