"""BatchAdapters: a packed batch as each trainer takes it, and as a person reads it.

All of it is views of the batch's tensors and a few tensor operations on its device; only what is
for a person waits for the device.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from streampack.arguments import type_in_words
from streampack.consumers.boundaries import KernelBoundaries
from streampack.consumers.hf_arguments import arguments_for
from streampack.consumers.loss import token_mean_loss
from streampack.consumers.megatron import megatron_batch, megatron_samples
from streampack.consumers.misuse import NoMapping
from streampack.consumers.numpy_arrays import numpy_arrays
from streampack.consumers.pairs import pairs_of
from streampack.consumers.text import decoder, shown_text
from streampack.errors import ConfigError


class BatchAdapters(NoMapping, KernelBoundaries):
    """The methods of `PackedBatch` that give a person or a trainer what it takes."""

    def decode(self, number: int, tokenizer: Any = None) -> str:
        """The text of a document piece, special tokens included.

        Args:
            number: of the piece, as in `document_ids`.
            tokenizer: whatever `PackedDataset` takes; None writes the ids as numbers.

        Raises:
            ConfigError: there is no such piece, or it is no tokenizer.
        """
        if not 0 <= number < self.num_documents:
            raise ConfigError(
                f"Piece {number} was asked for, and the batch has {self.num_documents}.",
                "There is no text of it.",
                "Pass a number of `document_ids` that is not negative.",
            )
        return decoder(tokenizer)(self.input_ids[self.document_ids == number].cpu().numpy())

    def show(
        self, tokenizer: Any = None, *, color: bool | None = None, pieces: Sequence[Any] = ()
    ) -> str:
        """The rows as text: a line for every document piece, with what carries loss marked.

        The text that carries loss is between « and », or green where there are colours; the rest
        is dim; a notebook shows the same in HTML. (The first token of a piece has nothing before
        it, so it carries none.) Line breaks are written as \\n, other control characters as escapes
        too, and a character cut by a mark as "\ufffd".

        Args:
            tokenizer: whatever `PackedDataset` takes; None shows ids.
            color: colours for a terminal; None has them if standard output is one.
            pieces: what `PackedDataset.locate` says of the batch: source, shard, document and
                tokens are named in the lines.
        """
        if color is None:
            color = sys.stdout.isatty()
        return shown_text(self, tokenizer, color=color, pieces=pieces)

    def pairs(self, chosen: str = "chosen") -> tuple[Tensor, Tensor]:
        """The documents of preference pairs: groups of a chosen and a rejected one.

        Args:
            chosen: the document field that is true for the chosen one.

        Returns:
            (P,) and (P,) int64, pair by pair: the numbers of the chosen and of the rejected
            pieces, as in `document_ids`, on the batch's device.

        Raises:
            ConfigError: the batch has no groups, or one is no such pair.
        """
        found = pairs_of(self._host_fields, chosen)
        better, worse = (torch.from_numpy(pieces).to(self.device) for pieces in found)
        return better, worse

    def loss(self, logits: Tensor, *, weights: Tensor | None = None) -> Tensor:
        """The mean next-token loss over loss tokens; 0, with a gradient, if there are none.

        ``cross_entropy(..., ignore_index=-100)`` would be NaN for a batch without a loss token, as
        the empty ones at the end of a run are. In a step of several ranks, and of several batches
        of `PackedLoader.accumulate`, it is the batch's share of the mean over all loss tokens of
        the step: gradients that are averaged over the ranks (by DDP or FSDP), and added up over the
        batches, are those of that mean. See `PackedBatch.num_items_in_batch`.

        >>> from streampack import PackedDataset, Topology
        >>> (batch,) = PackedDataset([[1, 2, 3]], seq_len=4, batch_rows=1, topology=Topology())
        >>> round(batch.loss(torch.zeros(1, 4, 10)).item(), 4)  # ln(10)
        2.3026

        Args:
            logits: (rows, seq_len, vocabulary), or (1, T, vocabulary) as `.hf()` gives rows, or
                (T, vocabulary); those at slot t are for the token at t + 1. Not shifted.
            weights: (rows, seq_len) by which the loss of each token is multiplied, for example
                ``batch.fields["weights"]``; see `token_mean_loss`.

        Returns:
            A scalar, float32 or wider.

        Raises:
            ConfigError: `logits` are not those of every slot, in the order of the batch.
        """
        if not isinstance(logits, Tensor):
            raise ConfigError(
                f"logits is {type_in_words(logits)}.",
                "The loss is taken of a tensor (rows, seq_len, vocabulary).",
                "Pass output.logits of what the model returned."
                if hasattr(logits, "logits")
                else "Pass the logits alone, not all that the model returned.",
            )
        rows, seq_len = self.rows, self.seq_len
        if tuple(logits.shape[:-1]) not in {
            (rows, seq_len),
            (1, rows * seq_len),
            (rows * seq_len,),
        }:
            raise ConfigError(
                f"logits have the shape {tuple(logits.shape)}, and the batch has {rows} rows of "
                f"{seq_len} tokens.",
                "They are not the logits of every slot in order, so labels would be compared with "
                "others.",
                f"Pass what the model gives for the whole batch, not shifted: ({rows}, {seq_len}, "
                f"vocabulary), (1, {rows * seq_len}, vocabulary) or ({rows * seq_len}, "
                "vocabulary).",
            )
        count = self.num_items_in_batch
        count = self.num_loss_tokens if count is None else count
        return token_mean_loss(logits, self.labels, count, weights=weights)

    def hf(
        self, model: Any = None, *, seq_idx: bool = False, segments: int | None = None
    ) -> dict[str, Any]:
        """Arguments for a Hugging Face transformers causal LM.

        Not every family keeps documents apart by them, and none says so. Pass the `model`, and the
        arguments are those by which it does. To find them, two rows are run through it some ten
        times, and a whole batch once, without gradients: once for each model, mode, device,
        attention implementation and shape of a batch. Without a model they are:

        Flat (1, T) `input_ids`, `position_ids`, `labels`; int32 `cu_seq_lens_q` and `_k`; ints
        `max_length_q` and `_k`. FlashAttention takes the boundaries from `cu_seq_lens_q`; eager,
        SDPA and FlexAttention (from transformers 4.53 and torch 2.6 on) from `position_ids`, and
        only if there is neither an attention mask nor a cache: hence no mask, and ``use_cache`` is
        False (a model's default is True, with which documents would attend to one another).
        On several ranks, and from `PackedLoader.accumulate`, also `num_items_in_batch`, by which
        transformers divides the summed loss, so that it is as that of `loss`. A batch without any
        loss token has it always: its loss is 0 and not 0 / 0.

        With a model that needs them, also `seq_idx`, or an `attention_mask` for every row,
        (rows, 1, seq_len, seq_len) in the model's dtype, and then all is (rows, seq_len); so it is
        where every row is one segment, as with ``attention="row"`` or one document per row.
        Arguments that its `forward` does not name are left out, and so are `labels` where it does
        not take a `num_items_in_batch` that is needed: use `loss` then.

        Args:
            model: what is called with them. On several ranks all pass theirs in the same step.
            seq_idx: also give `seq_idx`, (1, T) int32, each slot's attention segment: the
                boundaries for layers of state-space and convolution models.
            segments: as in `varlen`.

        Raises:
            ConfigError: the model keeps documents apart in no way that is known; the message says
                what was tried.
        """
        if model is not None:
            return arguments_for(model, self, segments)
        counts: dict[str, Any] = {}
        if self.num_items_in_batch is not None or not self.num_loss_tokens:
            counts["num_items_in_batch"] = self.num_items_in_batch or 1
        if seq_idx:
            counts["seq_idx"] = self.seq_idx
        cu_seqlens, longest = self._segments(segments)
        return {
            **counts,
            "input_ids": self.input_ids.view(1, -1),
            "position_ids": self.position_ids.view(1, -1),
            "labels": self.labels.view(1, -1),
            "cu_seq_lens_q": cu_seqlens,
            "cu_seq_lens_k": cu_seqlens,
            "max_length_q": longest,
            "max_length_k": longest,
            "use_cache": False,
        }

    def numpy(self) -> dict[str, Any]:
        """Arrays for JAX, by the names that MaxText's training step reads; no tensors are made.

        (rows, seq_len) int32: `inputs`, `inputs_position` (from 0 in every attention segment),
        `inputs_segmentation` (from 1 in every row, 0 on padding), `targets` (the next token),
        `targets_position` and `targets_segmentation`, which is 0 where no loss is taken; `targets`
        are 0 there. With ``token_fields`` also "fields", and with ``document_fields`` also
        "document_fields", dictionaries as `fields` and `document_fields` of the batch. Arrays may
        share memory.

        >>> from streampack import PackedDataset, Topology
        >>> documents = [[11, 12, 13], [21, 22]]
        >>> dataset = PackedDataset(documents, seq_len=6, batch_rows=1, topology=Topology())
        >>> arrays = next(iter(dataset)).numpy()
        >>> arrays["inputs"].tolist(), arrays["inputs_segmentation"].tolist()
        ([[11, 12, 13, 21, 22, 0]], [[1, 1, 1, 2, 2, 0]])
        >>> arrays["targets"].tolist(), arrays["targets_segmentation"].tolist()
        ([[12, 13, 0, 22, 0, 0]], [[1, 1, 0, 2, 0, 0]])

        Raises:
            ConfigError: the batch was moved to a device or pinned.
        """
        if self._packed is None:
            raise ConfigError(
                "This batch was moved to a device or pinned.",
                "Its arrays are tensors now.",
                "Call numpy() on the batch as the loader gives it without device= and pin_memory=.",
            )
        return numpy_arrays(self._packed)

    def megatron(self, *, cp_size: int = 1, cp_rank: int = 0) -> dict[str, Tensor | None]:
        """The tensors that Megatron-LM's `get_batch` returns, for packed (THD) attention.

        (1, T / cp_size) `tokens`, `labels` and `position_ids` int64, `loss_mask` float32;
        `attention_mask` is None, `packed_seq_params` has the boundaries. Labels are shifted (each
        slot's is the next token) and 0 where `loss_mask` is 0.

        Args:
            cp_size: ranks of the context-parallel group, which all pass the same batch.
            cp_rank: which of them this is: it holds the head and the tail of every document.

        Raises:
            ConfigError: documents were not packed with ``align=2 * cp_size``; there is no such
                rank.
        """
        return megatron_batch(self, cp_size, cp_rank)

    def samples(self, *, align: int = 1) -> list[dict[str, Tensor]]:
        """The documents one by one, in packed order, for schedulers that pack by themselves.

        One dictionary per attention segment that is not padding, as Megatron-LM's dynamic context
        parallelism takes them: (n,) `tokens`, `labels` and `position_ids` int64 and `loss_mask`
        float32, as in `megatron`; `original_seq_len` and `padded_seq_len`, (1,) int32 on the host,
        of which the latter is n. Fields are not among them.

        Args:
            align: n is a multiple of it; what is added is 0 everywhere.

        Raises:
            ConfigError: `align` is no whole number of at least one.
        """
        return megatron_samples(self, align)
