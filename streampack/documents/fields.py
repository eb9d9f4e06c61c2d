"""FieldSpec: declared names and dtypes of the fields that accompany tokens and documents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

#: Advice for fields of text, such as names of prompts.
TEXT_REMEDY = 'texts, such as names, are read as integer keys with document_fields={...: "text"}'

Types = Mapping[str, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """The fields of a run.

    Attributes:
        token: dtype by name of the fields per token. A field with several numbers per token has a
            subarray dtype, ``np.dtype((dtype, shape))``, which numpy makes an array (T, *shape) of.
        document: dtype by name of the fields with one value per document.
        keys: conversion to integers, by name of the document fields that are texts (`text_keys`).
        optional: True if records may lack the fields, because a map or a stage adds them.
    """

    token: Types = field(default_factory=dict)
    document: Types = field(default_factory=dict)
    optional: bool = False
    keys: Mapping[str, Any] = field(default_factory=dict)

    def plus(self, name: str, dtype: Any) -> FieldSpec:
        """Return the fields with one more per document."""
        return replace(self, document={**self.document, name: np.dtype(dtype)})

    @property
    def shaped_bytes(self) -> int:
        """Bytes per token of the fields with several numbers; the few of others do not count.

        Fields that a map may make are not counted.
        """
        types = {} if self.optional else self.token
        return sum(dtype.itemsize for dtype in types.values() if dtype.shape)

    def __bool__(self) -> bool:
        return bool(self.token or self.document)

    def describe(self) -> dict[str, Any] | None:
        """Return the fields, JSON-compatible, or None if there are no fields."""
        if not self:
            return None
        return {
            "token": {
                name: [dtype.base.name, *dtype.shape] if dtype.shape else dtype.name
                for name, dtype in self.token.items()
            },
            "document": {n: "text" if n in self.keys else t.name for n, t in self.document.items()},
        }
