"""What writes one shard at a time; the same data always gives the same bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

#: Content of one document: token ids, `masked_ids`, or text.
Payload = NDArray[np.generic] | str


def masked_ids(ids: NDArray[np.generic], loss_mask: NDArray[np.bool_]) -> NDArray[np.generic]:
    """(T,) ids with their loss mask, as records of both."""
    both = np.empty(len(ids), dtype=[("tokens", ids.dtype), ("loss_mask", np.uint8)])
    both["tokens"], both["loss_mask"] = ids, loss_mask
    return both


def columns_of(ids: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """By name, the ids of a payload and, if it has one, the loss mask of 0 and 1."""
    return {name: ids[name] for name in ids.dtype.names or ()} or {"tokens": ids}


@dataclass(frozen=True)
class ShardWriter(ABC):
    """Writes shards of a format.

    Attributes:
        dtype: "uint16" or "uint32" for token ids, "str" for text.
        compression: as the format names it, or None.
    """

    dtype: str
    compression: str | None = None

    #: Bytes a document takes besides its content, for cutting shards to size.
    overhead: ClassVar[int] = 16

    @abstractmethod
    def check(self) -> None:
        """Raise `ConfigError` for settings with which the first shard could not be written."""

    @abstractmethod
    def write(
        self, folder: Path, shard: int, first: int, documents: Sequence[Payload]
    ) -> tuple[Path, Any]:
        """Write one shard.

        Args:
            folder: an empty folder for it.
            shard: its number.
            first: number of its first document in the whole corpus.
            documents: its content.

        Returns:
            The file, with its final name, and what the index needs of it (JSON-able).
        """

    def index(self, shards: Sequence[Any]) -> tuple[str, bytes] | None:
        """Name and content of the index over all shards, or None if the format has none."""
        return None
