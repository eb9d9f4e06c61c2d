"""FieldColumns: row stage that adds the fields of tokens and documents to batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.documents.fields import FieldSpec
from streampack.window.entries import HeldBlocks
from streampack.window.gather import Pieces
from streampack.window.packed_rows import PackedRows


@dataclass(frozen=True, slots=True)
class FieldColumns:
    """Row stage that adds fields; `types` are the fields of the run."""

    types: FieldSpec

    @property
    def token_bytes(self) -> int:
        """Bytes per token in the window; see `RowStage`."""
        return self.types.shaped_bytes

    def __call__(self, rows: PackedRows, pieces: Pieces, held: HeldBlocks) -> PackedRows:
        """See `RowStage`; slots outside of documents get 0."""
        positions = held.positions(pieces.serial)
        token: dict[str, NDArray[Any]] = {}
        for name, dtype in self.types.token.items():
            out = token[name] = np.zeros(len(rows.tokens), dtype=dtype)
            for (block, i), start, stop, position in zip(
                positions,
                pieces.start.tolist(),
                pieces.stop.tolist(),
                pieces.slot.tolist(),
                strict=True,
            ):
                begin = int(block.offsets[i])
                out[position : position + stop - start] = block.token_fields[name][
                    begin + start : begin + stop
                ]
        document = {
            name: np.array([block.document_fields[name][i] for block, i in positions], dtype=dtype)
            for name, dtype in self.types.document.items()
        }
        return rows._replace(token_fields=token, document_fields=document)

    def empty(self, rows: PackedRows) -> PackedRows:
        """See `RowStage`."""
        return rows._replace(
            token_fields={
                n: np.zeros(len(rows.tokens), dtype=t) for n, t in self.types.token.items()
            },
            document_fields={n: np.zeros(0, dtype=t) for n, t in self.types.document.items()},
        )
