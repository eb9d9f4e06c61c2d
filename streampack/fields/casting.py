"""Casting of the fields of documents to their declared dtypes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.documents.blocks import Documents
from streampack.documents.fields import FieldSpec
from streampack.errors import ConfigError


def cast_fields(documents: Documents, types: FieldSpec) -> tuple[Documents, dict[int, str]]:
    """Convert the documents' fields to the declared dtypes and drop all other numbers.

    Returns:
        The documents, and a description of the fault by index for documents with invalid
        values.

    Raises:
        ConfigError: a field is missing.
    """
    for wanted, fields, kind in (
        (types.token, documents.token_fields, "token"),
        (types.document, documents.document_fields, "document"),
    ):
        for name in wanted:
            if name not in fields:
                raise ConfigError(
                    f'The documents have no {kind} field "{name}"; they have '
                    f"{_listed([*documents.token_fields, *documents.document_fields])}.",
                    "Name the column as the field, add it in the map, or leave it out.",
                    setting=f"{kind}_fields",
                )
    problems: dict[int, str] = {}
    held = slice(int(documents.offsets[0]), int(documents.offsets[-1]))
    starts = documents.offsets[:-1]
    token: dict[str, NDArray[Any]] = {}
    for name, dtype in types.token.items():
        values = documents.token_fields[name]
        if values.shape[1:] != dtype.shape:
            raise ConfigError(
                f'The token field "{name}" must have shape {(len(values), *dtype.shape)}, got '
                f"{values.shape}.",
                "Correct the shape in token_fields=, or the values in the map.",
                setting="token_fields",
            )
        token[name], bad = cast_values(values, dtype, held)
        for number in bad.tolist():
            at = number // math.prod(dtype.shape)
            i = int(np.searchsorted(starts, at, side="right")) - 1
            where = f" at token {at - int(starts[i])}"
            problems.setdefault(i, misfit(values.reshape(-1)[number], name, dtype, where))
    document: dict[str, NDArray[Any]] = {}
    for name, dtype in types.document.items():
        values = documents.document_fields[name]
        if name in types.keys and values.dtype.kind in "OUT":  # made by a map
            values = types.keys[name].of_texts(values.tolist())
        document[name], bad = cast_values(values, dtype)
        for i in bad.tolist():
            problems.setdefault(i, misfit(values[i], name, dtype))
    fields = documents.document_fields
    objects = {name: values for name, values in fields.items() if values.dtype == object}
    document |= {name: values for name, values in objects.items() if name not in types.keys}
    return replace(documents, token_fields=token, document_fields=document), problems


def _listed(names: list[str]) -> str:
    return ", ".join(f'"{name}"' for name in names) or "none"


def misfit(value: Any, name: str, dtype: np.dtype[Any], where: str = "") -> str:
    """Describe the fault of a document with a value that its field cannot hold."""
    return f'holds {value!s} in its field "{name}"{where}, and the field is {dtype.base.name}'


def cast_values(
    values: NDArray[Any], dtype: np.dtype[Any], part: slice = slice(None)
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Convert values to a dtype; also return the positions of NaN or misfit values.

    Args:
        values: (T, *shape) values, with the shape of a dtype that has one.
        dtype: dtype of the field.
        part: values that are checked, of T.

    Returns:
        The converted values, and positions of single numbers in the flattened values.
    """
    flat, dtype, width = values.reshape(-1), dtype.base, math.prod(dtype.shape)
    start, stop, _ = part.indices(len(values))
    part = slice(start * width, stop * width)
    if values.dtype.kind not in "biuf":
        wrong = np.arange(part.start, part.stop)
        return np.zeros(values.shape, dtype=dtype), wrong
    if dtype == values.dtype and dtype.kind != "f":
        return values, np.zeros(0, dtype=np.int64)
    with np.errstate(invalid="ignore", over="ignore"):
        converted = flat.astype(dtype, copy=False)
    raw, cast = flat[part], converted[part]
    wrong = np.isnan(raw) if raw.dtype.kind == "f" else np.zeros(len(raw), dtype=np.bool_)
    if dtype.kind == "f":
        wrong |= np.isinf(cast) & ~np.isinf(raw)
    else:
        wrong |= cast != raw
    return converted.reshape(values.shape), np.flatnonzero(wrong) + part.start
