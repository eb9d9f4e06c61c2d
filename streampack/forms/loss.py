"""Token-mean loss, over several batches and ranks too, and the pieces of preference pairs.

Packed rows hold unequal numbers of loss tokens, so a mean of batch means is not the mean over
tokens, and the mean of an empty batch is 0 / 0. Losses are therefore summed, and divided by the
number of loss tokens of the whole optimiser step.
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
    """Compute the mean next-token loss over loss tokens; 0, with a gradient, without any.

    ``cross_entropy(..., ignore_index=-100)`` would be NaN for a batch without a loss token, such
    as the empty batches at the end of a run. On several ranks, and within a group of
    `PackedLoader.accumulate`, the result is the batch's share of the mean over all loss tokens of
    the step: averaging gradients over ranks (DDP, FSDP) and adding them over batches gives the
    gradient of that mean. See `PackedBatch.num_items_in_batch`.

    >>> from streampack import PackedDataset, Topology
    >>> (batch,) = PackedDataset([[1, 2, 3]], seq_len=4, batch_size=1, topology=Topology())
    >>> round(batch.loss(torch.zeros(1, 4, 10)).item(), 4)  # ln(10)
    2.3026

    Args:
        logits: the model's logits, not shifted: (rows, seq_len, vocabulary), (1, T, vocabulary) as
            with the arguments of `.hf()`, or (T, vocabulary). Logits at slot t predict the token at
            t + 1. Where `.hf(model=)` leaves padding out (an auxiliary router loss), the logits of
            the remaining slots.
        weights: (rows, seq_len) factor of each token's loss, for example
            ``batch.fields["weights"]``; see `token_mean_loss`.

    Returns:
        A scalar, float32 or wider.

    Raises:
        ConfigError: `logits` do not have one entry for every slot, in the order of the batch.
    """
    # Each of the ranks that share the batch computes the loss of the whole batch here.
    count = batch.num_items_in_batch * batch.cp_size
    labels = batch.labels
    if isinstance(logits, Tensor) and logits.shape[:-1].numel() < labels.numel():
        from streampack.hf.routers import slots_of

        slots = slots_of(batch, tuple(logits.shape[:-1]))
        if slots is not None:
            labels = labels.take(slots)
            fits = isinstance(weights, Tensor) and weights.shape == batch.labels.shape
            weights = weights.take(slots) if fits else weights  # type: ignore[union-attr]
            return token_mean_loss(logits, labels, count, weights=weights)
    check_logits(batch, logits)
    return token_mean_loss(logits, labels, count, weights=weights)


def check_logits(batch: PackedBatch, logits: Any) -> None:
    """Raise `ConfigError` unless `logits` have one entry for every slot of the batch."""
    if not isinstance(logits, Tensor):
        raise ConfigError(
            f"logits must be a tensor, got {type_in_words(logits)}.",
            "Pass the logits attribute of the model's output."
            if hasattr(logits, "logits")
            else "Pass the logits alone, not the model's whole output.",
            setting="logits",
        )
    rows, seq_len = batch.rows, batch.seq_len
    if tuple(logits.shape[:-1]) not in {
        (rows, seq_len),
        (1, rows * seq_len),
        (rows * seq_len,),
    }:
        raise ConfigError(
            f"logits must have an entry for each slot of the {rows} rows of {seq_len} tokens, got "
            f"the shape {tuple(logits.shape)}.",
            f"Pass the model's logits for the whole batch, not shifted: ({rows}, {seq_len}, "
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
    """Compute a batch's share of the mean next-token loss of an optimiser step.

    Gradients added over the batches of the step equal the gradient of the mean over its tokens.

    Args:
        logits: (rows, seq_len, vocabulary), or flat (T, vocabulary).
        labels: (rows, seq_len) or (T,) int64 as in `PackedBatch.labels`: not shifted, -100 where
            a token carries no loss.
        num_loss_tokens: divisor of the summed loss. If gradients are added over ranks: the step's
            loss tokens on all data-parallel ranks. If they are averaged, as by DDP and FSDP: that
            count divided by the number of ranks, which is `PackedBatch.num_items_in_batch`. With 0
            the loss and its gradients are 0.
        weights: factor of each token's loss, in the shape of `labels`. The sum is still divided by
            the number of loss tokens, not by the sum of the weights.

    Returns:
        A scalar, float32 or wider.

    Raises:
        ConfigError: `weights` do not have the shape of `labels`, or a label is not in the
            vocabulary (checked on the CPU; on other devices it is a device-side assertion).
    """
    flat = logits.reshape(-1, logits.shape[-1])
    if flat.dtype in (torch.float16, torch.bfloat16):
        flat = flat.float()
    # The first label of a row is -100, so no row predicts the next row's first token.
    wanted, reduction = labels.reshape(-1)[1:], "sum" if weights is None else "none"
    if weights is not None and (
        not isinstance(weights, Tensor) or weights.numel() != labels.numel()
    ):
        raise ConfigError(
            f"weights must be a tensor of the shape of labels, {tuple(labels.shape)}, got the "
            f"shape {tuple(getattr(weights, 'shape', ()))}.",
            "Pass one weight per label, such as a token field of the batch.",
            setting="weights",
        )
    try:
        total = torch.nn.functional.cross_entropy(
            flat[:-1], wanted, ignore_index=-100, reduction=reduction
        )
    except IndexError as error:  # on an accelerator it is a device-side assertion
        raise ConfigError(
            f"Labels must be below the logits' vocabulary of {flat.shape[1]:,} ids, got "
            f"{int(wanted.max()):,}.",
            "Pass logits for all ids of the tokenizer; token_rules=TokenRules(vocab_size=...) "
            "refuses other ids when they are read.",
            setting="logits",
        ) from error
    if weights is not None:
        total = (total * weights.reshape(-1)[1:].to(total.dtype)).sum()
    return total / (num_loss_tokens or 1)


def pairs(batch: PackedBatch, chosen: str = "chosen") -> tuple[Tensor, Tensor]:
    """Return the documents of preference pairs, which are groups of a chosen and a rejected one.

    Args:
        chosen: the document field that is true for chosen documents.

    Returns:
        The pieces of the chosen and of the rejected documents, (P,) int64 each, pair by pair, as in
        `document_ids` and on the batch's device.

    Raises:
        ConfigError: the batch has no groups or no such field, or a group is not such a pair.
    """
    sides = _pairs_of(batch._host_fields, chosen)
    better, worse = (torch.from_numpy(pieces).to(batch.device) for pieces in sides)
    return better, worse


def _pairs_of(document_fields: Fields, chosen: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the pieces of the chosen and of the rejected documents, (P,) int64 each.

    Args:
        document_fields: (D,) values by piece, on the host.
        chosen: the field that is true, or not 0, for the chosen document of a pair.

    Raises:
        ConfigError: the batch has no groups or no such field, or a group is not a pair.
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
    return (  # sorted by group, because pairs may lie in different rows, in any order
        chosen_pieces[np.argsort(group[chosen_pieces])],
        rejected_pieces[np.argsort(group[rejected_pieces])],
    )
