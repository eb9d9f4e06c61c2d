"""Fields with several numbers per token, which a tree has once per slot.

Routed experts and a teacher's logits belong to the prefix up to a token, so the sequences that
share a slot have the same ones. That is checked, value by value. Fields with one number per token,
such as log-probabilities of a sampler, stay with each sequence.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.documents.blocks import Documents, Fields
from streampack.documents.fields import FieldSpec


def fields_of_slots(types: FieldSpec) -> FieldSpec:
    """Return the fields that trees have once per slot."""
    return FieldSpec({name: dtype for name, dtype in types.token.items() if dtype.shape})


def fields_of_sequences(types: FieldSpec) -> FieldSpec:
    """Return the fields that trees have for each token of each sequence, and per document."""
    scalars = {name: dtype for name, dtype in types.token.items() if not dtype.shape}
    return replace(types, token=scalars)


def slot_fields(
    sequences: Documents, slot: NDArray[np.int64], num_slots: int
) -> tuple[Fields, dict[int, str]]:
    """Return the values of the slots (T,), and the fault of each sequence that disagrees.

    >>> ids = [np.array([7, 8], np.uint16), np.array([7, 9], np.uint16)]
    >>> routes = np.array([[1, 2], [3, 4], [1, 2], [5, 6]])
    >>> sequences = Documents.from_arrays(ids, token_fields={"experts": routes})
    >>> fields, faults = slot_fields(sequences, np.array([0, 1, 0, 2]), 3)
    >>> fields["experts"].tolist(), faults
    ([[1, 2], [3, 4], [5, 6]], {})

    Args:
        sequences: sequences with N tokens in all, without gaps.
        slot: (N,) slot of each token.
        num_slots: number of slots, T.
    """
    fields: dict[str, NDArray[Any]] = {}
    faults: dict[int, str] = {}
    for name, values in sequences.token_fields.items():
        if values.ndim == 1:
            continue
        column = fields[name] = np.empty((num_slots, *values.shape[1:]), dtype=values.dtype)
        column[slot] = values
        differs = (column[slot] != values).reshape(len(values), -1).any(axis=1)
        for at in np.flatnonzero(differs).tolist():
            i = int(np.searchsorted(sequences.offsets, at, side="right")) - 1
            token = at - int(sequences.offsets[i])
            faults.setdefault(
                i, f'shares token {token} with a sequence that has other values in "{name}" there'
            )
    return fields, faults
