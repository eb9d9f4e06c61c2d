"""The trunk stays small: a run imports the trunk and the leaves that it uses, and nothing else."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from streampack.leaves import AFTER_PACKER, BEFORE_PACKER, load
from tests.run.test_golden_batches import LEAVES
from tests.support.closure import code_lines, loaded_modules
from tests.support.deleted_leaves import ROOT, layers, leaves

#: Lines of code that a run imports, at most. Lower them when they fall; a leaf never raises them.
MOST_LINES = {"memory": 8_580, "ids": 10_630, "text": 11_800}
#: The golden run that uses the same leaves.
SAME_LEAVES = {"memory": "list", "ids": "parquet", "text": "text, parquet"}


@pytest.fixture(scope="module")
def loaded() -> dict[str, dict[str, Path]]:
    """The files that runs import without the leaves of others; an error names such a leaf."""
    used = {
        kind: [f"streampack.{name}" for name in LEAVES[SAME_LEAVES[kind]]] for kind in MOST_LINES
    }
    return loaded_modules(
        {kind: [name for name in leaves() if name not in used[kind]] for kind in MOST_LINES}
    )


@pytest.mark.parametrize("kind", MOST_LINES)
def test_a_run_works_without_the_leaves_of_others_and_imports_little(
    kind: str, loaded: dict[str, dict[str, Path]]
) -> None:
    sizes = {name: code_lines(file) for name, file in loaded[kind].items()}
    largest = sorted(sizes, key=lambda name: -sizes[name])[:20]
    assert sum(sizes.values()) <= MOST_LINES[kind], {name: sizes[name] for name in largest}


@pytest.mark.parametrize("function", [*BEFORE_PACKER.values(), *AFTER_PACKER.values()])
def test_every_leaf_of_the_table_is_there(function: str) -> None:
    assert callable(load(function))


#: Modules that no run imports, for programs that import public names from there.
FOR_USERS = ("streampack.batch.router_loss", "streampack.batch.tree_batch")


@pytest.mark.parametrize("seam", layers()["ignore_imports"])
def test_a_seam_is_an_import_inside_a_function(seam: str) -> None:
    importer, leaf = seam.split(" -> ")
    file = ROOT.joinpath(*importer.split("."))
    body = ast.parse(
        (file / "__init__.py" if file.is_dir() else file.with_suffix(".py")).read_text()
    ).body
    at_module_level = [node.module for node in body if isinstance(node, ast.ImportFrom)]
    assert importer in FOR_USERS or leaf not in at_module_level
