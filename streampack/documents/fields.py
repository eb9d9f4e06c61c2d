"""FieldTypes: what else travels with tokens and documents, declared by name and dtype."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.documents.blocks import GROUP, MEDIA, PATCHES, Documents
from streampack.errors import ConfigError

#: What torch has too.
DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")

#: What to do with texts, such as names of prompts.
TEXT_REMEDY = (
    "a text, such as an id, becomes a number by "
    "int(hashlib.sha256(text.encode()).hexdigest()[:15], 16)"
)

Types = Mapping[str, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class FieldTypes:
    """The fields of a run.

    Attributes:
        token: dtypes of the fields with one value per token, by name.
        document: dtypes of those with one value per document.
        optional: True if records may lack them, since a map makes them.
    """

    token: Types = field(default_factory=dict)
    document: Types = field(default_factory=dict)
    optional: bool = False

    @classmethod
    def of(
        cls, token_fields: Mapping[str, Any] | None, document_fields: Mapping[str, Any] | None
    ) -> FieldTypes:
        """The fields that a dataset's arguments declare.

        Raises:
            ConfigError: they are not by name, a name is no name, is used twice, or its dtype is
                none of `DTYPES`.
        """
        made: list[dict[str, np.dtype[Any]]] = []
        for what, given in (("token_fields", token_fields), ("document_fields", document_fields)):
            if given is not None and not isinstance(given, Mapping):
                name = next(iter(given), "r") if isinstance(given, (list, tuple, set)) else "r"
                raise ConfigError(
                    f"{what} is {given!r:.100}.",
                    f'Pass a dict of dtypes by name: {what}={{"{name}": "float32"}}.',
                    setting=what,
                )
            pairs = (given or {}).items()
            made.append({_checked(what, name): _dtype(what, name, dtype) for name, dtype in pairs})
        token, document = made
        twice = sorted({*token} & {*document})
        if twice:
            raise ConfigError(
                f'The field "{twice[0]}" has a value per token and one per document.',
                "Declare it in one of token_fields= and document_fields=.",
                setting="document_fields",
            )
        return cls(token, document)

    def with_groups(self) -> FieldTypes:
        """These, and the numbers of groups."""
        return replace(self, document={**self.document, GROUP: np.dtype(np.int32)})

    def with_patches(self) -> FieldTypes:
        """These, and the patches of each document's images."""
        return replace(self, document={**self.document, PATCHES: np.dtype(np.int64)})

    def __bool__(self) -> bool:
        return bool(self.token or self.document)

    def describe(self) -> dict[str, Any] | None:
        """JSON-able; None if there are none."""
        if not self:
            return None
        return {
            "token": {name: dtype.name for name, dtype in self.token.items()},
            "document": {name: dtype.name for name, dtype in self.document.items()},
        }

    def cast(self, documents: Documents) -> tuple[Documents, dict[int, str]]:
        """The documents with these fields and their images and no others, in their dtypes.

        Returns:
            The documents, and by number what is wrong with some of them.

        Raises:
            ConfigError: a field is missing.
        """
        for wanted, given, kind in (
            (self.token, documents.token_fields, "token"),
            (self.document, documents.document_fields, "document"),
        ):
            for name in wanted:
                if name not in given:
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
        for name, dtype in self.token.items():
            values = documents.token_fields[name]
            token[name], bad = cast_values(values, dtype, held)
            for at in bad.tolist():
                i = int(np.searchsorted(starts, at, side="right")) - 1
                where = f" at token {at - int(starts[i])}"
                problems.setdefault(i, misfit(values[at], name, dtype, where))
        document: dict[str, NDArray[Any]] = {}
        for name, dtype in self.document.items():
            values = documents.document_fields[name]
            document[name], bad = cast_values(values, dtype)
            for i in bad.tolist():
                problems.setdefault(i, misfit(values[i], name, dtype))
        if MEDIA in documents.document_fields:
            document[MEDIA] = documents.document_fields[MEDIA]
        return replace(documents, token_fields=token, document_fields=document), problems


def misfit(value: Any, name: str, dtype: np.dtype[Any], where: str = "") -> str:
    """What is wrong with a document with a value that its field cannot hold."""
    return f'holds {value!s} in its field "{name}"{where}, and the field is {dtype.name}'


def cast_values(
    values: NDArray[Any], dtype: np.dtype[Any], part: slice = slice(None)
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The values in a dtype, and where in `part` one is NaN or does not fit."""
    start = part.start or 0
    if values.dtype.kind not in "biuf":
        return np.zeros(len(values), dtype=dtype), np.arange(len(values[part])) + start
    with np.errstate(invalid="ignore", over="ignore"):
        made = values.astype(dtype, copy=False)
    given, cast = values[part], made[part]
    wrong = np.isnan(given) if given.dtype.kind == "f" else np.zeros(len(given), dtype=np.bool_)
    if dtype.kind == "f":
        wrong |= np.isinf(cast) & ~np.isinf(given)
    elif dtype != values.dtype:
        wrong |= cast != given
    return made, np.flatnonzero(wrong) + start


def _checked(setting: str, name: Any) -> str:
    if name == GROUP or not isinstance(name, str) or not name:
        remedy = "Use the name of a column or key, and another one than that of groups."
        raise ConfigError(f"A field is named {name!r}.", remedy, setting=setting)
    return name


def _dtype(setting: str, name: str, dtype: Any) -> np.dtype[Any]:
    found = None
    try:
        if dtype is not None:  # which numpy takes for float64
            found = np.dtype(str(dtype).partition("torch.")[2] or dtype)
    except TypeError:
        pass
    if found is None or found.name not in DTYPES:
        raise ConfigError(
            f'The field "{name}" is declared as {dtype!r}.',
            f"Use one of {', '.join(DTYPES)}; {TEXT_REMEDY}.",
            setting=setting,
        )
    return found.newbyteorder("=")


def _listed(names: list[str]) -> str:
    return ", ".join(f'"{name}"' for name in names) or "none"
