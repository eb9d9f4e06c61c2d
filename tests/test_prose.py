"""The English of docstrings, comments, errors, names of tests and pages: vague words.

The limits are per 10,000 words and only fall. `python -m tests.test_prose` prints today's figures.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
#: Folders with the same limits, each counted by itself.
COUNTED = {"package": ("streampack",), "tests": ("tests", "examples", "benchmarks", "demo")}
NAMES_OF_TESTS = "names of tests"
PAGES = "pages"
GROUPS = (*COUNTED, NAMES_OF_TESTS, PAGES)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
#: Lower a limit when the figure has fallen; the field's own libraries have 0 to 2 of each.
LIMITS = {
    "what": 1.7,
    "whose": 0.5,
    "says": 0.2,
    "said": 0.1,
    "those of": 0.6,
    "those that": 0.4,
    "that of": 0.3,
    "again": 1.2,
    "none of": 0.2,
}
#: Names that do not describe a variable's value, and the number of functions with such a variable.
NAMES = {"found": 12, "made": 12, "given": 14, "said": 0, "one": 6, "rest": 4, "own": 8}


STRING = r'''(?:"""(?:\\.|(?!""").)*"""|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\')'''
#: A docstring, an error that is raised, a comment, or another string; of formatted files.
PART = re.compile(
    rf"""^(?P<indent>\ *)(?:
        r?\"\"\"(?P<docstring>(?:\\.|(?!\"\"\").)*)\"\"\" |
        raise\ (?P<error>[^\n]*(?:(?<=[(\[{{])\n(?:[^\n]*\n)*?(?P=indent)[)\]}}][^\n]*)?)
    ) | \#[:\ ]*(?P<comment>[^\n]*) | {STRING}""",
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
TEXT = re.compile(STRING, re.DOTALL)


def prose(path: Path) -> Iterator[str]:
    """The docstrings, the texts of errors and the comments of a file."""
    for part in PART.finditer(path.read_text()):
        if part["error"] is None:
            yield part["docstring"] or part["comment"] or ""
        else:
            texts = [text for text in TEXT.findall(part["error"]) if " " in text]
            yield from (re.sub(r"\{[^{}]*\}", "", text) for text in texts)


def names_of_tests(path: Path) -> Iterator[str]:
    """The words of the names of a file's tests."""
    for name in re.findall(r"^ *(?:async )?def test_(\w+)", path.read_text(), re.MULTILINE):
        yield name.replace("_", " ")


def files(counted: str) -> list[Path]:
    """The Python files of a group of folders."""
    paths = (path for folder in COUNTED[counted] for path in sorted((ROOT / folder).rglob("*.py")))
    return [path for path in paths if ".venvs" not in path.parts]  # of benchmarks.environments


def pages() -> Iterator[str]:
    """The texts of all pages, without their code."""
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("skills/**/*.md")):
        yield re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)


@cache
def rates(counted: str) -> dict[str, float]:
    """Occurrences of each word in 10,000 words of a group."""
    if counted == NAMES_OF_TESTS:
        parts = [name for path in files("tests") for name in names_of_tests(path)]
    elif counted == PAGES:
        parts = [*pages()]
    else:
        parts = [part for path in files(counted) for part in prose(path)]
    text = " . ".join(parts).lower()
    words = len(re.findall(r"[a-z']+", text))
    return {word: 1e4 * len(re.findall(rf"\b{word}\b", text)) / words for word in LIMITS}


@pytest.mark.parametrize("word", LIMITS)
@pytest.mark.parametrize("counted", GROUPS)
def test_a_vague_word_becomes_no_more_frequent(counted: str, word: str) -> None:
    assert rates(counted)[word] <= LIMITS[word]


@cache
def functions_by_variable() -> Counter[str]:
    """Number of functions that have a variable or an argument with a name."""
    counts: Counter[str] = Counter()
    sources = [path.read_text() for path in files("package")]
    for source in filter(re.compile(rf"\b(?:{'|'.join(NAMES)})\b").search, sources):
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, FUNCTIONS):
                parts = [*ast.walk(node)]
                names = {part.arg for part in parts if isinstance(part, ast.arg)}
                names |= {
                    part.id
                    for part in parts
                    if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
                }
                counts.update(names)
    return counts


@pytest.mark.parametrize("name", NAMES)
def test_variables_are_named_by_the_values_they_hold(name: str) -> None:
    assert functions_by_variable()[name] <= NAMES[name]


if __name__ == "__main__":
    for name, limit in LIMITS.items():
        figures = "".join(f"{rates(counted)[name]:6.1f}" for counted in GROUPS)
        print(f"{name:12}{figures}  (limit {limit})")
    for name, most in NAMES.items():
        print(f"{name:12}{functions_by_variable()[name]:6}  (limit {most})")
