"""Texts from raw bytes: many at once, at any byte position."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from streampack.documents.blocks import Texts


def pieces(
    data: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64]
) -> Iterator[memoryview]:
    """Views of `data` (B,) from each of `starts` (N,), `sizes` (N,) bytes long."""
    view = memoryview(cast(Any, data))
    for start, stop in zip(starts.tolist(), (starts + sizes).tolist(), strict=True):
        yield view[start:stop]


def decoded_texts(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    origin: NDArray[np.void],
    problems: dict[int, str],
) -> Texts:
    """N texts in UTF-8, at any byte position, as a block.

    `problems` is as for `integer_block`: texts that are not UTF-8 are added.
    """
    texts: list[str] = []
    good: list[int] = []
    for i, piece in enumerate(pieces(data, starts, sizes)):
        if i in problems:
            continue
        try:
            texts.append(str(piece, "utf-8"))
            good.append(i)
        except UnicodeDecodeError as error:
            problems[i] = f"is not UTF-8 ({error.reason})"
    return Texts(texts, origin[good])
