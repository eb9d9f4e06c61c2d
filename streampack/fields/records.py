"""fields_in: the fields of tokens and documents in a record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.arguments import type_in_words
from streampack.documents.fields import TEXT_REMEDY, FieldSpec
from streampack.fields.casting import cast_values, misfit
from streampack.sources.records import BrokenDocumentError, numbers_of, require_field


def fields_in(
    record: Any, num_tokens: int | None, types: FieldSpec
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return the token fields and document fields of a record with `num_tokens` ids, by name.

    Token fields are read only from records of token ids; `num_tokens` is None for text.
    """
    given = record if isinstance(record, Mapping) else {}
    token = {} if num_tokens is None else types.token
    for name in (*token, *types.document):
        if not types.optional and not _is_optional(name, types):
            require_field(given, name)
    arrays = {
        name: numbers_of(given[name], name, num_tokens, dtype.shape)
        for name, dtype in token.items()
        if name in given
    }
    values = {
        name: types.keys[name](given.get(name))
        if _is_optional(name, types)
        else _number(given[name], name, types.keys.get(name))
        for name in types.document
        if name in given or _is_optional(name, types)
    }
    if not types.optional:  # the output of a map may have other dtypes
        arrays = {name: _whole(array, name, token[name]) for name, array in arrays.items()}
        values = {
            name: _whole(np.array([value]), name, types.document[name])[0]
            for name, value in values.items()
        }
    return arrays, values


def _is_optional(name: str, types: FieldSpec) -> bool:
    """Return True for a field with a conversion that accepts any value, or none."""
    return name in types.keys and types.keys[name].optional


def _number(value: Any, name: str, key: Callable[[str], int] | None) -> Any:
    if isinstance(value, np.generic | np.ndarray) and value.ndim == 0:
        value = value.item()
    if key is not None:
        if not isinstance(value, str):
            raise BrokenDocumentError(f'has {type_in_words(value)} in "{name}", not a text')
        return key(value)
    if isinstance(value, str):
        raise BrokenDocumentError(f'has a text in "{name}", not a number; {TEXT_REMEDY}')
    if not isinstance(value, Real):
        raise BrokenDocumentError(f'has {type_in_words(value)} in "{name}", not a number')
    value = value if isinstance(value, int | float) else float(value)
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        raise BrokenDocumentError(f'has a number of more than 64 bits in "{name}"')
    return value


def _whole(values: NDArray[Any], name: str, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return a record's values in the field's dtype if that is an integer dtype.

    Without the cast, joining records of several dtypes could round large integers to floats.
    """
    if dtype.base.kind not in "iu":
        return values
    converted, wrong = cast_values(values, dtype)
    if len(wrong):
        raise BrokenDocumentError(misfit(values.reshape(-1)[wrong[0]], name, dtype))
    return converted
