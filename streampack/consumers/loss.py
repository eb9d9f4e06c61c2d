"""The mean loss over tokens, right across unequal batches, accumulation and ranks.

Packed rows hold unequal numbers of loss tokens, so the mean of batches' means is not the mean over
tokens, and the mean of an empty batch is 0 / 0. So losses are summed, and divided by the number of
loss tokens of everything that one optimiser step sees.
"""

from __future__ import annotations

import torch
from torch import Tensor

from streampack.errors import ConfigError


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
            "The loss of every token is multiplied by one of its own.",
            "Pass a tensor of the shape of the labels, such as a token field of the batch.",
        )
    try:
        total = torch.nn.functional.cross_entropy(
            flat[:-1], wanted, ignore_index=-100, reduction=reduction
        )
    except IndexError as error:  # on a device it is an assertion there
        raise ConfigError(
            f"logits are of a vocabulary of {flat.shape[1]:,} ids, and a label is "
            f"{int(wanted.max()):,}.",
            "The model has no logit for it.",
            "Pass logits of all the ids that the tokenizer has; "
            "token_rules=TokenRules(vocab_size=...) refuses others when they are read.",
        ) from error
    if weights is not None:
        total = (total * weights.reshape(-1)[1:].to(total.dtype)).sum()
    return total / (num_loss_tokens or 1)
