"""The names of near-duplicates that an ordering window dropped, as a file of JSON lines.

One file per lane and ordering window, replaced as a whole. A window that is read again, after
a resume or by another rank, writes the same file, so nothing is named twice and nothing is lost.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from streampack.documents.blocks import Documents
from streampack.errors import StorageError
from streampack.reading.base import Source


def write_duplicates(
    folder: Path,
    lane: int,
    window: int,
    documents: Documents,
    dropped: NDArray[np.int64],
    like: NDArray[np.int64] | None,
    source: Source,
) -> None:
    """Name the documents `dropped` (D,) of a window, their tokens, and what each is `like` (D,).

    Raises:
        StorageError: the file cannot be written.
    """
    lines = []
    for d, i in enumerate(dropped.tolist()):
        record = {
            "document": source.document_name(documents.origin[i]),
            "tokens": int(documents.offsets[i + 1] - documents.offsets[i]),
        }
        if like is not None:
            record["like"] = source.document_name(documents.origin[like[d]])
        lines.append(json.dumps(record, ensure_ascii=False) + "\n")
    path = folder / f"lane-{lane:05}-window-{window:06}.jsonl"
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        part.write_text("".join(lines), encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written: {error.strerror}.",
            "Near-duplicates would be dropped without being named.",
            "Make room or pass another duplicates_folder; None names them nowhere.",
        ) from error
