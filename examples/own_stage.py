"""A stage of one's own: documents that hold a piece of a test set are left out.

    python examples/own_stage.py

A stage takes a block of documents and returns one. It has no memory: it does to a document the
same in any block, so a run that resumes reads some documents twice and leaves out the same ones.
`describe` is its part of the fingerprint: a state is refused if the test set is another one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from streampack import PackedDataset, PackedLoader
from streampack.documents import Documents
from streampack.errors import StateError
from streampack.stages.base import Place


@dataclass(frozen=True)
class WithoutTestSet:
    """Leaves out documents that share `length` tokens in a row with a document of `test_set`."""

    test_set: tuple[tuple[int, ...], ...]
    length: int = 8

    def __call__(self, documents: Documents, place: Place) -> Documents:
        """The documents without those; `place` has the source, the run's seed and the epoch."""
        known = {piece for document in self.test_set for piece in self.pieces(document)}
        own = (documents.document(i).tolist() for i in range(len(documents)))
        kept = [known.isdisjoint(self.pieces(tuple(document))) for document in own]
        return documents.take(np.flatnonzero(kept))

    def describe(self) -> Mapping[str, Any]:
        """JSON-able, for the fingerprint."""
        digest = hashlib.blake2b(repr(self.test_set).encode(), digest_size=8).hexdigest()
        return {"length": self.length, "test_set": digest}

    def pieces(self, document: tuple[int, ...]) -> set[tuple[int, ...]]:
        """All runs of `length` tokens."""
        return {document[i : i + self.length] for i in range(len(document) - self.length + 1)}


def main() -> None:
    """Pack, save in the middle, resume, and try to resume with another test set."""
    rng = np.random.default_rng(0)
    corpus = [rng.integers(0, 1000, 40).tolist() for _ in range(200)]
    leaked = tuple(tuple(document[10:30]) for document in corpus[::20])

    def dataset(test_set: tuple[tuple[int, ...], ...]) -> PackedDataset:
        return PackedDataset(corpus, seq_len=128, stages=[WithoutTestSet(test_set)])

    loader = PackedLoader(dataset(leaked))
    batches = [(batch, loader.state_dict()) for batch in loader]
    documents = sum(batch.num_documents for batch, _ in batches)
    print(f"{documents} pieces of documents, {200 - len(leaked)} documents are clean")

    resumed = PackedLoader(dataset(leaked))
    resumed.load_state_dict(batches[2][1])
    same = [
        np.array_equal(a.input_ids, b.input_ids)
        for (a, _), b in zip(batches[3:], resumed, strict=True)
    ]
    print("resumed with the same batches:", all(same))
    try:
        PackedLoader(dataset(leaked[1:])).load_state_dict(batches[2][1])
    except StateError as error:
        print(f"another test set: {error.setting} differs")


if __name__ == "__main__":
    main()
