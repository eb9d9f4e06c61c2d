"""The caller's columns of documents in memory, checked when they are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.arguments import type_in_words
from streampack.documents.blocks import Documents, make_origin
from streampack.documents.fields import FieldSpec
from streampack.errors import ConfigError
from streampack.fields.casting import cast_fields
from streampack.fields.declared import declared_fields
from streampack.sources.fields import RecordSchema
from streampack.sources.items import item_block

_IDS, _MASK = "ids", "loss_mask"  # names in the records that documents are made from


@dataclass(frozen=True, slots=True)
class Given:
    """The caller's columns by name, indexed by document and checked when they are read."""

    columns: Mapping[str, Any]
    types: FieldSpec

    @classmethod
    def of(
        cls,
        count: int,
        documents: NDArray[np.int64],
        ids: Any,
        loss_mask: Any,
        token_fields: Mapping[str, Any] | None,
        document_fields: Mapping[str, Any] | None,
    ) -> Given:
        """Collect the arguments of `MicrobatchPlan.batches`.

        Args:
            count: number of documents in the plan.
            documents: (D,) indices of the rank's documents.

        Raises:
            ConfigError: fields are not a mapping, a field has a reserved name, or a column has more
                or fewer documents than the plan.
        """
        for name, given in (("token_fields", token_fields), ("document_fields", document_fields)):
            if not (given is None or isinstance(given, Mapping)):
                raise ConfigError(
                    f"{name} must be a mapping from names to values, got {type_in_words(given)}.",
                    f'Pass {name}={{"name": values}} with the values of each document.',
                    setting=name,
                )
        columns = {**(token_fields or {}), **(document_fields or {})}
        types = declared_fields(
            {
                name: _declared(name, values, documents)
                for name, values in (token_fields or {}).items()
            },
            {
                name: _dtype(name, values, documents)
                for name, values in (document_fields or {}).items()
            },
        )
        for taken in {_IDS, _MASK} & {*columns}:
            raise ConfigError(
                f'"{taken}" is reserved for an argument of the same name, got a field "{taken}".',
                "Rename the field.",
                setting="token_fields" if taken in (token_fields or {}) else "document_fields",
            )
        columns[_IDS] = ids
        if loss_mask is not None:
            columns[_MASK] = loss_mask
        for name, values in columns.items():
            held = len(values) if isinstance(values, list | tuple) else count
            held = (getattr(values, "shape", None) or (held,))[0]  # for arrays and tensors
            if held != count:
                raise ConfigError(
                    f'"{name}" must have an entry for each of the {count} planned documents, got '
                    f"{held}.",
                    "Pass the entries in the order of the packed lengths, or a dict by index.",
                    setting=name,
                )
        return cls(columns, types)

    def read(self, numbers: NDArray[np.int64], lengths: NDArray[np.int64]) -> Documents:
        """Read documents and check them.

        Args:
            numbers: (D,) indices of the documents.
            lengths: (D,) planned lengths in tokens.

        Raises:
            ConfigError: a document, its mask or a field is missing, malformed or of another length.
        """
        records = [
            {name: _plain(_at(values, number, name)) for name, values in self.columns.items()}
            for number in numbers.tolist()
        ]
        fields = RecordSchema(True, _IDS, (_MASK,) if _MASK in self.columns else ())
        block, problems = item_block(records, fields, make_origin(0, numbers), self.types)
        assert isinstance(block, Documents)
        if not problems:
            block, problems = cast_fields(block, self.types)
            for i in np.flatnonzero(block.lengths != lengths).tolist():
                problems[i] = f"has {block.lengths[i]} ids, but {lengths[i]} were planned"
        refuse_faults(
            problems,
            numbers,
            "Pass the documents and fields in the order of the lengths that were planned.",
        )
        return block


def refuse_faults(faults: Mapping[int, str], numbers: NDArray[np.int64], remedy: str) -> None:
    """Raise `ConfigError` for the first of the faults, which are by position in `numbers`."""
    for i, fault in faults.items():
        raise ConfigError(
            f"Document {numbers[i]} {fault}.", remedy, document=f"document {numbers[i]}"
        )


def _at(values: Any, number: int, name: str) -> Any:
    try:
        return values[number]
    except (TypeError, LookupError) as error:
        raise ConfigError(
            f'"{name}" must have an entry for document {number}, got {type_in_words(values)} '
            "without one.",
            "Pass a list, array, tensor or dict with an entry for each document of the rank.",
            setting=name,
        ) from error


def _plain(value: Any) -> Any:
    """Return a tensor without dimensions as a number, and other values unchanged."""
    return value.item() if getattr(value, "ndim", None) == 0 else value


def _declared(name: str, values: Any, documents: NDArray[np.int64]) -> Any:
    """Return a token field's dtype, with the shape of its values if it has several per token."""
    dtype = _dtype(name, values, documents)
    number = _example(values, documents)
    try:
        shape = () if number is None else np.shape(_at(values, number, name))
    except (TypeError, ValueError, RuntimeError):
        return dtype  # `read` raises an error that names the document
    return (dtype, tuple(shape[1:])) if len(shape) > 1 else dtype


def _example(values: Any, documents: NDArray[np.int64]) -> int | None:
    """Return the rank's first document, or any in a dict; None if there is none."""
    if len(documents):
        return int(documents[0])
    return next(iter(values), None) if isinstance(values, Mapping) else None


def _dtype(name: str, values: Any, documents: NDArray[np.int64]) -> Any:
    """Return the dtype of a field, inferred from the rank's first document."""
    number = _example(values, documents)
    if number is None:
        return np.float32
    first = _at(values, number, name)
    try:
        kind = np.asarray(first).dtype
    except (TypeError, ValueError, RuntimeError):
        return np.float32  # `read` raises an error that names the document
    if not hasattr(first, "dtype"):  # Python numbers; numpy and torch have dtypes
        return {"f": np.float32, "i": np.int64}.get(kind.kind, kind)
    return kind
