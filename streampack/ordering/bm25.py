"""BM25 as a similarity: an embedder with cosines that are BM25 scores between documents.

Steps, over N documents that are compared:
  1. A term is a token id (a word, for texts). A term in n of the N documents has the weight
     ``idf = log2((N + 1) / (n + 0.5))``, as in Lucene; the base of the logarithm cancels out.
  2. In a document of length l, with a mean length of `mean`, a term that occurs c times counts
     ``c * (k1 + 1) / (c + k1 * (1 - b + b * l / mean))``, which saturates as c grows.
  3. The vector has ``sqrt(idf)`` times this count for each term, added to a component chosen by the
     term's hash, with a sign by the same hash. It is scaled to a length of 4,000 and rounded.

So the product of two vectors is the BM25 score of one document with the other as the query, with
the same saturation for the query's terms. This makes it symmetric, as the walk requires. The cosine
divides it by the scores of both documents with themselves: it is 1 for equal documents of any
length, so that thresholds are comparable with other embedders.

Cost: a sort of the tokens, then O(tokens). Lost: the order of tokens; and terms that share a
component disturb each other, by about ``1 / sqrt(dimension)`` of a cosine.

Results are the same on any machine: logarithms are computed by squaring, so that all arithmetic is
additions, multiplications, divisions and square roots of IEEE numbers in a fixed order.

Source: S. Robertson and H. Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond",
2009. "Analysing the Impact of Sequence Composition on Language Model Pre-Training" (2024) puts the
document with the highest BM25 score next, with k1 = 1.2 and b = 0.75 in the released code. Its
scores are asymmetric, and it needs no embedding model either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel
from streampack.arguments import real_number, whole_number
from streampack.documents.blocks import Documents
from streampack.packing.rng import mix

LENGTH = 4000.0  # its square is below 2**24: products are exact in float32 (see `neighbours`)
BITS = 24  # fractional bits of a logarithm


@dataclass(frozen=True)
class TermCounts:
    """Document frequencies of terms.

    Attributes:
        terms: (V,) ids, ascending.
        documents: (V,) int64, number of documents with each term.
        total: number of documents.
        tokens: number of tokens in all documents.
    """

    terms: NDArray[Any]
    documents: NDArray[np.int64]
    total: int
    tokens: int

    @classmethod
    def none(cls) -> TermCounts:
        """Return the counts of an empty collection."""
        return cls.from_array(np.zeros((1, 2), dtype=np.int64))

    @classmethod
    def from_array(cls, saved: NDArray[np.int64]) -> TermCounts:
        """Rebuild counts from the array (V + 1, 2) of `as_array`."""
        return cls(saved[1:, 0], saved[1:, 1], int(saved[0, 0]), int(saved[0, 1]))

    def as_array(self) -> NDArray[np.int64]:
        """Return (V + 1, 2) int64: the two totals, then each term with its document count."""
        terms = np.stack([self.terms.astype(np.int64), self.documents], axis=1)
        return np.concatenate([[[self.total, self.tokens]], terms])

    @classmethod
    def of(cls, documents: Documents) -> TermCounts:
        """Count the terms of documents."""
        return cls.of_indexed(*_indexed(documents))

    @classmethod
    def of_indexed(
        cls, terms: NDArray[Any], index: NDArray[np.int64], offsets: NDArray[np.int64]
    ) -> TermCounts:
        """Count terms from the result of `_indexed`."""
        return cls(terms, _count(index, offsets, len(terms)), len(offsets) - 1, len(index))

    def __add__(self, other: TermCounts) -> TermCounts:
        terms, index = np.unique(np.append(self.terms, other.terms), return_inverse=True)
        documents = np.zeros(len(terms), dtype=np.int64)
        np.add.at(documents, index, np.append(self.documents, other.documents))
        return TermCounts(terms, documents, self.total + other.total, self.tokens + other.tokens)

    def idf(self, terms: NDArray[Any]) -> NDArray[np.float64]:
        """Return the weights (T,) float64 of distinct terms (T,); unknown terms are the rarest."""
        documents = np.zeros(len(terms), dtype=np.int64)
        _, position, at = np.intersect1d(terms, self.terms, assume_unique=True, return_indices=True)
        documents[position] = self.documents[at]
        return log2((2 * self.total + 2) / (2 * documents + 1))


def log2(ratio: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return log2 of numbers (T,) from 1 to 2**63, rounded down to a multiple of 2**-24."""
    fraction, exponent = np.frexp(ratio)
    mantissa, result = fraction * 2, (exponent - 1).astype(np.float64)
    for bit in range(1, BITS + 1):
        mantissa = mantissa * mantissa
        result += (mantissa >= 2) * 2.0**-bit
        mantissa = np.where(mantissa >= 2, mantissa / 2, mantissa)
    return result


@dataclass(frozen=True, kw_only=True)
class BM25:
    """Embeds documents so that cosines are BM25 scores; rare terms count most.

    Document frequencies are counted over the documents embedded together, which are one ordering
    window.

    Args:
        dimension: components per vector; more components collide less and cost more to compare.
        k1: weight of repeated occurrences of a term; 0 counts each term once.
        b: strength of the discount for long documents, from 0 (no discount) to 1.

    Raises:
        ConfigError: a value out of its range.
    """

    dimension: int = 2048
    k1: float = 1.2
    b: float = 0.75

    exact: ClassVar[bool] = True
    revision: ClassVar[int] = 1

    def __post_init__(self) -> None:
        dimension = whole_number("dimension", self.dimension, most=1 << 16)
        object.__setattr__(self, "dimension", dimension)
        for name, most in (("k1", 100), ("b", 1)):
            value = real_number(name, getattr(self, name), least=0, most=most)
            object.__setattr__(self, name, value)

    @property
    def name(self) -> str:
        """Name of this embedder in the fingerprint."""
        return f"bm25-{self.revision}-{self.dimension}-{float(self.k1)}-{float(self.b)}"

    def __call__(
        self, documents: Documents, counts: TermCounts | None = None
    ) -> NDArray[np.float32]:
        """Return vectors (N, dimension) float32 with integer values.

        Args:
            documents: N documents.
            counts: document frequencies of the collection, by default of these documents.
        """
        terms, index, offsets = _indexed(documents)
        if counts is None:
            counts = TermCounts.of_indexed(terms, index, offsets)
        weights = np.sqrt(counts.idf(terms))
        vectors = np.zeros((len(documents), self.dimension), dtype=np.float32)
        mean = max(counts.tokens, 1) / max(counts.total, 1)
        curve = (float(self.k1), float(self.b), mean)
        _embed(index, offsets, terms, weights, curve, vectors)
        return vectors


def _indexed(documents: Documents) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64]]:
    """Return the terms (V,), ascending, the index of each token's term (T,), and offsets."""
    first, stop = documents.offsets[[0, -1]]
    tokens = documents.tokens[first:stop]
    terms = np.unique(tokens)
    return terms, np.searchsorted(terms, tokens), documents.offsets - first


@kernel
def _count(index: NDArray[np.int64], offsets: NDArray[np.int64], terms: int) -> NDArray[np.int64]:
    """Return the number of documents with each term, (terms,) int64."""
    counts = np.zeros(terms, dtype=np.int64)
    last = np.full(terms, -1, dtype=np.int64)
    for i in range(len(offsets) - 1):
        for t in index[offsets[i] : offsets[i + 1]]:
            counts[t] += last[t] != i
            last[t] = i
    return counts


@kernel
def _embed(
    index: NDArray[np.int64],
    offsets: NDArray[np.int64],
    terms: NDArray[Any],
    weights: NDArray[np.float64],
    curve: tuple[float, float, float],
    vectors: NDArray[np.float32],
) -> None:
    """Write the vectors of all documents."""
    k1, b, mean = curve
    dimension = np.uint64(vectors.shape[1])
    counts = np.zeros(len(terms), dtype=np.int64)
    vector = np.empty(vectors.shape[1], dtype=np.float64)
    for i in range(len(offsets) - 1):
        document_terms = index[offsets[i] : offsets[i + 1]]
        for t in document_terms:
            counts[t] += 1
        vector[:] = 0.0
        slower = k1 * (1 - b + b * len(document_terms) / mean)
        for t in document_terms:
            if counts[t] > 0:
                h = mix(np.uint64(terms[t]) + np.uint64(0x9E3779B97F4A7C15))
                weight = weights[t] * (counts[t] * (k1 + 1) / (counts[t] + slower))
                vector[np.int64(h % dimension)] += -weight if h >> np.uint64(63) else weight
                counts[t] = 0
        square = 0.0
        for value in vector:
            square += value * value
        if square > 0:
            scale = LENGTH / np.sqrt(square)
            for d in range(len(vector)):
                vectors[i, d] = np.rint(vector[d] * scale)
