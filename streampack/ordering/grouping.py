"""GroupBy: documents of one repository, site or book side by side, by a key that each one has.

Steps:
  1. Every document of the ordering window has a key.
  2. Groups follow one another as their first documents arrived, and the documents of a group as
     they arrived themselves.

Cost: one sort of the window's keys. Nothing is compared, dropped or approximate. A group that is
spread over several ordering windows comes in as many pieces.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from streampack.arguments import explained
from streampack.documents.blocks import Documents
from streampack.errors import ConfigError
from streampack.ordering.embedding import embedder_name
from streampack.ordering.order import require_counts


@explained
@dataclass(frozen=True)
class GroupBy:
    """Documents with the same key side by side, inside an ordering window.

    Use it as `SimilarityOrder`: with ``attention="row"`` and a packer that keeps the order.

    Args:
        key: the name of one of the dataset's `document_fields`; or a function of N `Documents`
            that returns (N,) values, the same for the same documents on any machine, such as
            ``lambda documents: documents.origin["shard"]``. It may have a `name`, which stands for
            it in the fingerprint of a saved state.
        order_window_documents: documents ordered together, all held in memory.
        first_window_documents: size of a lane's first window, as for `SimilarityOrder`.

    Raises:
        ConfigError: a value out of its range; while ordering, keys that cannot be compared.
    """

    key: str | Callable[[Documents], Any]
    order_window_documents: int = 8192
    first_window_documents: int = 2048

    exact: ClassVar[bool] = True
    revision: ClassVar[int] = 1

    def __post_init__(self) -> None:
        require_counts(self, "order_window_documents", "first_window_documents")
        if not (isinstance(self.key, str) and self.key) and not callable(self.key):
            raise ConfigError(
                f"key is {self.key!r}.",
                "It says which documents belong together.",
                "Pass the name of a document field, or a function of Documents.",
            )

    def order(
        self, documents: Documents, *, seed: int = 0
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The documents (N,) by group; nothing is dropped, and the seed changes nothing."""
        _, first, group = np.unique(self._keys(documents), return_index=True, return_inverse=True)
        return np.argsort(first[group], kind="stable"), np.zeros(0, dtype=np.int64)

    def describe(self) -> dict[str, Any]:
        """Kind, parameters and algorithm revision."""
        return {
            "kind": type(self).__name__,
            "revision": self.revision,
            "key": self.key if isinstance(self.key, str) else embedder_name(self.key),
            "order_window_documents": self.order_window_documents,
            "first_window_documents": min(self.first_window_documents, self.order_window_documents),
        }

    def _keys(self, documents: Documents) -> NDArray[Any]:
        if isinstance(self.key, str):
            if self.key not in documents.document_fields:
                raise ConfigError(
                    f'GroupBy goes by the document field "{self.key}", and the documents have '
                    f"{', '.join(documents.document_fields) or 'none'}.",
                    "Nothing says which documents belong together.",
                    f'Declare it: PackedDataset(document_fields={{"{self.key}": "int64"}}).',
                )
            return documents.document_fields[self.key]
        keys = np.asarray(self.key(documents))
        if keys.shape != (len(documents),) or keys.dtype.kind not in "biufSUV":
            raise ConfigError(
                f"The key of GroupBy was asked for {len(documents)} documents and returned "
                f"an array of shape {keys.shape} and dtype {keys.dtype}.",
                "Documents cannot be grouped by that.",
                "Return a flat array of numbers or strings, one for each document.",
            )
        return keys
