"""Flat files of token ids, written from the published layouts and not with anything of ours."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

MEGATRON_CODES = {
    "uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "float64": 6, "float32": 7,
    "uint16": 8,
}  # fmt: skip


def write_megatron(
    prefix: Path, documents: Sequence[Sequence[np.ndarray]], dtype: str, *, modes: bool = False
) -> Path:
    """`prefix`.bin and .idx of documents that have one or more sequences each; the .idx."""
    sequences = [sequence for document in documents for sequence in document]
    data = b"".join(sequence.astype(dtype).tobytes() for sequence in sequences)
    Path(f"{prefix}.bin").write_bytes(data)
    lengths = [len(sequence) for sequence in sequences]
    ends = [0]
    for document in documents:
        ends.append(ends[-1] + len(document))
    at, pointers = 0, []
    for length in lengths:
        pointers.append(at)
        at += length * np.dtype(dtype).itemsize
    index = b"MMIDIDX\x00\x00" + struct.pack("<Q", 1) + struct.pack("<B", MEGATRON_CODES[dtype])
    index += struct.pack("<QQ", len(lengths), len(ends))
    index += struct.pack(f"<{len(lengths)}i", *lengths)
    index += struct.pack(f"<{len(pointers)}q", *pointers)
    index += struct.pack(f"<{len(ends)}q", *ends)
    index += bytes(len(lengths)) if modes else b""
    Path(f"{prefix}.idx").write_bytes(index)
    return Path(f"{prefix}.idx")


def write_datatrove(path: Path, documents: Sequence[np.ndarray]) -> Path:
    """A `.ds` with its `.ds.index`: where each document ends, in tokens."""
    path.write_bytes(b"".join(document.tobytes() for document in documents))
    ends = np.cumsum([len(document) for document in documents]).tolist()
    Path(f"{path}.index").write_bytes(struct.pack(f"<{len(ends)}Q", *ends))
    return path
