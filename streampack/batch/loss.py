"""The mean loss over tokens, also over several batches and ranks; the pieces of preference pairs.

Packed rows hold unequal numbers of loss tokens, so the mean of batches' means is not the mean over
tokens, and the mean of an empty batch is 0 / 0. So losses are summed, and divided by the number of
loss tokens of everything that one optimiser step sees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from streampack.arguments import type_in_words
from streampack.documents.blocks import GROUP, Fields
from streampack.errors import ConfigError

if TYPE_CHECKING:
    from streampack.batch.packed_batch import PackedBatch


def loss(batch: PackedBatch, logits: Tensor, *, weights: Tensor | None = None) -> Tensor:
    """The mean next-token loss over loss tokens; 0, with a gradient, if there are none.

    ``cross_entropy(..., ignore_index=-100)`` would be NaN for a batch without a loss token, as
    the empty ones at the end of a run are. In a step of several ranks, and of several batches
    of `PackedLoader.accumulate`, it is the batch's share of the mean over all loss tokens of
    the step: gradients that are averaged over the ranks (by DDP or FSDP), and added up over the
    batches, are those of that mean. See `PackedBatch.num_items_in_batch`.

    >>> from streampack import PackedDataset, Topology
    >>> (batch,) = PackedDataset([[1, 2, 3]], seq_len=4, batch_size=1, topology=Topology())
    >>> round(batch.loss(torch.zeros(1, 4, 10)).item(), 4)  # ln(10)
    2.3026

    Args:
        logits: (rows, seq_len, vocabulary), or (1, T, vocabulary) as `.hf()` gives rows, or
            (T, vocabulary); those at slot t are for the token at t + 1. Not shifted. Or those of
            the slots that `.hf(model=)` passes where routers of experts have an auxiliary loss.
        weights: (rows, seq_len) by which the loss of each token is multiplied, for example
            ``batch.fields["weights"]``; see `token_mean_loss`.

    Returns:
        A scalar, float32 or wider.

    Raises:
        ConfigError: `logits` are not those of every slot, in the order of the batch.
    """
    # Each rank that shares the batch counts the whole of it here.
    count = batch.num_items_in_batch * batch.cp_size
    labels = batch.labels
    if isinstance(logits, Tensor) and logits.shape[:-1].numel() < labels.numel():
        from streampack.batch.hf_routers import slots_of

        slots = slots_of(batch, tuple(logits.shape[:-1]))
        if slots is not None:
            labels = labels.take(slots)
            fits = isinstance(weights, Tensor) and weights.shape == batch.labels.shape
            weights = weights.take(slots) if fits else weights  # type: ignore[union-attr]
            return token_mean_loss(logits, labels, count, weights=weights)
    check_logits(batch, logits)
    return token_mean_loss(logits, labels, count, weights=weights)


def check_logits(batch: PackedBatch, logits: Any) -> None:
    """Raise `ConfigError` unless these are logits of every slot, in the order of the batch."""
    if not isinstance(logits, Tensor):
        raise ConfigError(
            f"logits is {type_in_words(logits)}.",
            "Pass output.logits of what the model returned."
            if hasattr(logits, "logits")
            else "Pass the logits alone, not all that the model returned.",
            setting="logits",
        )
    rows, seq_len = batch.rows, batch.seq_len
    if tuple(logits.shape[:-1]) not in {
        (rows, seq_len),
        (1, rows * seq_len),
        (rows * seq_len,),
    }:
        raise ConfigError(
            f"logits have the shape {tuple(logits.shape)}, and the batch has {rows} rows of "
            f"{seq_len} tokens.",
            f"Pass what the model gives for the whole batch, not shifted: ({rows}, {seq_len}, "
            f"vocabulary), (1, {rows * seq_len}, vocabulary) or ({rows * seq_len}, "
            "vocabulary).",
            setting="logits",
        )


def token_mean_loss(
    logits: Tensor,
    labels: Tensor,
    num_loss_tokens: float,
    *,
    weights: Tensor | None = None,
) -> Tensor:
    """A batch's share of the mean next-token loss of an optimiser step.

    Gradients added up over the batches of the step are those of the mean over all its tokens.

    Args:
        logits: (rows, seq_len, vocabulary), or flat (T, vocabulary).
        labels: (rows, seq_len) or (T,) int64 as in `PackedBatch.labels`: not shifted, -100 where
            no loss is taken.
        num_loss_tokens: what the sum is divided by: the loss tokens of the step on all
            data-parallel ranks where gradients are added up over the ranks, or divided by the
            number of ranks where they are averaged, as by DDP and FSDP. The latter is
            `PackedBatch.num_items_in_batch`. With 0 the loss is 0 and so are its gradients.
        weights: like `labels`, by which the loss of each token is multiplied. The sum is divided by
            the number of loss tokens all the same, not by the sum of the weights.

    Returns:
        A scalar, float32 or wider.

    Raises:
        ConfigError: `weights` are not one for every label; a label is not in the vocabulary (on the
            CPU; elsewhere the device says so).
    """
    flat = logits.reshape(-1, logits.shape[-1])
    if flat.dtype in (torch.float16, torch.bfloat16):
        flat = flat.float()
    # A row begins with a label of -100, so no loss reaches across rows.
    wanted, reduction = labels.reshape(-1)[1:], "sum" if weights is None else "none"
    if weights is not None and (
        not isinstance(weights, Tensor) or weights.numel() != labels.numel()
    ):
        raise ConfigError(
            f"weights have the shape {tuple(getattr(weights, 'shape', ()))}, and labels "
            f"{tuple(labels.shape)}.",
            "Pass a tensor of the shape of the labels, such as a token field of the batch.",
            setting="weights",
        )
    try:
        total = torch.nn.functional.cross_entropy(
            flat[:-1], wanted, ignore_index=-100, reduction=reduction
        )
    except IndexError as error:  # on a device it is an assertion there
        raise ConfigError(
            f"logits are of a vocabulary of {flat.shape[1]:,} ids, and a label is "
            f"{int(wanted.max()):,}.",
            "Pass logits of all the ids that the tokenizer has; "
            "token_rules=TokenRules(vocab_size=...) refuses others when they are read.",
            setting="logits",
        ) from error
    if weights is not None:
        total = (total * weights.reshape(-1)[1:].to(total.dtype)).sum()
    return total / (num_loss_tokens or 1)


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
            f'Pass document_fields={{"{chosen}": "bool"}} to the dataset, and the default packer: '
            "it keeps the documents of a record together.",
            setting="document_fields",
        )
    better = flag != 0
    wins = np.bincount(group[better], minlength=0)
    losses = np.bincount(group[~better], minlength=0)
    count = len(group) // 2
    if len(group) % 2 or len(wins) != count or len(losses) != count or (wins != 1).any():
        raise ConfigError(
            f'The batch has {len(group)} documents, and "{chosen}" is true for '
            f"{int(better.sum())} of them; some group is not one chosen and one rejected document.",
            "Filter such records out, or use the document field `group_ids` for larger groups.",
            setting="chosen",
        )
    chosen_pieces, rejected_pieces = np.flatnonzero(better), np.flatnonzero(~better)
    return (  # by group: the two may lie in different rows, in any order
        chosen_pieces[np.argsort(group[chosen_pieces])],
        rejected_pieces[np.argsort(group[rejected_pieces])],
    )
