"""What the caller has for each document of a rank: ids, a loss mask, fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.arguments import type_in_words
from streampack.documents.blocks import Documents, make_origin
from streampack.documents.fields import FieldTypes
from streampack.errors import ConfigError
from streampack.reading.fields import Fields
from streampack.sources.iterable.items import item_block

_IDS, _MASK = "ids", "loss_mask"  # in the records that documents are made of


@dataclass(frozen=True, slots=True)
class Given:
    """By name what documents have, looked up by their numbers; checked when it is read."""

    columns: Mapping[str, Any]
    types: FieldTypes

    @classmethod
    def of(
        cls,
        count: int,
        own: NDArray[np.int64],
        ids: Any,
        loss_mask: Any,
        token_fields: Mapping[str, Any] | None,
        document_fields: Mapping[str, Any] | None,
    ) -> Given:
        """From the arguments of `MicrobatchPlan.batches`; `own` (D,) of `count` are the rank's.

        Raises:
            ConfigError: fields are no mapping, one has a name that is taken, or something is there
                for more or fewer documents than were planned.
        """
        for name, given in (("token_fields", token_fields), ("document_fields", document_fields)):
            if not (given is None or isinstance(given, Mapping)):
                raise ConfigError(
                    f"{name} is {type_in_words(given)}.",
                    "Fields have names.",
                    f'Pass {name}={{"name": values}}, with what each document has.',
                )
        columns = {**(token_fields or {}), **(document_fields or {})}
        types = FieldTypes.of(
            {name: _dtype(name, values, own) for name, values in (token_fields or {}).items()},
            {name: _dtype(name, values, own) for name, values in (document_fields or {}).items()},
        )
        for taken in {_IDS, _MASK} & {*columns}:
            raise ConfigError(
                f'A field is named "{taken}".', "Batches have that beside fields.", "Rename it."
            )
        columns[_IDS] = ids
        if loss_mask is not None:
            columns[_MASK] = loss_mask
        for name, values in columns.items():
            held = len(values) if isinstance(values, list | tuple) else count
            held = (getattr(values, "shape", None) or (held,))[0]  # of arrays and tensors
            if held != count:
                raise ConfigError(
                    f'"{name}" has {held} documents, and {count} were planned.',
                    "What belongs to a document is looked up by its number in the plan.",
                    "Pass as many as lengths were packed, in their order, or a dict by number.",
                )
        return cls(columns, types)

    def read(self, numbers: NDArray[np.int64], lengths: NDArray[np.int64]) -> Documents:
        """The documents with these numbers (D,), which were planned with these `lengths` (D,).

        Raises:
            ConfigError: a document, or what belongs to it, is not what it should be.
        """
        records = [
            {name: _plain(_at(values, number, name)) for name, values in self.columns.items()}
            for number in numbers.tolist()
        ]
        fields = Fields(True, _IDS, (_MASK,) if _MASK in self.columns else ())
        block, problems = item_block(records, fields, make_origin(0, numbers), self.types)
        assert isinstance(block, Documents)
        if not problems:
            block, problems = self.types.cast(block)
            for i in np.flatnonzero(block.lengths != lengths).tolist():
                problems[i] = f"has {block.lengths[i]} ids, and {lengths[i]} when it was planned"
        for i, what in problems.items():
            raise ConfigError(
                f"Document {numbers[i]} {what}.",
                "It cannot be in a batch.",
                "Pass the documents and fields in the order of the lengths that were planned.",
            )
        return block


def _at(values: Any, number: int, name: str) -> Any:
    try:
        return values[number]
    except (TypeError, LookupError) as error:
        raise ConfigError(
            f'There is nothing for document {number} in "{name}", '
            f"which is {type_in_words(values)}.",
            "What belongs to a document is looked up by its number.",
            "Pass a list, array, tensor or dict with one for each document of the rank, in order.",
        ) from error


def _plain(value: Any) -> Any:
    """A number in place of a tensor of no dimension."""
    return value.item() if getattr(value, "ndim", None) == 0 else value


def _dtype(name: str, values: Any, own: NDArray[np.int64]) -> Any:
    """Of a field, from what the first document has."""
    if not len(own):
        return np.float32
    first = _at(values, int(own[0]), name)
    try:
        kind = np.asarray(first).dtype
    except (TypeError, ValueError, RuntimeError):
        return np.float32  # the document is named when it is read
    if not hasattr(first, "dtype"):  # Python's numbers
        return {"f": np.float32, "i": np.int64}.get(kind.kind, kind)
    return kind
