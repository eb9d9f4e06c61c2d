"""The embedded corpus, in parts on disk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from streampack.cached import cached_property
from streampack.conversion.shards import Payload
from streampack.corpus_order.work import Work
from streampack.documents.blocks import Documents, gather_ragged, make_origin, offsets_of
from streampack.ordering.hashing import hash_words

NOTES = "embed/parts.json"
BYTES_PER_TOKEN = 4  # estimate for text
BATCH_DOCUMENTS = 2048
BATCH_UNITS = 8 << 20  # in tokens, or in bytes of text


@dataclass(frozen=True)
class PartContent:
    """The documents of one part.

    Attributes:
        content: (T,) uint16 or uint32 ids, or uint8 of UTF-8.
        offsets: (n + 1,) int64 offsets of the documents into `content`.
        is_text: True if `content` is UTF-8.
    """

    content: NDArray[Any]
    offsets: NDArray[np.int64]
    is_text: bool

    @classmethod
    def opened(cls, work: Work, part: int, dtype: str) -> PartContent:
        """Open a part by its index, with its content memory-mapped; dtype "str" is text."""
        content = np.zeros(0, dtype=np.uint8 if dtype == "str" else dtype)
        offsets = work.load(f"embed/{part:05}.offsets.npy")
        if offsets[-1]:
            mapped = np.memmap(work.path(f"embed/{part:05}.bin"), content.dtype, "r")
            content = np.asarray(mapped)
        return cls(content, offsets, dtype == "str")

    def gathered(self, chosen: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Copy content and offsets of the documents `chosen` (M,), in that order."""
        starts = self.offsets[chosen]
        offsets = offsets_of(self.offsets[chosen + 1] - starts)
        content = np.empty(offsets[-1], dtype=self.content.dtype)
        gather_ragged(self.content, starts, offsets, content)
        return content, offsets

    def documents(self, chosen: NDArray[np.int64]) -> Documents:
        """Return the documents `chosen` (M,): their ids, or the hashed words of their texts."""
        content, offsets = self.gathered(chosen)
        if self.is_text:
            return hash_words(content, offsets)[0]
        return Documents(content, offsets, make_origin(0, chosen))

    def payload(self, i: int) -> Payload:
        """Return document i in the form in which it is written."""
        content = self.content[self.offsets[i] : self.offsets[i + 1]]
        return content.tobytes().decode() if self.is_text else content


@dataclass(frozen=True)
class Corpus:
    """All parts, after the first two stages.

    Attributes:
        work: work folder with the parts.
        parts: P, the number of parts.
    """

    work: Work
    parts: int
    _opened: dict[int, PartContent] = field(default_factory=dict, repr=False, compare=False)
    _mapped: dict[int, NDArray[np.float16]] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def gather_notes(cls, work: Work, parts: int) -> Corpus:
        """Merge the notes of all parts into one file, so that a task opens only one."""
        notes = [work.read(f"embed/{part:05}.json") for part in range(parts)]
        work.note(NOTES, {"parts": notes})
        return cls(work, parts)

    @cached_property
    def notes(self) -> list[dict[str, Any]]:
        """Return the notes of the first two stages on each part."""
        notes: list[dict[str, Any]] = self.work.read(NOTES)["parts"]
        return notes

    @cached_property
    def first(self) -> NDArray[np.int64]:
        """Index of the first document of each part, (P + 1,)."""
        return offsets_of(np.array([note["documents"] for note in self.notes], dtype=np.int64))

    def __len__(self) -> int:
        return int(self.first[-1])

    @cached_property
    def dimension(self) -> int:
        """Dimension of the vectors."""
        return max(int(note["dimension"]) for note in self.notes)

    @cached_property
    def dtype(self) -> str:
        """ "str", "uint32" if any part has it, or "uint16"."""
        dtypes = {note["dtype"] for note in self.notes if note["documents"]}
        return min(dtypes, key=["str", "uint32", "uint16"].index, default="uint32")

    @property
    def units_per_token(self) -> int:
        """1 for ids, or the approximate bytes per token for text."""
        return BYTES_PER_TOKEN if self.dtype == "str" else 1

    def part(self, part: int) -> PartContent:
        """Return the documents of a part, memory-mapped."""
        if part not in self._opened:
            self._opened[part] = PartContent.opened(self.work, part, self.notes[part]["dtype"])
        return self._opened[part]

    def part_vectors(self, part: int) -> NDArray[np.float16]:
        """Return a part's unit vectors (n, D) float16, memory-mapped; 0 for an empty document."""
        if part not in self._mapped:
            self._mapped[part] = self.work.load(f"embed/{part:05}.vectors.npy")
        return self._mapped[part]

    def vectors(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the vectors (M, D) of the documents `ids` (M,)."""
        vectors = np.empty((len(ids), self.dimension), dtype=np.float32)
        for part, where in self.by_part(ids):
            halves = self.part_vectors(part)[ids[where] - self.first[part]]
            vectors[where] = torch.from_numpy(halves).float()  # because numpy is many times slower
        return vectors

    def by_part(self, ids: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Yield each part with documents of `ids` (M,), and their positions in `ids`."""
        part = np.searchsorted(self.first, ids, side="right") - 1
        order = np.argsort(part, kind="stable")
        bounds = np.flatnonzero(np.diff(part[order], prepend=-1, append=-1))
        for low, high in pairwise(bounds.tolist()):
            yield int(part[order[low]]), order[low:high]

    def lengths(self) -> NDArray[np.int64]:
        """Return tokens per document, or bytes per text, (N,)."""
        parts = [np.diff(self.part(part).offsets) for part in range(self.parts)]
        return np.concatenate([np.zeros(0, dtype=np.int64), *parts])

    def origins(self, ids: NDArray[np.int64]) -> NDArray[np.void]:
        """Return the origins (M,) of the documents `ids` (M,)."""
        origins = make_origin(0, ids)
        for part, where in self.by_part(ids):
            part_origins = self.work.load(f"embed/{part:05}.origin.npy")
            origins[where] = part_origins[ids[where] - self.first[part]]
        return origins


def batches(offsets: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Divide the documents [0, N) into consecutive batches that fit into memory."""
    start = 0
    while start < len(offsets) - 1:
        stop = int(np.searchsorted(offsets, offsets[start] + BATCH_UNITS, side="right")) - 1
        stop = min(max(stop, start + 1), start + BATCH_DOCUMENTS)
        yield np.arange(start, min(stop, len(offsets) - 1), dtype=np.int64)
        start = stop
