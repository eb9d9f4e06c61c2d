"""A batch as text, for a person: documents apart, and what carries loss marked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.tokenization import Tokenizer, load_tokenizer

__all__ = ["ShownText", "decoder", "shown_rows"]

_DIM, _GREEN, _END = "\x1b[2m", "\x1b[32m", "\x1b[0m"


class ShownText(str):
    """Text that a console shows as it is, without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def decoder(tokenizer: Any) -> Callable[[NDArray[np.int64]], str]:
    """What makes text of ids (N,) with a tokenizer, special tokens included.

    Args:
        tokenizer: whatever `PackedDataset` takes; None writes the ids as numbers.

    Raises:
        ConfigError: it is no tokenizer.
    """
    if tokenizer is None:
        return lambda ids: " ".join(map(str, ids.tolist()))
    settings = {} if isinstance(tokenizer, Tokenizer) else {"eos": "as-is", "bos": False}
    return load_tokenizer(tokenizer, **settings).decode


def shown_rows(
    ids: NDArray[np.int64],
    documents: NDArray[np.int32],
    labels: NDArray[np.int64],
    decode: Callable[[NDArray[np.int64]], str],
    color: bool,
    *,
    between: str = "",
    origins: Sequence[str] = (),
) -> Iterator[str]:
    """The lines of a batch: a head for every row, and a line for each piece in it.

    Args:
        ids, documents, labels: (rows, seq_len), of a batch.
        decode: makes text of ids.
        color: mark by colours, and not by « and ».
        between: what stands between marked and other text.
        origins: of every piece, where it came from; empty if that is not to be said.
    """
    for row in range(len(ids)):
        yield f"row {row}"
        changes = np.flatnonzero(np.diff(documents[row])) + 1
        for places in np.split(np.arange(ids.shape[1]), changes):
            number = int(documents[row, places[0]])
            if number < 0:
                yield f"  padding, {len(places)} slots"
                continue
            learnt = labels[row, places] != -100
            runs = np.split(places, np.flatnonzero(np.diff(learnt)) + 1)
            text = between.join(
                _marked(decode(ids[row, run]), bool(labels[row, run[0]] != -100), color)
                for run in runs
            )
            origin = f", {origins[number]}" if origins else ""
            yield f"  document {number}, {len(places)} tokens{origin}: {text}"


def _marked(text: str, learnt: bool, color: bool) -> str:
    text = text.replace("\n", "\\n")
    if color:
        return f"{_GREEN if learnt else _DIM}{text}{_END}"
    return f"«{text}»" if learnt else text
