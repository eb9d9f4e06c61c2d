"""The default embedder: hashed token n-grams in integer arithmetic, the same on every machine.

Steps, for each document:
  1. Each n-gram of its tokens, n = 1 to `ngrams`, gets a 64-bit hash: ``h = n``, then for each of
     its tokens ``h = mix(h + token)``, all modulo 2**64, where `mix` is the step of splitmix64.
  2. Equal hashes are counted. One that occurs c times has the weight ``c.bit_length()``, so that
     frequent tokens do not outweigh all others.
  3. The weight is added to component ``h % dimension``, negated where the top bit of h is set, so
     that n-grams that share a component cancel as often as they add up.

Cost: O(tokens * ngrams), about 40 ns per token by default. Lost: the places of n-grams, and what
documents have in common without sharing tokens. The components are whole numbers whose absolute
values sum to at most `ngrams` times the document's tokens. So float32 holds them exactly, and
products of vectors are exact in any order of summation (see `neighbours`).

Source: signed feature hashing is from K. Weinberger et al., "Feature Hashing for Large Scale
Multitask Learning", ICML 2009. Weights by document frequency inside the window were tried on
Python files and brought less related ones together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel
from streampack.arguments import whole_number
from streampack.documents.blocks import Documents


@dataclass(frozen=True, kw_only=True)
class HashedNgrams:
    """Embed documents by the n-grams of their tokens.

    Args:
        dimension: components of a vector; more of them collide less and cost more to compare.
        ngrams: the longest n-gram. A tokenizer with few ids (bytes) needs 3.
    """

    dimension: int = 1024
    ngrams: int = 2

    exact: ClassVar[bool] = True
    revision: ClassVar[int] = 1

    def __post_init__(self) -> None:
        for name, most in (("dimension", 1 << 16), ("ngrams", 8)):
            unfit = "Documents cannot be hashed with that."
            value = whole_number(name, getattr(self, name), unfit, most=most)
            object.__setattr__(self, name, value)

    @property
    def name(self) -> str:
        """Stands for this embedder in the fingerprint."""
        return f"hashed-ngrams-{self.revision}-{self.dimension}-{self.ngrams}"

    def __call__(self, documents: Documents) -> NDArray[np.float32]:
        """(N, dimension) float32, whole numbers."""
        vectors = np.zeros((len(documents), self.dimension), dtype=np.float32)
        longest = int(documents.lengths.max(initial=0)) * self.ngrams
        slots = 1 << max(longest * 2 - 1, 1).bit_length()  # at most half full
        _hash_ngrams(documents.tokens, documents.offsets, self.ngrams, slots, vectors)
        return vectors


@kernel
def _hash_ngrams(
    tokens: NDArray[np.generic],
    offsets: NDArray[np.int64],
    ngrams: int,
    slots: int,
    vectors: NDArray[np.float32],
) -> None:
    """Write the vectors of all documents; `slots`, a power of two, bounds distinct n-grams."""
    dimension = np.uint64(vectors.shape[1])
    keys = np.zeros(slots, dtype=np.uint64)
    counts = np.zeros(slots, dtype=np.int64)
    used = np.empty(slots, dtype=np.int64)
    for i in range(len(offsets) - 1):
        ids = tokens[offsets[i] : offsets[i + 1]]
        distinct = 0
        for n in range(1, ngrams + 1):
            for first in range(len(ids) - n + 1):
                h = np.uint64(n)
                for token in ids[first : first + n]:
                    h = _mix(h + np.uint64(token))
                slot = np.int64(h & np.uint64(slots - 1))
                while counts[slot] > 0 and keys[slot] != h:
                    slot = (slot + 1) & (slots - 1)
                if counts[slot] == 0:
                    keys[slot] = h
                    used[distinct] = slot
                    distinct += 1
                counts[slot] += 1
        vector = vectors[i]
        for slot in used[:distinct]:
            h, count = keys[slot], counts[slot]
            counts[slot] = 0
            weight = 0
            while count > 0:
                weight += 1
                count >>= 1
            if h >> np.uint64(63):
                weight = -weight
            vector[np.int64(h % dimension)] += np.float32(weight)


@kernel
def _mix(z: np.uint64) -> np.uint64:
    """One step of splitmix64; see `streampack.packing.rng`."""
    z = z + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
