"""Workloads: lengths of documents and their ids, the same in every process of a run.

- "lognormal": 40,000 documents, lognormal(6.0, 1.1): 743 tokens on average, as web text has.
- "code": the sizes of this machine's Python source files at 3.5 bytes per token: many tiny files
  and a tail of a hundred thousand tokens.
- "instruct": 40,000 documents, lognormal(5.0, 0.7): 190 tokens on average, as single turns have.

Ids are uniform random uint16 below 50,000: packing does not look at them, and nothing compresses.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = ["WORKLOADS", "Workload"]

WORKLOADS = ("lognormal", "code", "instruct")
VOCABULARY = 50_000
DOCUMENTS = 40_000
BYTES_PER_TOKEN = 3.5
LONGEST = 1 << 17


@dataclass(frozen=True)
class Workload:
    """A workload in a folder; `make` before anything else.

    Attributes:
        name: one of `WORKLOADS`; folder: where it and its files are kept.
        scale: share of the full size, for smoke tests.
        seed: of lengths and ids.
    """

    name: str
    folder: Path
    scale: float = 1.0
    seed: int = 0

    def make(self) -> None:
        """Write lengths and ids, unless they are there."""
        rng = np.random.default_rng([self.seed, WORKLOADS.index(self.name)])
        documents = max(int(DOCUMENTS * self.scale), 40)
        if self.name == "code":
            lengths = rng.permutation(_source_lengths())[:documents]
        else:
            mu, sigma = {"lognormal": (6.0, 1.1), "instruct": (5.0, 0.7)}[self.name]
            lengths = np.exp(rng.normal(mu, sigma, documents)).astype(np.int64)
        lengths = np.clip(lengths, 1, LONGEST)
        self.file("lengths.npy", lambda path: np.save(path, lengths))
        self.file(
            "tokens.npy",
            lambda path: np.save(
                path, rng.integers(0, VOCABULARY, int(lengths.sum()), dtype=np.uint16)
            ),
        )

    def file(self, name: str, write: Callable[[Path], object]) -> Path:
        """A file or folder of this workload, written first if it is not there."""
        path = self.folder / self.name / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(f"part-{path.name}")  # numpy wants its ending
            write(part)
            part.rename(path)
        return path

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """(N,) int64 tokens per document."""
        return np.asarray(np.load(self.folder / self.name / "lengths.npy"))

    @cached_property
    def tokens(self) -> NDArray[np.uint16]:
        """(T,) uint16 ids of all documents, end to end."""
        return np.asarray(np.load(self.folder / self.name / "tokens.npy"))

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """(N + 1,) int64."""
        return np.concatenate([[0], np.cumsum(self.lengths)])

    @cached_property
    def documents(self) -> list[NDArray[np.uint16]]:
        """One array of ids per document."""
        return np.split(self.tokens, self.offsets[1:-1])

    @property
    def num_tokens(self) -> int:
        """Tokens of all documents."""
        return int(self.offsets[-1])

    @cached_property
    def checksum(self) -> int:
        """Sum of all ids."""
        return int(self.tokens.sum(dtype=np.int64))


def _source_lengths() -> NDArray[np.int64]:
    """(N,) int64, sizes of the standard library's and installed packages' source in tokens."""
    paths = sysconfig.get_paths()
    roots = sorted({paths["stdlib"], paths["purelib"]})
    sizes = [
        path.stat().st_size for root in roots for path in Path(root).rglob("*.py") if path.is_file()
    ]
    return np.maximum(np.array(sorted(sizes)) / BYTES_PER_TOKEN, 1).astype(np.int64)
