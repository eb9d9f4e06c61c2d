"""The English of docstrings, comments and errors: words that stand where a noun or a verb should.

The limits are per 10,000 words and only fall. `python -m tests.test_prose` prints today's figures.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "streampack"
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
#: Lower a limit when the figure has fallen; the field's own libraries have 0 to 2 of each.
LIMITS = {
    "what": 2.0,
    "whose": 0.5,
    "says": 0.5,
    "said": 0.3,
    "those of": 0.6,
    "those that": 0.5,
    "that of": 0.4,
    "again": 1.2,
    "none of": 0.4,
}


def prose(path: Path) -> Iterator[str]:
    """The docstrings, the texts of errors and the comments of a file."""
    source = path.read_text()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, DOCUMENTED):
            yield ast.get_docstring(node) or ""
        elif isinstance(node, ast.Raise) and node.exc is not None:
            constants = [part for part in ast.walk(node.exc) if isinstance(part, ast.Constant)]
            yield from (c.value for c in constants if isinstance(c.value, str) and " " in c.value)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string.lstrip("#: ")


@cache
def rates() -> dict[str, float]:
    """Occurrences of each word in 10,000 words of the package."""
    text = " ".join(part for path in sorted(PACKAGE.rglob("*.py")) for part in prose(path)).lower()
    words = len(re.findall(r"[a-z']+", text))
    return {word: 1e4 * len(re.findall(rf"\b{word}\b", text)) / words for word in LIMITS}


@pytest.mark.parametrize("word", LIMITS)
def test_a_vague_word_becomes_no_more_frequent(word: str) -> None:
    assert rates()[word] <= LIMITS[word]


if __name__ == "__main__":
    for name, rate in rates().items():
        print(f"{name:12}{rate:6.1f}  (limit {LIMITS[name]})")
