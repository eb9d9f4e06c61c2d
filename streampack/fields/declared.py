"""declared_fields: validation of the arguments that declare fields of tokens and documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from streampack.documents.blocks import GROUP
from streampack.documents.fields import TEXT_REMEDY, FieldSpec
from streampack.errors import ConfigError

#: Dtypes of fields, all of which torch supports too.
DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
#: Declares a document field of texts, which become integers (`streampack.documents.text_keys`).
TEXT = "text"


def declared_fields(
    token_fields: Mapping[str, Any] | None, document_fields: Mapping[str, Any] | None
) -> FieldSpec:
    """Validate the fields that a dataset's arguments declare.

    >>> declared_fields({"experts": ("int16", (48, 8))}, {"reward": "float32"}).describe()
    {'token': {'experts': ['int16', 48, 8]}, 'document': {'reward': 'float32'}}

    A document field of "text" is an int64 field of keys.

    Raises:
        ConfigError: an argument is not a mapping, a name is invalid or used twice, a dtype is not
            in `DTYPES`, a shape is not a tuple of positive integers, or a document field has one.
    """
    parsed: list[dict[str, np.dtype[Any]]] = []
    for argument, fields in (
        ("token_fields", token_fields),
        ("document_fields", document_fields),
    ):
        if fields is not None and not isinstance(fields, Mapping):
            name = next(iter(fields), "r") if isinstance(fields, (list, tuple, set)) else "r"
            raise ConfigError(
                f"{argument} must map names to dtypes, got {fields!r:.100}.",
                f'Pass a dict, for example {argument}={{"{name}": "float32"}}.',
                setting=argument,
            )
        pairs = (fields or {}).items()
        parsed.append(
            {_checked(argument, name): _dtype(argument, name, dtype) for name, dtype in pairs}
        )
    token, document = parsed
    texts = [name for name, dtype in (document_fields or {}).items() if _is_text(dtype)]
    twice = sorted({*token} & {*document})
    if twice:
        raise ConfigError(
            f'A field must be per token or per document; "{twice[0]}" is declared as both.',
            "Declare it in one of token_fields= and document_fields=.",
            setting="document_fields",
        )
    if not texts:
        return FieldSpec(token, document)
    from streampack.documents.text_keys import TEXT_KEYS

    return FieldSpec(token, document, keys=dict.fromkeys(texts, TEXT_KEYS))


def _is_text(dtype: Any) -> bool:
    return isinstance(dtype, str) and dtype == TEXT


def _checked(setting: str, name: Any) -> str:
    if name == GROUP or not isinstance(name, str) or not name:
        remedy = f'Use the name of a column or key; "{GROUP}" is reserved for groups.'
        raise ConfigError(f"A field's name must be text, got {name!r}.", remedy, setting=setting)
    return name


def _dtype(setting: str, name: str, value: Any) -> np.dtype[Any]:
    """Return the dtype of a field, with the shape of its values if it has several per token."""
    if _is_text(value) and setting == "document_fields":
        return np.dtype(np.int64)
    is_pair = isinstance(value, tuple) and len(value) == 2
    dtype, shape = (value[0], _shape(setting, name, value)) if is_pair else (value, ())
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
    return np.dtype((parsed.newbyteorder("="), shape))


def _shape(setting: str, name: str, value: tuple[Any, Any]) -> tuple[int, ...]:
    shape = value[1] if isinstance(value[1], tuple | list) else (value[1],)
    is_whole = all(isinstance(n, int | np.integer) and not isinstance(n, bool) for n in shape)
    if setting != "token_fields":
        raise ConfigError(
            f'The field "{name}" of documents must have one number per document, got {value!r}.',
            "Declare it in token_fields=, or as several fields of one number.",
            setting=setting,
        )
    if not is_whole or not shape or min(shape) < 1 or np.prod(shape, dtype=float) > MOST_NUMBERS:
        raise ConfigError(
            f'The shape of the field "{name}" must be integers from 1 to {MOST_NUMBERS:,} numbers '
            f"in all, got {value[1]!r}.",
            f'Pass a dtype and a shape, for example {setting}={{"{name}": ("float16", (64,))}}.',
            setting=setting,
        )
    return tuple(int(n) for n in shape)


#: Numbers of a field per token, at most.
MOST_NUMBERS = 1 << 20
