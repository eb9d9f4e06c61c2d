"""Documents from raw bytes: many little-endian integer arrays at once, at any byte position."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from streampack.documents import TOKEN_DTYPES, Documents, gather_ragged, offsets_of
from streampack.errors import ConfigError

#: What is wrong with a document that has such an id; ends a sentence that begins with its name.
BAD_ID = "has an id that is negative or does not fit into 32 bits"

#: The integer dtypes that documents may be stored in, by kind: the size of an item in bytes, plus
#: 16 if it is signed.
INTEGER_DTYPES: dict[int, np.dtype[Any]] = {
    np.dtype(name).itemsize + (16 if name.startswith("int") else 0): np.dtype(name)
    for name in ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
}
_LARGEST = 2**32 - 1


def integer_kind(dtype: DTypeLike, argument: str = "dtype") -> int:
    """The kind of an integer dtype as in `INTEGER_DTYPES`; `ConfigError` for any other."""
    try:
        wanted = np.dtype(dtype)
    except TypeError:
        wanted = np.dtype(object)
    for kind, known in INTEGER_DTYPES.items():
        if wanted == known:
            return kind
    raise ConfigError(
        f"{argument} is {dtype!r}.",
        "Token ids are stored as little-endian integers.",
        "Pass one of " + ", ".join(known.name for known in INTEGER_DTYPES.values()) + ".",
    )


def integer_block(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    counts: NDArray[np.int64],
    kinds: NDArray[np.uint8],
    origin: NDArray[np.void],
    problems: dict[int, str],
) -> Documents:
    """N integer arrays, at any byte position, as a block of documents.

    Args:
        data: (B,) bytes.
        starts: (N,) where each array begins.
        counts: (N,) its number of integers; the caller has checked that they end inside `data`.
        kinds: (N,) their dtypes, as in `INTEGER_DTYPES`.
        origin: (N,) of dtype `ORIGIN`.
        problems: what is wrong with an array, by its number: those arrays are left out. Arrays
            with an id that is not a token id are left out too, and are added.

    Returns:
        Ids of the arrays' dtype, if that is one of uint16, uint32 and int32 for all of them;
        otherwise of uint32.
    """
    good = np.setdiff1d(np.arange(len(starts)), list(problems))
    counts = counts[good]
    ids = integers_at(data, starts[good], counts, kinds[good])
    offsets = offsets_of(counts)
    bad = np.zeros(0, dtype=np.int64)
    if not np.can_cast(ids.dtype, np.uint32):
        wrong = np.flatnonzero((ids < 0) | (ids > _LARGEST))
        ids[wrong] = 0
        bad = np.unique(np.searchsorted(offsets, wrong, side="right") - 1)
        problems.update(dict.fromkeys(good[bad].tolist(), BAD_ID))
    tokens = ids if ids.dtype in TOKEN_DTYPES else ids.astype(np.uint32)
    block = Documents(tokens, offsets, origin[good])
    return block.take(np.setdiff1d(np.arange(len(good)), bad)) if len(bad) else block


def integers_at(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    counts: NDArray[np.int64],
    kinds: NDArray[np.uint8],
) -> NDArray[Any]:
    """(T,) the integers of N arrays end to end, copied; see `integer_block`."""
    if len(kinds) and (kinds == kinds[0]).all():
        dtype = INTEGER_DTYPES[int(kinds[0])]
        offsets = offsets_of(counts) * dtype.itemsize
        out = np.empty(int(offsets[-1]), dtype=np.uint8)
        gather_ragged(data, starts, offsets, out)
        return out.view(dtype)
    parts = [np.zeros(0, dtype=np.uint8)]
    for start, count, kind in zip(starts.tolist(), counts.tolist(), kinds.tolist(), strict=True):
        dtype = INTEGER_DTYPES[kind]
        parts.append(data[start : start + count * dtype.itemsize].view(dtype))
    return np.concatenate(parts)
