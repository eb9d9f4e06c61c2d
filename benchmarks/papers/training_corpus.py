"""The corpus of the training experiment: Python source, split by file, with a BPE of its own.

Documents are functions of the standard library without its tests (as CodeSearchNet takes functions
for documents), so every Python of one version has the same corpus; or, for larger models, whole
source files of everything that is installed. Files, and with them their documents, go to
training or to validation by a seeded permutation; the BPE sees the training part alone.
"""

from __future__ import annotations

import ast
import hashlib
import sysconfig
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import ByteLevelBPETokenizer

from demo.corpus import gather

__all__ = ["Corpus", "functions", "library_files", "source_files", "tokenized"]

END = "<|endoftext|>"
SPLIT_SEED = 0
VALIDATION_SHARE = 0.05
_TESTS = {"test", "tests", "idle_test", "site-packages", "dist-packages"}
_PER_BLOCK = 4096


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Tokenized documents, each with its EOS.

    Attributes:
        train, validation: uint16 token ids of each document.
        vocab_size, eos_id: of the ids.
        digest: of all ids, to tell corpora apart.
    """

    train: list[NDArray[np.uint16]]
    validation: list[NDArray[np.uint16]]
    vocab_size: int
    eos_id: int
    digest: str


def library_files() -> list[list[str]]:
    """Functions of each file of the standard library, tests left out, each text once."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found: list[list[str]] = []
    seen: set[str] = set()
    for path in sorted(root.rglob("*.py")):
        if _TESTS & set(path.relative_to(root).parts):
            continue
        try:
            texts = list(functions(path.read_text(encoding="utf-8")))
        except (SyntaxError, UnicodeDecodeError):
            continue
        fresh = [text for text in dict.fromkeys(texts) if text not in seen]
        seen.update(fresh)
        if fresh:
            found.append(fresh)
    return found


def source_files(limit_bytes: int) -> list[list[str]]:
    """Whole source files of this machine, one document each, about `limit_bytes` in all."""
    return [[text] for text in gather(limit_bytes)]


def functions(source: str) -> Iterator[str]:
    """Outermost functions and methods with their decorators, at indentation 0."""
    lines = source.splitlines(keepends=True)

    def walk(node: ast.AST) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                first = min([child.lineno, *(each.lineno for each in child.decorator_list)])
                yield textwrap.dedent("".join(lines[first - 1 : child.end_lineno]))
            else:
                yield from walk(child)

    yield from walk(ast.parse(source))


def tokenized(files: list[list[str]], vocab_size: int) -> Corpus:
    """Split by file, train the BPE on the training part, encode both.

    Args:
        files: the documents of each file.
        vocab_size: of the BPE; one training document that needs fewer merges gives fewer ids.
    """
    order = np.random.default_rng(SPLIT_SEED).permutation(len(files))
    held_out = round(VALIDATION_SHARE * len(files))
    train = [text for number in order[held_out:] for text in files[number]]
    validation = [text for number in order[:held_out] for text in files[number]]
    engine = ByteLevelBPETokenizer()
    engine.train_from_iterator(train, vocab_size, special_tokens=[END], show_progress=False)
    eos_id = int(engine.token_to_id(END))

    def encoded(texts: list[str]) -> list[NDArray[np.uint16]]:
        return [
            np.array([*encoding.ids, eos_id], dtype=np.uint16)
            for k in range(0, len(texts), _PER_BLOCK)
            for encoding in engine.encode_batch(texts[k : k + _PER_BLOCK])
        ]

    parts = encoded(train), encoded(validation)
    digest = hashlib.blake2b(digest_size=8)
    for document in (*parts[0], *parts[1]):
        digest.update(document.tobytes())
    return Corpus(
        train=parts[0],
        validation=parts[1],
        vocab_size=int(engine.get_vocab_size()),
        eos_id=eos_id,
        digest=digest.hexdigest(),
    )
