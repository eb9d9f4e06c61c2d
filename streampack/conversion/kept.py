"""Kept fields: values of the documents, such as URLs and scores, that shards hold beside them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streampack.conversion.settings import Conversion, first_block
from streampack.documents.fields import FieldSpec
from streampack.errors import ConfigError, ContentError
from streampack.fields.casting import cast_values, misfit
from streampack.fields.declared import DTYPES, TEXT
from streampack.formats.rows.columns import plain_text
from streampack.sources.base import Source
from streampack.sources.broken import report_broken
from streampack.sources.error_policy import ErrorPolicy
from streampack.sources.fields import ATTENTION_MASK, IDS, LOSS_FIELDS, TEXTS

if TYPE_CHECKING:
    from streampack.conversion.shards import ShardDocuments

#: Names that readers of the shards would take for documents or loss masks.
_RESERVED = (*TEXTS, *IDS, *LOSS_FIELDS, ATTENTION_MASK)


class KeptTexts:
    """Conversion of the texts of a document field to places in `texts`.

    Sources convert the texts of fields to integers. They use this conversion in place of
    `documents.text_keys.TextKeys`, and `with_values` turns the integers back into texts.

    Attributes:
        texts: different texts since the last `clear`, in UTF-8.
        optional: as in `TextKeys`.
    """

    optional = False

    def __init__(self) -> None:
        self.texts: list[bytes] = []
        self._positions: dict[bytes, int] = {}

    def __call__(self, text: str | bytes) -> int:
        """Return the place of a text."""
        data = text.encode(errors="surrogatepass") if isinstance(text, str) else text
        position = self._positions.setdefault(data, len(self.texts))
        if position == len(self.texts):
            self.texts.append(data)
        return position

    def of_texts(self, texts: Sequence[str | bytes]) -> NDArray[np.int64]:
        """Return the places (N,) of N texts."""
        return np.fromiter(map(self, texts), dtype=np.int64, count=len(texts))

    def of_column(self, column: pa.Array) -> NDArray[np.int64]:
        """Return the places (N,) of an Arrow array of strings; of nulls, any place."""
        return self.of_texts(
            [text or b"" for text in plain_text(column).cast(pa.large_binary()).to_pylist()]
        )

    def clear(self) -> None:
        """Forget all texts."""
        self.texts.clear()
        self._positions.clear()


def parsed(keep: Collection[str]) -> dict[str, str | None]:
    """Return dtypes by the names in `keep`; None for a name without one.

    >>> parsed(["url", "score:float64"])
    {'url': None, 'score': 'float64'}

    Raises:
        ConfigError: `keep` is no list of names, or names documents or a mask.
    """
    if isinstance(keep, str) or not all(isinstance(name, str) for name in keep):
        raise ConfigError(
            f"keep must be a list of names of fields, got {keep!r:.100}.",
            'Pass for example keep=["url", "score"].',
            setting="keep",
        )
    kinds: dict[str, str | None] = {}
    for given in keep:
        name, _, dtype = given.rpartition(":")
        kinds |= {name: dtype} if name and dtype in (*DTYPES, TEXT) else {given: None}
    for name in kinds:
        if name in _RESERVED:
            raise ConfigError(
                f'"{name}" cannot be kept: readers would take it for documents or a loss mask.',
                "Omit it from keep (--keep), or rename the field.",
                setting="keep",
            )
    return kinds


def spec_of(kept: Mapping[str, str]) -> FieldSpec:
    """Return the fields that sources read."""
    texts = {name: KeptTexts() for name, kind in kept.items() if kind == TEXT}
    types = {name: np.dtype("int64" if name in texts else kind) for name, kind in kept.items()}
    return FieldSpec(document=types, keys=texts)


def kinds_in(
    source: Source, keep: Mapping[str, str | None], on_error: Literal["raise", "skip"]
) -> dict[str, str]:
    """Return "text" or the dtype of each field, by the first documents that have one.

    Raises:
        ConfigError: the first documents lack a field, or it holds neither texts nor numbers.
    """
    return {n: dtype or _kind_in(source, n, on_error) for n, dtype in keep.items()}


def _kind_in(source: Source, name: str, on_error: Literal["raise", "skip"]) -> str:
    faults: list[ConfigError | ContentError] = []
    policies: dict[Literal["raise", "skip"], None] = {"raise": None, on_error: None}
    for policy in policies:
        for kind in (TEXT, "float64"):
            try:
                values = _first_values(source._with_fields(spec_of({name: kind})), name, policy)
            except (ConfigError, ContentError) as error:
                faults.append(error)
                continue
            return kind if kind == TEXT else values.dtype.name
    raise ConfigError(
        f'The field "{name}" must hold a text or a number for each document: {faults[-1].fact}',
        "Name such fields in keep (--keep).",
        setting="keep",
        path=faults[-1].path,
        document=faults[-1].document,
    ) from faults[-1]


def _first_values(source: Source, name: str, policy: Literal["raise", "skip"]) -> NDArray[Any]:
    source.prepare()
    block = first_block(source, policy)
    if block is None:
        raise ContentError("The source holds no document.", "Check the path.")
    values: NDArray[Any] = block.document_fields[name]
    return values


def keeping(conversion: Conversion) -> Conversion:
    """Return the conversion with dtypes for all kept fields, and sources that read them.

    Raises:
        ConfigError: see `kinds_in`; or a field holds texts in one source and numbers in another.
    """
    if not conversion.keep:
        return conversion
    kinds: dict[str, str] = {}
    for source in conversion.sources:
        for name, kind in kinds_in(source, conversion.keep, conversion.on_error).items():
            before = kinds.setdefault(name, kind)
            if (TEXT in (kind, before)) and kind != before:
                raise ConfigError(
                    f'The field "{name}" must have one type in all sources, got {before} and '
                    f"{kind}.",
                    "Omit it from keep (--keep), or convert the sources to several destinations.",
                    setting="keep",
                )
            kinds[name] = kind if kind == before else np.result_type(kind, before).name
    first, *more = (source._with_fields(spec_of(kinds)) for source in conversion.sources)
    return replace(conversion, source=first, more=tuple(more), keep=kinds)


def with_values(
    encoded: ShardDocuments, source: Source, skips: ErrorPolicy
) -> Iterator[tuple[Any, tuple[Any, ...], int]]:
    """Yield each document's payload, values of kept fields, and their size in bytes.

    Documents with values that do not fit are broken.
    """
    types, problems = source.field_types, dict[int, str]()
    values: list[list[Any]] = []
    for name, dtype in types.document.items():
        numbers, wrong = cast_values(encoded.fields[name], dtype)
        if name in types.keys:
            texts = types.keys[name].texts
            values.append([texts[position] for position in numbers.tolist()])
            broken = (i for i, text in enumerate(values[-1]) if not _is_utf8(text))
            reasons = dict.fromkeys(broken, f'has a text in "{name}" that is not UTF-8')
        else:
            values.append(numbers.tolist())
            reasons = {i: _misfit(encoded.fields[name][i], name, dtype) for i in wrong.tolist()}
        problems |= reasons
    report_broken(source, encoded.origin, problems, skips)
    rows = zip(*values, strict=True) if values else iter([()] * len(encoded.payloads))
    for i, (payload, row) in enumerate(zip(encoded.payloads, rows, strict=True)):
        if i not in problems:
            yield payload, row, sum(len(v) if isinstance(v, bytes) else 8 for v in row)


def _misfit(value: Any, name: str, dtype: np.dtype[Any]) -> str:
    fact = misfit(value, name, dtype)
    return fact if dtype.kind == "f" else f'{fact} (keep it as "{name}:float64")'


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def columns(rows: Sequence[tuple[Any, ...]], types: FieldSpec) -> dict[str, pa.Array]:
    """Return the column (N,) of a shard for each kept field, from N rows of values."""
    named = zip(types.document.items(), zip(*rows, strict=True), strict=True)
    return {
        name: pa.array(
            values, pa.large_string() if name in types.keys else pa.from_numpy_dtype(dtype)
        )
        for (name, dtype), values in named
    }
