"""The trunk stays small: a run imports the trunk and the leaves that it uses, and nothing else."""

from __future__ import annotations

import pytest

from streampack.leaves import (
    AFTER_PACKER,
    BEFORE_PACKER,
    CHANGED_SETTINGS,
    ORDERED,
    RANKS,
    SAME_START,
    SOURCES,
    load,
)
from tests.run.test_golden_batches import LEAVES
from tests.support.closure import code_lines, loaded_modules
from tests.support.deleted_leaves import leaves

#: Lines of code that a run imports, at most. Lower them when they fall; a leaf never raises them.
MOST_LINES = {"memory": 8_690, "ids": 10_760, "text": 11_930}
#: The golden run that uses the same leaves.
SAME_LEAVES = {"memory": "list", "ids": "parquet", "text": "text, parquet"}


@pytest.mark.parametrize("kind", MOST_LINES)
def test_a_run_works_without_the_leaves_of_others_and_imports_little(kind: str) -> None:
    used = [f"streampack.{name}" for name in LEAVES[SAME_LEAVES[kind]]]
    others = [name for name in leaves() if name not in used]
    files = loaded_modules(kind, without=others)  # its error names the leaf that was imported
    sizes = {name: code_lines(file) for name, file in files.items()}
    largest = sorted(sizes, key=lambda name: -sizes[name])[:20]
    assert sum(sizes.values()) <= MOST_LINES[kind], {name: sizes[name] for name in largest}


TABLES = (BEFORE_PACKER, AFTER_PACKER, SOURCES)
NAMED = [
    *(CHANGED_SETTINGS, ORDERED, RANKS, SAME_START),
    *(function for table in TABLES for function in table.values()),
]


@pytest.mark.parametrize("function", NAMED)
def test_every_leaf_of_the_tables_is_there(function: str) -> None:
    assert callable(load(function))
