"""Concatenate and cut, where a cut document starts again in the next row.

Steps:
  1. Documents follow one another in order of arrival, and a row ends after seq_len tokens.
  2. A document that would fit a row and is cut by the end of one starts again, from its first
     token, in the next row, which holds all of it. Longer documents are only cut.

Cost: O(documents + rows). Keeps every token and pads only the very last row. What it costs is
repetition: the head of one document for nearly every row, half a document of average length, more
where documents are long. Every row begins with a document's first token, except for rows inside
documents longer than a row.

Source: none in particular; repeating the cut document is an old remedy for its lost context. The
tokens are counted as repeated (`Composition.repeated`), as those of `Seamless`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel


@kernel
def cut_and_restart(
    lengths: NDArray[np.int64], restarts: NDArray[np.bool_], seq_len: int
) -> tuple[
    NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]
]:
    """Rows in order of arrival.

    Args:
        lengths: (N,) int64, tokens of each document.
        restarts: (N,) which of them start again, if they fit a row.
        seq_len: tokens per row.

    Returns:
        Row offsets (R + 1,), and per segment its document, start, stop and overlap, all int64.
    """
    bound = 2 * lengths.sum() // seq_len + 1  # no document comes more than twice
    row_offsets = np.zeros(bound + 1, dtype=np.int64)
    segments = 2 * len(lengths) + bound
    document, start = np.empty(segments, np.int64), np.empty(segments, np.int64)
    stop, overlap = np.empty(segments, np.int64), np.empty(segments, np.int64)
    k = 0
    rows = 0
    room = seq_len
    for i in range(len(lengths)):
        at = 0
        repeated = 0
        while at < lengths[i]:
            taken = min(room, lengths[i] - at)
            document[k] = i
            start[k] = at
            stop[k] = at + taken
            overlap[k] = repeated
            k += 1
            at += taken
            room -= taken
            repeated = 0
            if room == 0:
                rows += 1
                row_offsets[rows] = k
                room = seq_len
                if at < lengths[i] <= seq_len and restarts[i]:
                    repeated, at = at, 0
    if room < seq_len:
        rows += 1
        row_offsets[rows] = k
    return row_offsets[: rows + 1], document[:k], start[:k], stop[:k], overlap[:k]
