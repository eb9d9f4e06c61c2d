"""Token ids in arrays as a table: nothing is copied."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streampack.documents.blocks import Documents
from streampack.errors import ConfigError


def is_ragged(data: Any) -> bool:
    """True for a tuple of two arrays of one dimension, as ``(tokens, offsets)`` is."""
    return (
        isinstance(data, tuple)
        and len(data) == 2
        and all(hasattr(part, "__array__") and getattr(part, "ndim", 0) == 1 for part in data)
    )


def table_of_ragged(tokens: Any, offsets: Any) -> pa.Table:
    """A table with the column "tokens".

    Args:
        tokens: (T,) integers, of numpy or torch.
        offsets: (N + 1,) integers; document i is ``tokens[offsets[i]:offsets[i + 1]]``.

    Raises:
        ConfigError: they are not integers, or the offsets are not those of the tokens.
    """
    try:
        ids, bounds = (np.asarray(part) for part in (tokens, offsets))
    except (TypeError, ValueError, RuntimeError) as error:  # of torch: bfloat16, another device
        raise ConfigError(
            f"The source is a pair of arrays that numpy does not take ({error}).",
            "A pair is (tokens, offsets), both integers on the CPU.",
            "Pass the ids as the tokenizer gave them; floats have rounded some of them.",
        ) from error
    return pa.table({"tokens": _lists(ids, _checked(ids, bounds))})


def table_of_documents(documents: Documents) -> pa.Table:
    """A table with the column "tokens", the loss mask as "loss_mask", and the fields."""
    low, high = int(documents.offsets[0]), int(documents.offsets[-1])  # of a slice, inside
    offsets = _checked(documents.tokens[low:high], documents.offsets - low)
    per_token = {"tokens": documents.tokens, **documents.token_fields}
    if documents.loss_mask is not None:
        per_token["loss_mask"] = documents.loss_mask
    columns = {name: _lists(values[low:high], offsets) for name, values in per_token.items()}
    columns |= {name: pa.array(values) for name, values in documents.document_fields.items()}
    return pa.table(columns)


def _checked(tokens: NDArray[Any], offsets: NDArray[Any]) -> NDArray[np.int64]:
    """The offsets, which all tokens lie between."""
    integers = tokens.dtype.kind in "iu" and offsets.dtype.kind in "iu"
    if integers and len(offsets):
        bounds = offsets.astype(np.int64)
        if bounds[0] == 0 and bounds[-1] == len(tokens) and bool((np.diff(bounds) >= 0).all()):
            return bounds
    raise ConfigError(
        f"The source is a pair of arrays, {tokens.dtype} {tokens.shape} and {offsets.dtype} "
        f"{offsets.shape}, and the second does not hold the offsets of the first.",
        "A pair is (tokens, offsets): N + 1 offsets ascend from 0 to the number of tokens.",
        "Correct them; if each array is one document, pass a list of both.",
    )


def _lists(values: NDArray[Any], offsets: NDArray[np.int64]) -> pa.Array:
    return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(values))
