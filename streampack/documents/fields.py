"""FieldSpec: declared names and dtypes of the fields that accompany tokens and documents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.documents.blocks import GROUP
from streampack.errors import ConfigError

#: Dtypes of fields, all of which torch supports too.
DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")

#: Advice for fields of text, such as names of prompts.
TEXT_REMEDY = (
    "a text, such as an id, becomes a number by "
    "int(hashlib.sha256(text.encode()).hexdigest()[:15], 16)"
)

Types = Mapping[str, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """The fields of a run.

    Attributes:
        token: dtype by name of the fields with one value per token.
        document: dtype by name of the fields with one value per document.
        optional: True if records may lack the fields, because a map adds them.
    """

    token: Types = field(default_factory=dict)
    document: Types = field(default_factory=dict)
    optional: bool = False

    @classmethod
    def of(
        cls, token_fields: Mapping[str, Any] | None, document_fields: Mapping[str, Any] | None
    ) -> FieldSpec:
        """Validate the fields that a dataset's arguments declare.

        Raises:
            ConfigError: an argument is not a mapping, a name is invalid or used twice, or a dtype
                is not in `DTYPES`.
        """
        parsed: list[dict[str, np.dtype[Any]]] = []
        for argument, given in (
            ("token_fields", token_fields),
            ("document_fields", document_fields),
        ):
            if given is not None and not isinstance(given, Mapping):
                name = next(iter(given), "r") if isinstance(given, (list, tuple, set)) else "r"
                raise ConfigError(
                    f"{argument} must map names to dtypes, got {given!r:.100}.",
                    f'Pass a dict, for example {argument}={{"{name}": "float32"}}.',
                    setting=argument,
                )
            pairs = (given or {}).items()
            parsed.append(
                {_checked(argument, name): _dtype(argument, name, dtype) for name, dtype in pairs}
            )
        token, document = parsed
        twice = sorted({*token} & {*document})
        if twice:
            raise ConfigError(
                f'A field must be per token or per document; "{twice[0]}" is declared as both.',
                "Declare it in one of token_fields= and document_fields=.",
                setting="document_fields",
            )
        return cls(token, document)

    def plus(self, name: str, dtype: Any) -> FieldSpec:
        """Return the fields with one more per document."""
        return replace(self, document={**self.document, name: np.dtype(dtype)})

    def __bool__(self) -> bool:
        return bool(self.token or self.document)

    def describe(self) -> dict[str, Any] | None:
        """Return the fields, JSON-compatible, or None if there are no fields."""
        if not self:
            return None
        return {
            "token": {name: dtype.name for name, dtype in self.token.items()},
            "document": {name: dtype.name for name, dtype in self.document.items()},
        }


def misfit(value: Any, name: str, dtype: np.dtype[Any], where: str = "") -> str:
    """Describe the fault of a document with a value that its field cannot hold."""
    return f'holds {value!s} in its field "{name}"{where}, and the field is {dtype.name}'


def cast_values(
    values: NDArray[Any], dtype: np.dtype[Any], part: slice = slice(None)
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Convert values to a dtype; also return the positions in `part` of NaN or misfit values."""
    start = part.start or 0
    if values.dtype.kind not in "biuf":
        return np.zeros(len(values), dtype=dtype), np.arange(len(values[part])) + start
    with np.errstate(invalid="ignore", over="ignore"):
        converted = values.astype(dtype, copy=False)
    raw, cast = values[part], converted[part]
    wrong = np.isnan(raw) if raw.dtype.kind == "f" else np.zeros(len(raw), dtype=np.bool_)
    if dtype.kind == "f":
        wrong |= np.isinf(cast) & ~np.isinf(raw)
    elif dtype != values.dtype:
        wrong |= cast != raw
    return converted, np.flatnonzero(wrong) + start


def _checked(setting: str, name: Any) -> str:
    if name == GROUP or not isinstance(name, str) or not name:
        remedy = f'Use the name of a column or key; "{GROUP}" is reserved for groups.'
        raise ConfigError(f"A field's name must be text, got {name!r}.", remedy, setting=setting)
    return name


def _dtype(setting: str, name: str, dtype: Any) -> np.dtype[Any]:
    parsed = None
    try:
        if dtype is not None:  # numpy reads None as float64
            parsed = np.dtype(str(dtype).partition("torch.")[2] or dtype)
    except TypeError:
        pass
    if parsed is None or parsed.name not in DTYPES:
        raise ConfigError(
            f'The dtype of the field "{name}" must be a supported one, got {dtype!r}.',
            f"Use one of {', '.join(DTYPES)}; {TEXT_REMEDY}.",
            setting=setting,
        )
    return parsed.newbyteorder("=")
