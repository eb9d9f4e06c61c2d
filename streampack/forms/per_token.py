"""Document values, one for each token of the document."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from streampack.errors import ConfigError

if TYPE_CHECKING:
    from streampack.batch.packed_batch import PackedBatch


def per_token(batch: PackedBatch, values: str | Tensor) -> Tensor:
    """Return each token's value of a document field; 0 (or False) on padding.

    It serves batches of padding alone, too, which have no document to index.

    >>> from streampack import PackedDataset, Topology
    >>> records = [{"tokens": [1, 2, 3], "reward": 0.5}, {"tokens": [4, 5], "reward": -1.0}]
    >>> dataset = PackedDataset(
    ...     records, seq_len=6, batch_size=1, document_fields={"reward": "float32"},
    ...     topology=Topology(),
    ... )  # fmt: skip
    >>> (batch,) = dataset
    >>> batch.per_token("reward").tolist()
    [[0.5, 0.5, 0.5, -1.0, -1.0, 0.0]]

    Args:
        values: name of a document field, or a tensor (num_documents, ...) on the batch's device
            with a value for each piece, such as `source_ids` or advantages that the loop computed.

    Returns:
        (rows, seq_len, ...) in the dtype of the values, through which gradients flow.

    Raises:
        ConfigError: there is no such field, or the tensor does not have one value per piece.
    """
    if isinstance(values, str):
        fields = batch.document_fields
        if values not in fields:
            raise ConfigError(
                f"values must name a document field of the batch ({', '.join(fields) or 'none'}), "
                f'got "{values}".',
                f'Declare it in the dataset: document_fields={{"{values}": "float32"}}.',
                setting="values",
            )
        values = fields[values]
    if not isinstance(values, Tensor) or values.shape[:1] != (batch.num_documents,):
        shape = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ConfigError(
            f"values must be a tensor with one entry for each of the {batch.num_documents} pieces "
            f"of the batch, got {shape}.",
            "Pass the name of a document field, or a tensor (num_documents, ...).",
            setting="values",
        )
    of_padding = values.new_zeros((1, *values.shape[1:]))  # piece -1 is the last entry
    return torch.cat([values, of_padding])[batch.document_ids.long()]
