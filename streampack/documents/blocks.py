"""Documents: the ragged block of token ids that all parts of streampack exchange.

A block holds many documents as columns: one flat token array and the offsets of its documents,
never an object per document. `Texts` is its counterpart before tokenizing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel_of
from streampack.errors import ConfigError


def offsets_of(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the offsets (N + 1,) int64 of documents with these lengths (N,), end to end."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    lengths.cumsum(out=offsets[1:])
    return offsets


def ranges_of(starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Concatenate the ranges [start, start + size) of `starts` and `sizes` (N,) to (T,) int64."""
    offsets = offsets_of(sizes)
    return np.repeat(starts - offsets[:-1], sizes) + np.arange(offsets[-1])


@kernel_of(lambda *call: call[3].size)
def gather_ragged(
    source: NDArray[np.generic],
    starts: NDArray[np.int64],
    offsets: NDArray[np.int64],
    out: NDArray[np.generic],
) -> None:
    """Copy slice i of `source`, beginning at starts[i], to out[offsets[i]:offsets[i + 1]]."""
    for i in range(len(starts)):
        # With slices the inner loop needs no test for negative indices and compiles to a copy.
        target = out[offsets[i] : offsets[i + 1]]
        piece = source[starts[i] : starts[i] + len(target)]
        for k in range(len(target)):
            target[k] = piece[k]


def gather_slices(
    values: NDArray[Any], starts: NDArray[np.int64], offsets: NDArray[np.int64]
) -> NDArray[Any]:
    """Copy slices of `values` (T, ...) like `gather_ragged`, whatever their dtype and shape."""
    out = np.empty((int(offsets[-1]), *values.shape[1:]), dtype=values.dtype)
    word = f"u{values.dtype.itemsize}"  # one compiled kernel for all dtypes of a width
    width = math.prod(values.shape[1:])
    if width > 1:
        starts, offsets = starts * width, offsets * width
    gather_ragged(values.reshape(-1).view(word), starts, offsets, out.reshape(-1).view(word))
    return out


#: Origin of a document: index of the source (in a mixture), index of the shard in the source's
#: manifest, and index in the shard (of the document, or a byte offset for formats that are read by
#: byte ranges).
ORIGIN = np.dtype([("source", "<i4"), ("shard", "<i4"), ("index", "<i8")])

#: Arrays of values by field name.
Fields = Mapping[str, NDArray[Any]]
NO_FIELDS: Fields = {}  # never written to

#: Document field with the index of a document's group in its block or batch.
GROUP = "group_ids"

TOKEN_DTYPES = (np.dtype(np.uint16), np.dtype(np.uint32), np.dtype(np.int32))


def make_origin(shard: int, index: NDArray[np.int64], source: int = 0) -> NDArray[np.void]:
    """Return origins (N,) for the documents `index` (N,) of one shard."""
    origin = np.empty(len(index), dtype=ORIGIN)
    origin["source"] = source
    origin["shard"] = shard
    origin["index"] = index
    return origin


@dataclass(frozen=True, slots=True, eq=False)
class Documents:
    """A ragged block of N documents with T tokens in all.

    Attributes:
        tokens: (T,) uint16, uint32 or int32; document i is ``tokens[offsets[i]:offsets[i + 1]]``.
        offsets: (N + 1,) int64, non-decreasing; the first one may be any index into `tokens`.
        origin: (N,) of dtype `ORIGIN`, identifying each document.
        loss_mask: (T,) bool, True where a token counts in the loss; None if all tokens do.
        token_fields: values (T,) of the tokens by field name, or (T, *shape) of a field with
            several numbers per token.
        document_fields: values (N,) of the documents by field name.
        members: documents of each group, if the block's documents are groups (`joined_groups`).

    Slicing with ``block[a:b]`` is a view. Arrays are never written to after construction.
    """

    tokens: NDArray[np.generic]
    offsets: NDArray[np.int64]
    origin: NDArray[np.void]
    loss_mask: NDArray[np.bool_] | None = None
    token_fields: Fields = field(default_factory=dict)
    document_fields: Fields = field(default_factory=dict)
    members: Members | None = None

    def __post_init__(self) -> None:
        if self.tokens.ndim != 1 or self.tokens.dtype not in TOKEN_DTYPES:
            raise ConfigError(
                "Tokens must be a flat uint16, uint32 or int32 array, got dtype "
                f"{self.tokens.dtype} and shape {self.tokens.shape}.",
                "Convert the ids, for example with `ids.astype(numpy.uint32).ravel()`.",
                setting="tokens",
            )
        if self.offsets.ndim != 1 or len(self.offsets) != len(self.origin) + 1:
            raise ConfigError(
                f"offsets must have shape ({len(self.origin) + 1},) for {len(self.origin)} "
                f"origins, got {self.offsets.shape}.",
                "Pass one offset more than there are documents.",
                setting="offsets",
            )
        if self.loss_mask is not None and self.loss_mask.shape != self.tokens.shape:
            raise ConfigError(
                f"The loss mask must have the tokens' shape {self.tokens.shape}, got "
                f"{self.loss_mask.shape}.",
                "Pass a boolean mask as long as the tokens, or None.",
                setting="loss_mask",
            )
        _check_fields("token", self.token_fields, len(self.tokens), slice(1))
        _check_fields("document", self.document_fields, len(self.origin))

    def __len__(self) -> int:
        return len(self.origin)

    def __getitem__(self, index: slice) -> Documents:
        start, stop, step = index.indices(len(self))
        if step != 1:
            raise ConfigError(
                f"A block can be sliced only with step 1, got {step}.",
                "Use `block.take(order)` to pick or reorder documents.",
                setting="index",
            )
        stop = max(start, stop)
        if stop - start == len(self):
            return self
        return Documents(
            self.tokens,
            self.offsets[start : stop + 1],
            self.origin[start:stop],
            self.loss_mask,
            self.token_fields,
            part_of(self.document_fields, slice(start, stop)),
            self.members and self.members.part(start, stop),
        )

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of tokens per document, (N,) int64."""
        return self.offsets[1:] - self.offsets[:-1]

    @property
    def num_tokens(self) -> int:
        """Number of tokens in this block's documents; of a view, not of its whole array."""
        return int(self.offsets[-1] - self.offsets[0])

    @property
    def loss_mask_or_ones(self) -> NDArray[np.bool_]:
        """Return `loss_mask`, or an array of True if it is None."""
        if self.loss_mask is not None:
            return self.loss_mask
        return np.ones(len(self.tokens), dtype=np.bool_)

    def document(self, i: int) -> NDArray[np.generic]:
        """Return the tokens of document i as a view."""
        return self.tokens[self.offsets[i] : self.offsets[i + 1]]

    def take(self, order: NDArray[np.int64]) -> Documents:
        """Copy the documents `order` (M,), in that order, into a compact block."""
        order = np.asarray(order, dtype=np.int64)
        if self.members is not None and not self.members.in_slots:
            return self.members.take(order)
        offsets = offsets_of(self.lengths[order])
        starts = self.offsets[order]
        gather = partial(gather_slices, starts=starts, offsets=offsets)
        return Documents(
            gather(self.tokens),
            offsets,
            self.origin[order],
            None if self.loss_mask is None else gather(self.loss_mask),
            {name: gather(values) for name, values in self.token_fields.items()},
            part_of(self.document_fields, order),
            self.members and self.members.picked(order),
        )

    @classmethod
    def joined(cls, parts: Sequence[Documents]) -> Documents:
        """Concatenate blocks with the same fields.

        Ids of several dtypes become the widest of them. Blocks of groups are not supported.
        """
        first = parts[0]
        if len(parts) == 1:
            return first
        ends = [(int(part.offsets[0]), int(part.offsets[-1])) for part in parts]

        def held(columns: Iterable[NDArray[Any]]) -> list[NDArray[Any]]:
            return [values[a:b] for values, (a, b) in zip(columns, ends, strict=True)]

        tokens = held(part.tokens for part in parts)
        dtypes = {array.dtype for array in tokens}
        if len(dtypes) > 1:  # a negative id stays negative, and is reported later
            dtype = np.int32 if np.dtype(np.int32) in dtypes else np.uint32
            tokens = [array.astype(dtype) for array in tokens]
        mask = None
        if any(part.loss_mask is not None for part in parts):
            mask = np.concatenate(held(part.loss_mask_or_ones for part in parts))
        return cls(
            np.concatenate(tokens),
            offsets_of(np.concatenate([part.lengths for part in parts])),
            np.concatenate([part.origin for part in parts]),
            mask,
            {
                name: np.concatenate(held(part.token_fields[name] for part in parts))
                for name in first.token_fields
            },
            joined_fields([part.document_fields for part in parts]),
        )

    @classmethod
    def from_arrays(
        cls,
        arrays: Sequence[NDArray[np.generic]],
        origin: NDArray[np.void] | None = None,
        loss_masks: Sequence[NDArray[np.bool_]] | None = None,
        token_fields: Fields | None = None,
        document_fields: Fields | None = None,
    ) -> Documents:
        """Build a block from one array of ids per document; the dtype must be a token dtype.

        `token_fields` hold the values (T,) of all tokens, `document_fields` (N,) of all documents.
        """
        lengths = np.fromiter((len(array) for array in arrays), dtype=np.int64, count=len(arrays))
        if origin is None:
            origin = make_origin(0, np.arange(len(arrays), dtype=np.int64))
        tokens = np.concatenate(arrays) if len(arrays) else np.zeros(0, dtype=np.uint32)
        mask = None
        if loss_masks is not None:
            mask = np.concatenate(loss_masks) if len(loss_masks) else np.zeros(0, dtype=np.bool_)
        return cls(
            tokens, offsets_of(lengths), origin, mask, token_fields or {}, document_fields or {}
        )


@dataclass(frozen=True, slots=True, eq=False)
class Members:
    """Documents of N groups, each of which a block holds as one document.

    Attributes:
        documents: documents of all groups, group by group.
        offsets: (N + 1,) int64 offsets of the groups into `documents`.
        in_slots: True if the block's tokens are slots that a leaf made of `documents`; otherwise
            they are the tokens of `documents` end to end.
    """

    documents: Documents
    offsets: NDArray[np.int64]
    in_slots: bool = False

    def part(self, start: int, stop: int) -> Members:
        """Return the members of the groups [start, stop)."""
        return Members(self.documents, self.offsets[start : stop + 1], self.in_slots)

    def picked(self, order: NDArray[np.int64]) -> Members:
        """Copy the members of the groups `order` (M,)."""
        sizes = np.diff(self.offsets)[order]
        documents = self.documents.take(ranges_of(self.offsets[order], sizes))
        return Members(documents, offsets_of(sizes), self.in_slots)

    def take(self, order: NDArray[np.int64]) -> Documents:
        """Copy the groups `order` (M,) into a block."""
        picked = self.picked(order)
        return joined_groups(picked.documents, picked.offsets)


def joined_groups(documents: Documents, offsets: NDArray[np.int64]) -> Documents:
    """Make a block of groups: its document i is [offsets[i], offsets[i + 1]) of `documents`.

    Nothing is copied. A group has the origin of its first document, and no document fields; groups
    must not be empty.
    """
    return Documents(
        documents.tokens,
        documents.offsets[offsets],
        documents.origin[offsets[:-1]],
        documents.loss_mask,
        documents.token_fields,
        members=Members(documents, offsets),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """A block of N documents that are not tokenized yet.

    Attributes:
        texts: N strings.
        origin: (N,) of dtype `ORIGIN`.
        document_fields: values (N,) of the documents by field name.
    """

    texts: Sequence[str]
    origin: NDArray[np.void]
    document_fields: Fields = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def num_characters(self) -> list[int]:
        """Number of characters of each document; 0 for a value that is not text."""
        return [len(text) if isinstance(text, str) else 0 for text in self.texts]

    def __getitem__(self, index: slice) -> Texts:
        return Texts(self.texts[index], self.origin[index], part_of(self.document_fields, index))

    def take(self, order: NDArray[np.int64]) -> Texts:
        """Return the documents `order` (M,), in that order."""
        texts = [self.texts[i] for i in order.tolist()]
        return Texts(texts, self.origin[order], part_of(self.document_fields, order))


def text_bytes(text: object) -> int:
    """Return the bytes of a text in UTF-8; 0 for a value that is not text."""
    if not isinstance(text, str):
        return 0
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))


def joined_fields(parts: Sequence[Fields]) -> Fields:
    """Concatenate the fields of several blocks with the same field names."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def part_of(fields: Fields, index: Any) -> Fields:
    """Return the fields at `index`, a slice or an index array."""
    return {name: values[index] for name, values in fields.items()} if fields else NO_FIELDS


def _check_fields(kind: str, fields: Fields, count: int, axes: slice = slice(None)) -> None:
    for name, values in fields.items():
        if values.shape[axes] != (count,):
            raise ConfigError(
                f'The {kind} field "{name}" must have shape ({count},), got {values.shape}.',
                f"Pass a flat array with one value per {kind}.",
                setting=name,
            )
