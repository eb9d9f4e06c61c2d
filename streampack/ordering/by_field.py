"""ByField: documents by the value of a field, at a pace, inside an ordering window.

Steps (N documents, sorted by value, ties by arrival):
  - "ascending": the documents as sorted.
  - "interleaved": document i of the sorted ones belongs to pass ``i % groups``; the passes follow
    one another, each from the smallest value to the largest.
  - "quantiles": the sorted documents are cut into `groups` parts whose sizes differ by at most one;
    the parts follow one another, each in random order.

Cost: one sort of the window's values.

Source: the three curricula of Zhang et al., "Beyond Random Sampling: Efficient Language Model
Pretraining via Curriculum Learning" (EACL 2026, arXiv 2506.11300). Its paces are defined over a
corpus; here they apply to each ordering window.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from streampack.arguments import explained, one_of, whole_number
from streampack.documents.blocks import Documents
from streampack.errors import ConfigError
from streampack.packing.rng import permutation

Pace = Literal["ascending", "interleaved", "quantiles"]


@explained
@dataclass(frozen=True)
class ByField:
    """Orders the documents of an ordering window by a field, for example from easy to difficult.

    Any packer may be used. A packer that plans by length changes the order inside its window, so
    let `order_window_documents` be several times the documents of a packing window. Each lane
    orders its own windows.

    Args:
        name: one of the dataset's `document_fields`, a number. `streampack.ordering.signals` has
            functions of a text that rate its difficulty.
        pace: "ascending" gives the smallest values first, "interleaved" repeats this order `groups`
            times in each window, "quantiles" gives the smallest quantile first and is random
            inside a quantile. Use "quantiles" if the values are noisy, and "interleaved" if no
            part of the training should see only one kind of documents.
        groups: number of passes or of quantiles; "ascending" ignores it.
        descending: put the largest values first. NaN comes last in either direction.
        order_window_documents: documents ordered together, all held in memory and read before the
            window's first batch.

    Raises:
        ConfigError: a value out of its range; while ordering, documents without the field.
    """

    name: str
    pace: Pace = "ascending"
    groups: int = 10
    descending: bool = False
    order_window_documents: int = 8192

    exact: ClassVar[bool] = True
    related: ClassVar[bool] = False  #: neighbours in the order need not share a row
    revision: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ConfigError(
                f"name must be the name of a document field, got {self.name!r}.",
                'Pass for example ByField("score").',
                setting="name",
            )
        one_of("pace", self.pace, get_args(Pace))
        for setting in ("groups", "order_window_documents"):
            object.__setattr__(self, setting, whole_number(setting, getattr(self, setting)))

    def order(
        self, documents: Documents, *, seed: int = 0
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the documents (N,) in order; nothing is dropped.

        Args:
            documents: N documents, in order of arrival.
            seed: orders the documents inside a quantile.
        """
        order = np.concatenate(self.order_values(self._values(documents), seed=seed))
        return order, np.zeros(0, dtype=np.int64)

    def order_values(self, values: NDArray[Any], *, seed: int) -> list[NDArray[np.int64]]:
        """Return the documents of each pass or quantile, in order.

        Args:
            values: (N,) values of the documents, in order of arrival.
            seed: orders the documents inside a quantile.
        """
        ranks = np.unique(values, return_inverse=True)[1].astype(np.int64)
        if self.descending:
            ranks = -ranks
        ranks[np.isnan(values)] = len(ranks)
        ranked = np.argsort(ranks, kind="stable")
        if self.pace == "interleaved":
            return [ranked[i :: self.groups] for i in range(self.groups)]
        if self.pace == "quantiles":
            parts = np.array_split(ranked, self.groups)
            return [part[permutation(len(part), seed + i)] for i, part in enumerate(parts)]
        return [ranked]

    def describe(self) -> dict[str, Any]:
        """Return kind, parameters and algorithm revision."""
        return {
            "kind": type(self).__name__,
            "revision": self.revision,
            "name": self.name,
            "pace": self.pace,
            **({} if self.pace == "ascending" else {"groups": self.groups}),
            "descending": bool(self.descending),
            "order_window_documents": self.order_window_documents,
        }

    def _values(self, documents: Documents) -> NDArray[Any]:
        values = documents.document_fields.get(self.name)
        if values is None:
            if not len(documents):
                return np.zeros(0)
            raise ConfigError(
                f'ByField requires the document field "{self.name}", and the documents have '
                f"{', '.join(documents.document_fields) or 'no fields'}.",
                f'Declare it: PackedDataset(document_fields={{"{self.name}": "float32"}}).',
                setting="document_fields",
            )
        return values
