"""The worked examples in docstrings are right."""

from __future__ import annotations

import doctest
import importlib

import pytest


@pytest.mark.parametrize(
    "module",
    [
        "packing.plan",
        "trees.build",
        "window.entries",
        "window.packed_rows",
        "in_memory.pack",
        "batch.packed_batch",
        "forms.loss",
        "forms.numpy_arrays",
        "testing",
    ],
)
def test_the_worked_example_of_a_docstring_is_right(module: str) -> None:
    found = doctest.testmod(importlib.import_module(f"streampack.{module}"))
    assert found.attempted > 1
    assert found.failed == 0
