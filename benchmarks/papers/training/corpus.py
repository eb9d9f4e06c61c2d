"""The corpus of the GPU experiment: source text of the packages on this machine, split by package.

Files (Python, headers, Markdown) of the standard library and of what is installed, each text once,
a document each. A package is a folder at the top of one of these; whole packages are held out, so
that no held-out document has a neighbour in training. A byte-level BPE is trained on the training
part.
"""

from __future__ import annotations

import hashlib
import os
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import ByteLevelBPETokenizer, Encoding, Tokenizer

__all__ = ["Corpus", "Document", "package_files", "tokenized"]

SUFFIXES = frozenset({".py", ".pyi", ".h", ".hpp", ".cuh", ".md", ".rst"})
LONGEST_BYTES = 1 << 20
SPLIT_SEED = 0
HELD_OUT_SHARE = 0.05
BPE_BYTES = 32 << 20  # of text that the vocabulary is trained on
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{5,}")
_EOS = "<|endoftext|>"
_PER_BLOCK = 1024
_NOT_ENTERED = {"__pycache__", "site-packages", "dist-packages"}


@dataclass(frozen=True)
class Document:
    """Tokens with EOS.

    Attributes:
        package: where it is from.
        tokens: (L,) uint16.
        copied: (L,) int32, of a token inside an identifier that training lacks and that occurred
            before in the document: tokens back to the latest occurrence; 0 elsewhere, and of an
            occurrence's first token.
    """

    package: str
    tokens: NDArray[np.uint16]
    copied: NDArray[np.int32]


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Tokenized documents.

    Attributes:
        train, held_out: the documents; of those for training, their tokens.
        tokenizer: the BPE.
        vocab_size, eos_id: of the ids.
        digest: of all ids, to tell corpora apart.
    """

    train: list[NDArray[np.uint16]]
    held_out: list[Document]
    tokenizer: Tokenizer
    vocab_size: int
    eos_id: int
    digest: str

    def encode(self, text: str) -> list[int]:
        """Ids, without an EOS."""
        return list(self.tokenizer.encode(text).ids)

    def save(self, file: Path) -> None:
        """Write everything as one npz, or leave the file as it was."""
        held_out = [document.tokens for document in self.held_out]
        new = file.with_suffix(".new.npz")
        np.savez(
            new,
            train=np.concatenate(self.train),
            train_lengths=[len(tokens) for tokens in self.train],
            held_out=np.concatenate(held_out),
            held_out_lengths=[len(tokens) for tokens in held_out],
            copied=np.concatenate([document.copied for document in self.held_out]),
            packages=[document.package for document in self.held_out],
            about=[self.tokenizer.to_str(), self.digest],
            numbers=[self.vocab_size, self.eos_id],
        )
        new.replace(file)

    @classmethod
    def load(cls, file: Path) -> Corpus:
        """What `save` wrote."""
        with np.load(file) as kept:
            lengths = kept["held_out_lengths"]
            tokenizer, digest = map(str, kept["about"])
            vocab_size, eos_id = map(int, kept["numbers"])
            return cls(
                train=_split(kept["train"], kept["train_lengths"]),
                held_out=[
                    Document(str(package), tokens, copied)
                    for package, tokens, copied in zip(
                        kept["packages"],
                        _split(kept["held_out"], lengths),
                        _split(kept["copied"], lengths),
                        strict=True,
                    )
                ],
                tokenizer=Tokenizer.from_str(tokenizer),
                vocab_size=vocab_size,
                eos_id=eos_id,
                digest=digest,
            )


def _split(joined: NDArray[Any], lengths: NDArray[np.int64]) -> list[NDArray[Any]]:
    return np.split(joined, np.cumsum(lengths)[:-1])


def package_files(limit_bytes: int) -> list[tuple[str, str]]:
    """(package, text) of files, in an order that their names decide, about `limit_bytes` in all."""
    found: list[tuple[str, str]] = []
    seen: set[bytes] = set()
    total = 0
    for _, package, path in sorted(_files()):
        try:
            data = path.read_bytes()
            text = data.decode()
        except (OSError, UnicodeDecodeError):
            continue
        digest = _digest(data)
        if not 64 <= len(data) <= LONGEST_BYTES or digest in seen:
            continue
        seen.add(digest)
        found.append((package, text))
        total += len(data)
        if total >= limit_bytes:
            break
    return found


def _files() -> Iterator[tuple[bytes, str, Path]]:
    """(digest of its name, package, path) of every file."""
    paths = sysconfig.get_paths()
    for root in sorted({Path(paths[name]).resolve() for name in ("stdlib", "purelib", "platlib")}):
        for folder, folders, names in os.walk(root):
            folders[:] = [name for name in folders if name not in _NOT_ENTERED]
            parts = Path(folder).relative_to(root).parts
            for name in names:
                if os.path.splitext(name)[1] in SUFFIXES:
                    package = f"{root.name}/{(*parts, name)[0]}"
                    yield _digest("/".join((*parts, name)).encode()), package, Path(folder, name)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def tokenized(files: list[tuple[str, str]], vocab_size: int) -> Corpus:
    """Hold out packages, train the BPE, encode everything.

    Args:
        files: (package, text) each.
        vocab_size: of the BPE; text that needs fewer merges gives fewer ids.
    """
    chosen = _held_out_packages(files)
    train = [text for package, text in files if package not in chosen]
    held_out = [(package, text) for package, text in files if package in chosen]
    engine = ByteLevelBPETokenizer()
    engine.train_from_iterator(
        _first_bytes(train), vocab_size, special_tokens=[_EOS], show_progress=False
    )
    eos_id = int(engine.token_to_id(_EOS))
    known = {name for text in train for name in IDENTIFIER.findall(text)}

    def encoded(texts: list[str]) -> Iterator[Encoding]:
        for first in range(0, len(texts), _PER_BLOCK):
            yield from engine.encode_batch(texts[first : first + _PER_BLOCK])

    arrays = [np.array([*each.ids, eos_id], dtype=np.uint16) for each in encoded(train)]
    documents = [
        Document(
            package,
            np.array([*each.ids, eos_id], dtype=np.uint16),
            copied_tokens(text, each.offsets, known),
        )
        for (package, text), each in zip(
            held_out, encoded([text for _, text in held_out]), strict=True
        )
    ]
    digest = hashlib.blake2b(digest_size=8)
    for array in (*arrays, *(document.tokens for document in documents)):
        digest.update(array.tobytes())
    return Corpus(
        train=arrays,
        held_out=documents,
        tokenizer=Tokenizer.from_str(engine.to_str()),
        vocab_size=int(engine.get_vocab_size()),
        eos_id=eos_id,
        digest=digest.hexdigest(),
    )


def _held_out_packages(files: list[tuple[str, str]]) -> set[str]:
    """Packages at random until they have their share of the bytes; none with half of it alone."""
    sizes: dict[str, int] = {}
    for package, text in files:
        sizes[package] = sizes.get(package, 0) + len(text)
    wanted = HELD_OUT_SHARE * sum(sizes.values())
    names = sorted(name for name, size in sizes.items() if size <= wanted / 2)
    chosen: set[str] = set()
    total = 0
    for k in np.random.default_rng(SPLIT_SEED).permutation(len(names)):
        if total < wanted:
            chosen.add(names[k])
            total += sizes[names[k]]
    return chosen


def _first_bytes(texts: list[str]) -> Iterator[str]:
    total = 0
    for text in texts:
        if total >= BPE_BYTES:
            return
        total += len(text)
        yield text


def copied_tokens(text: str, offsets: list[tuple[int, int]], known: set[str]) -> NDArray[np.int32]:
    """`Document.copied` of a text whose tokens cover these characters, EOS included."""
    starts = np.array([start for start, _ in offsets], dtype=np.int64)
    stops = np.array([stop for _, stop in offsets], dtype=np.int64)
    copied = np.zeros(len(offsets) + 1, dtype=np.int32)
    last: dict[str, int] = {}
    for match in IDENTIFIER.finditer(text):
        name = match.group()
        if name in known:
            continue
        first = int(np.searchsorted(stops, match.start(), side="right"))
        behind = int(np.searchsorted(starts, match.end(), side="left"))
        if name in last:
            copied[first + 1 : behind] = first - last[name]
        last[name] = first
    return copied
