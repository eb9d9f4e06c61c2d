"""The pieces of a batch that are the two documents of a preference pair."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from streampack.documents.blocks import GROUP, Fields
from streampack.errors import ConfigError

if TYPE_CHECKING:
    from streampack.batch.packed_batch import PackedBatch


def pairs(batch: PackedBatch, chosen: str = "chosen") -> tuple[Tensor, Tensor]:
    """The documents of preference pairs: groups of a chosen and a rejected one.

    Args:
        chosen: the document field that is true for the chosen one.

    Returns:
        (P,) and (P,) int64, pair by pair: the numbers of the chosen and of the rejected
        pieces, as in `document_ids`, on the batch's device.

    Raises:
        ConfigError: the batch has no groups, or one is no such pair.
    """
    found = _pairs_of(batch._host_fields, chosen)
    better, worse = (torch.from_numpy(pieces).to(batch.device) for pieces in found)
    return better, worse


def _pairs_of(document_fields: Fields, chosen: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(P,) and (P,) int64 numbers of pieces: of each pair the chosen one, and the rejected one.

    Args:
        document_fields: (D,) by piece, on the host.
        chosen: the field that is true, or not 0, for the chosen document of a pair.

    Raises:
        ConfigError: the batch has no groups or no such field, or a group is no pair.
    """
    group, flag = document_fields.get(GROUP), document_fields.get(chosen)
    if group is None or flag is None:
        missing = "groups" if group is None else f'document field "{chosen}"'
        raise ConfigError(
            f"The batch has no {missing}.",
            "Pairs are groups of a chosen and a rejected document.",
            f'Pass document_fields={{"{chosen}": "bool"}} to the dataset, and the default packer: '
            "it keeps the documents of a record together.",
        )
    better = flag != 0
    wins = np.bincount(group[better], minlength=0)
    losses = np.bincount(group[~better], minlength=0)
    count = len(group) // 2
    if len(group) % 2 or len(wins) != count or len(losses) != count or (wins != 1).any():
        raise ConfigError(
            f'The batch has {len(group)} documents, and "{chosen}" is true for '
            f"{int(better.sum())} of them; some group is not one chosen and one rejected document.",
            "It is no preference pair.",
            "Filter such records out, or use the document field `group_ids` for larger groups.",
        )
    chosen_pieces, rejected_pieces = np.flatnonzero(better), np.flatnonzero(~better)
    return (  # by group: the two may lie in different rows, in any order
        chosen_pieces[np.argsort(group[chosen_pieces])],
        rejected_pieces[np.argsort(group[rejected_pieces])],
    )
