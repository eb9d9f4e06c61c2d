"""Lookup: the excluded keys of a column, and the ordinals of the keys that documents have.

Steps, for a column of texts in Arrow's buffers, in one kernel:
  1. Every text is hashed, eight bytes at a time. A bitmap of 16 bits per key, in which a hash has
     two bits of one word (a blocked Bloom filter), leaves about one text in fifty.
  2. These are searched for in the sorted hashes of the keys, from the first hash with the same
     upper bits on, of which a table has the position.
  3. Texts with the hash of a key are compared with it byte by byte.

Cost: some tens of nanoseconds per document, however many keys there are; 34 bytes of memory per
key, and its text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel_of
from streampack.cached import cached_property
from streampack.documents.blocks import offsets_of
from streampack.documents.text_keys import text_key
from streampack.packing.rng import mix


class Lookup:
    """Conversion of a column's values to ordinals of excluded keys: 0, or 1 + index of the key.

    Integers have the key that is their decimal text.

    Args:
        keys: (K,) texts in UTF-8.
    """

    #: Records may lack the column, and then have no key.
    optional = True

    @staticmethod
    def fits(kind: Any) -> bool:
        """Return True for the type of an Arrow column of texts or integers."""
        name = str(getattr(kind, "value_type", kind))
        return name in ("string", "large_string", "string_view") or name.lstrip("u")[:3] == "int"

    def __init__(self, keys: Sequence[bytes]) -> None:
        sizes = np.fromiter(map(len, keys), dtype=np.int64, count=len(keys))
        self._data = np.frombuffer(b"".join(keys), dtype=np.uint8)
        self._offsets = offsets_of(sizes)
        bits = max(len(keys) * 16 - 1, 63).bit_length()
        self._bitmap = np.zeros(1 << bits - 6, dtype=np.uint64)
        hashes = np.empty(len(keys), dtype=np.uint64)
        _hash(self._data, self._offsets, hashes)
        _mark(hashes, self._bitmap)
        self._order = np.argsort(hashes, kind="stable")
        self._hashes = hashes[self._order]
        upper = np.arange(1 << max(bits - 6, 1), dtype=np.uint64) << np.uint64(
            64 - max(bits - 6, 1)
        )
        self._begins = np.append(np.searchsorted(self._hashes, upper), len(keys)).astype(np.uint32)

    @property
    def count(self) -> int:
        """Number of keys."""
        return len(self._hashes)

    def keys(self) -> list[bytes]:
        """Return the keys (K,)."""
        data, ends = self._data.tobytes(), self._offsets.tolist()
        return [data[low:high] for low, high in pairwise(ends)]

    @cached_property
    def _ordinals(self) -> dict[bytes, int]:
        ordinals = [(key, 1 + i) for i, key in enumerate(self.keys())]
        return dict(reversed(ordinals))  # the first of equal keys counts

    @cached_property
    def _integers(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Sorted keys that are integers, and their ordinals."""
        pairs = sorted(
            (int(key), n)
            for key, n in self._ordinals.items()
            if len(key) < 20 and key.lstrip(b"-").isdigit() and b"%d" % int(key) == key
        )
        array = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        return array[:, 0], array[:, 1]

    @cached_property
    def _text_keys(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Sorted integers that stand for the keys in a field of texts, and the keys' ordinals."""
        pairs = sorted((text_key(key), n) for key, n in self._ordinals.items())
        array = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        return array[:, 0], array[:, 1]

    def __call__(self, value: Any) -> int:
        """Return the ordinal of a value of a record."""
        if not isinstance(value, str) and type(value) is not int:
            return 0
        return self._ordinals.get(str(value).encode(errors="surrogatepass"), 0)

    def of_texts(self, texts: Sequence[str | bytes]) -> NDArray[np.int64]:
        """Return the ordinals (N,) int64 of N texts."""
        data = [t.encode(errors="surrogatepass") if isinstance(t, str) else t for t in texts]
        sizes = np.fromiter(map(len, data), dtype=np.int64, count=len(data))
        return self._of_bytes(np.frombuffer(b"".join(data), dtype=np.uint8), offsets_of(sizes))

    def of_column(self, column: Any) -> NDArray[np.int64]:
        """Return the ordinals (N,) int64 of an Arrow array of texts or integers; 0 for nulls."""
        kind = str(getattr(column.type, "value_type", column.type))
        if kind == "null":
            return np.zeros(len(column), dtype=np.int64)
        if "int" in kind:
            column = column.dictionary_decode() if hasattr(column, "dictionary") else column
            lacks = column.is_null().to_numpy(zero_copy_only=False)
            numbers = column.fill_null(0).to_numpy(zero_copy_only=False)
            return np.where(lacks, 0, self.of_integers(numbers))
        if kind not in ("string", "large_string") or hasattr(column, "dictionary"):
            kind, column = "large_string", column.cast("large_string")
        _, offsets, data = column.buffers()
        width = np.int32 if kind == "string" else np.int64
        ends = np.frombuffer(offsets, width)[column.offset :][: len(column) + 1].astype(np.int64)
        ordinals = self._of_bytes(np.frombuffer(data or b"", dtype=np.uint8), ends)
        if column.null_count:
            ordinals[column.is_null().to_numpy(zero_copy_only=False)] = 0
        return ordinals

    def of_integers(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """Return the ordinals (N,) int64 of N integers."""
        return _ordinals_in(*self._integers, values)

    def of_declared(self, values: NDArray[Any], *, texts: bool) -> NDArray[np.int64]:
        """Return the ordinals (N,) int64 of a declared field: integers, or keys of texts."""
        return _ordinals_in(*(self._text_keys if texts else self._integers), values)

    def _of_bytes(self, data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        ordinals = np.zeros(len(offsets) - 1, dtype=np.int64)
        if len(self._hashes):
            keys = self._data, self._offsets, self._order, self._hashes
            _find(data, offsets, self._bitmap, self._begins, *keys, ordinals)
        return ordinals


def positions_in(known: NDArray[np.int64], values: NDArray[Any]) -> NDArray[np.int64]:
    """Return the position of each value (N,) in sorted `known` (K,), -1 for values not in it."""
    if not len(known):
        return np.full(len(values), -1, dtype=np.int64)
    at = np.minimum(np.searchsorted(known, values), len(known) - 1)
    return np.where(known[at] == values, at, -1)


def _ordinals_in(
    known: NDArray[np.int64], ordinals: NDArray[np.int64], values: NDArray[Any]
) -> NDArray[np.int64]:
    """Return the ordinal of each value (N,) among sorted `known` (K,); 0 for others."""
    ordinals = np.append(ordinals, 0)
    return ordinals[positions_in(known, values)]


@kernel_of(lambda data, offsets, *_: int(offsets[-1] - offsets[0]) + 8 * offsets.size)
def _hash(data: NDArray[np.uint8], offsets: NDArray[np.int64], hashes: NDArray[np.uint64]) -> None:
    """Write the hashes (N,) of N texts."""
    for i in range(len(hashes)):
        text = data[offsets[i] : offsets[i + 1]]
        h = np.uint64(len(text))
        for k in range(0, len(text) - 7, 8):  # compiled to one load of eight bytes
            word = np.uint64(text[k])
            word |= np.uint64(text[k + 1]) << np.uint64(8)
            word |= np.uint64(text[k + 2]) << np.uint64(16)
            word |= np.uint64(text[k + 3]) << np.uint64(24)
            word |= np.uint64(text[k + 4]) << np.uint64(32)
            word |= np.uint64(text[k + 5]) << np.uint64(40)
            word |= np.uint64(text[k + 6]) << np.uint64(48)
            word |= np.uint64(text[k + 7]) << np.uint64(56)
            h = mix(h ^ word)
        word = np.uint64(0)
        for k in range(len(text) & ~7, len(text)):
            word = word << np.uint64(8) | np.uint64(text[k])
        hashes[i] = mix(h ^ word)


@kernel_of(lambda data, offsets, *_: int(offsets[-1] - offsets[0]) + 8 * offsets.size)
def _find(
    data: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    bitmap: NDArray[np.uint64],
    begins: NDArray[np.uint32],
    key_data: NDArray[np.uint8],
    key_offsets: NDArray[np.int64],
    order: NDArray[np.int64],
    sorted_hashes: NDArray[np.uint64],
    ordinals: NDArray[np.int64],
) -> None:
    """Write 1 + the index of the key, or 0, of N texts to `ordinals` (N,)."""
    hashes = ordinals.view(np.uint64)
    _hash(data, offsets, hashes)
    last = np.uint64(64 * len(bitmap) - 1)
    shift = np.uint64(0)
    while np.uint64(len(begins) - 2) >> shift:
        shift += np.uint64(1)
    shift = np.uint64(64) - shift
    for i in range(len(hashes)):  # apart, so that the processor waits for several words at once
        h = hashes[i]
        bits = bitmap[np.int64((h & last) >> np.uint64(6))]
        both = bits >> (h & np.uint64(63)) & bits >> (h >> np.uint64(58))
        ordinals[i] = 0
        if not both & np.uint64(1):
            continue
        size = offsets[i + 1] - offsets[i]
        upper = np.int64(h >> shift)
        for at in range(np.int64(begins[upper]), np.int64(begins[upper + 1])):
            key = order[at]
            begin = key_offsets[key]
            if sorted_hashes[at] == h and key_offsets[key + 1] - begin == size:
                k = 0
                while k < size and data[offsets[i] + k] == key_data[begin + k]:
                    k += 1
                if k == size:
                    ordinals[i] = 1 + key
                    break


def _mark(hashes: NDArray[np.uint64], bitmap: NDArray[np.uint64]) -> None:
    """Set two bits of a word of a bitmap for each hash."""
    words = (hashes & np.uint64(64 * len(bitmap) - 1)) >> np.uint64(6)
    bits = np.uint64(1) << (hashes & np.uint64(63)) | np.uint64(1) << (hashes >> np.uint64(58))
    np.bitwise_or.at(bitmap, words, bits)


def as_keys(values: Iterable[Any]) -> list[bytes]:
    """Return texts and integers as keys; raise TypeError for other values."""
    keys = []
    for value in values:
        item = value.item() if isinstance(value, np.generic) else value
        if isinstance(item, str):
            keys.append(item.encode(errors="surrogatepass"))
        elif type(item) is int:
            keys.append(b"%d" % item)
        else:
            raise TypeError(f"{item!r:.80}")
    return keys
