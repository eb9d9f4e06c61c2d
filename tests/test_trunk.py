"""The trunk stays small: a run imports the trunk and the leaves that it uses, and nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from streampack.leaves import (
    AFTER_PACKER,
    BEFORE_PACKER,
    CHANGED_SETTINGS,
    LIMITS,
    METHODS,
    NEEDS,
    OF_PACKER,
    ORDERED,
    RANKS,
    SOURCES,
    load,
)
from tests.support.closure import code_lines, loaded_modules

if sys.version_info >= (3, 11):
    import tomllib
else:  # of pytest, on Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
CONTRACT = "no trunk file imports a leaf, inside functions neither"

#: Lines of code that a run imports, at most. Lower them when they fall; a leaf never raises them.
MOST_LINES = {"memory": 8_940, "ids": 12_440, "text": 13_470}
_FILES = (
    "streampack.extras",
    "streampack.storage",
    "streampack.sources.file_source",
    "streampack.sources.paths",
    "streampack.sources.parquet",
    "streampack.sources.record_files",
)
#: Leaves that a run of this kind uses.
USES: dict[str, tuple[str, ...]] = {
    "memory": (),
    "ids": _FILES,
    "text": (*_FILES, "streampack.tokenization"),
}


def _contract() -> dict[str, list[str]]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    (found,) = (contract for contract in contracts if contract["name"] == CONTRACT)
    return found


def _is_in(module: str, names: tuple[str, ...]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in names)


@pytest.mark.parametrize("kind", MOST_LINES)
def test_a_run_works_without_the_leaves_of_others_and_imports_little(kind: str) -> None:
    leaves = _contract()["forbidden_modules"]
    others = [name for name in leaves if not _is_in(name, USES[kind])]
    files = loaded_modules(kind, without=others)  # its error names the leaf that was imported
    sizes = {name: code_lines(file) for name, file in files.items()}
    largest = sorted(sizes, key=lambda name: -sizes[name])[:20]
    assert sum(sizes.values()) <= MOST_LINES[kind], {name: sizes[name] for name in largest}


TABLES = (BEFORE_PACKER, OF_PACKER, AFTER_PACKER, LIMITS, NEEDS, SOURCES, METHODS)
NAMED = [
    *(CHANGED_SETTINGS, ORDERED, RANKS),
    *(function for table in TABLES for function in table.values()),
]


@pytest.mark.parametrize(
    "function", [ORDERED, RANKS, *(f for table in TABLES for f in table.values())]
)
def test_every_leaf_of_the_tables_is_there(function: str) -> None:
    assert callable(load(function))


def test_every_module_is_in_the_trunk_or_a_leaf() -> None:
    contract = _contract()
    trunk, leaves = contract["source_modules"], tuple(contract["forbidden_modules"])
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in (ROOT / "streampack").rglob("*.py")
        if path.name != "__init__.py"
    }
    assert modules >= {*trunk}
    unknown = [name for name in modules if name not in trunk and not _is_in(name, leaves)]
    assert not unknown, f"name them in pyproject.toml, in the contract {CONTRACT!r}: {unknown}"
    assert not [name for name in trunk if _is_in(name, leaves)]
