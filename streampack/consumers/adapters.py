"""BatchAdapters: a packed batch as the arguments of each kernel and trainer.

All of it is views of the batch's tensors and a few tensor operations on its device; nothing here
waits for the device.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from torch.nn.functional import pad

from streampack.consumers.block_mask import segment_block_mask
from streampack.consumers.context_parallel import Layout, context_parallel
from streampack.consumers.hf_arguments import arguments_for
from streampack.consumers.loss import token_mean_loss
from streampack.consumers.megatron import megatron_batch, megatron_samples, packed_seq_params
from streampack.consumers.numpy_arrays import numpy_arrays
from streampack.consumers.padded_segments import pad_cu_seqlens
from streampack.consumers.pairs import pairs_of
from streampack.consumers.text import decoder, shown_text
from streampack.documents import Fields
from streampack.errors import ConfigError
from streampack.numeric import whole_number
from streampack.window.packed_rows import PackedRows

__all__ = ["BatchAdapters"]


class BatchAdapters:
    """The methods of `PackedBatch` that give a consumer what it takes."""

    rows: int
    seq_len: int
    num_segments: int
    num_documents: int
    max_seqlen: int
    num_loss_tokens: int
    num_items_in_batch: int | None
    _runs: tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]
    _host_fields: Fields
    _packed: PackedRows | None

    @property
    def cu_seqlens(self) -> Tensor:
        """(segments + 1,) int32."""
        raise NotImplementedError

    @property
    def input_ids(self) -> Tensor:
        """(rows, seq_len) int64."""
        raise NotImplementedError

    @property
    def labels(self) -> Tensor:
        """(rows, seq_len) int64."""
        raise NotImplementedError

    @property
    def document_ids(self) -> Tensor:
        """(rows, seq_len) int32."""
        raise NotImplementedError

    @property
    def position_ids(self) -> Tensor:
        """(rows, seq_len) int64."""
        raise NotImplementedError

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        raise NotImplementedError

    def _with_input_ids(self, input_ids: Tensor) -> Any:
        raise NotImplementedError

    def _label_positions(self) -> Tensor:
        raise NotImplementedError

    def decode(self, number: int, tokenizer: Any) -> str:
        """The text of a document piece, special tokens included.

        Args:
            number: of the piece, as in `document_ids`.
            tokenizer: whatever `PackedDataset` takes.

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
        it, so it carries none.) Line breaks are written as \\n, and a character cut by a mark as
        "\ufffd".

        Args:
            tokenizer: whatever `PackedDataset` takes; None shows ids.
            color: colours for a terminal; None has them if standard output is one.
            pieces: what `PackedDataset.locate` says of the batch: source, shard, document and
                tokens are named in the lines.
        """
        if color is None:
            color = sys.stdout.isatty()
        return shown_text(
            self.input_ids.cpu().numpy(),
            self.document_ids.cpu().numpy(),
            self.labels.cpu().numpy(),
            tokenizer,
            color=color,
            origins=list(map(str, pieces)),
        )

    def pairs(self, *, chosen: str = "chosen") -> tuple[Tensor, Tensor]:
        """The documents of preference pairs: groups of a chosen and a rejected one.

        Args:
            chosen: the document field that is true for the chosen one.

        Returns:
            (P,) and (P,) int64, pair by pair: the numbers of the chosen and of the rejected
            pieces, as in `document_ids`, on the batch's device.

        Raises:
            ConfigError: the dataset has no ``group``, or a group is no such pair.
        """
        found = pairs_of(self._host_fields, chosen)
        better, worse = (torch.from_numpy(pieces).to(self.device) for pieces in found)
        return better, worse

    def loss(
        self, logits: Tensor, *, weights: Tensor | None = None, averaged_over: int = 1
    ) -> Tensor:
        """The mean next-token loss over loss tokens; 0, with a gradient, if there are none.

        ``cross_entropy(..., ignore_index=-100)`` would be NaN for a batch without a loss token, as
        the empty ones at the end of a run are. From `PackedLoader.accumulate` it is the batch's
        share of the mean over all loss tokens of the group on all ranks.

        >>> from streampack import PackedDataset, Topology
        >>> (batch,) = PackedDataset([[1, 2, 3]], seq_len=4, batch_rows=1, topology=Topology())
        >>> round(batch.loss(torch.zeros(1, 4, 10)).item(), 4)  # ln(10)
        2.3026

        Args:
            logits: (rows, seq_len, vocabulary), or (1, T, vocabulary) as `.hf()` gives rows, or
                (T, vocabulary); those at slot t are for the token at t + 1. Not shifted.
            weights: (rows, seq_len) by which the loss of each token is multiplied, for example
                ``batch.fields["weights"]``; see `token_mean_loss`, also for `averaged_over`.

        Returns:
            A scalar, float32 or wider.

        Raises:
            ConfigError: `logits` are not those of every slot.
        """
        slots = self.rows * self.seq_len
        if logits.dim() < 2 or logits.shape[:-1].numel() != slots:
            raise ConfigError(
                f"logits have the shape {tuple(logits.shape)}, and the batch has {self.rows} rows "
                f"of {self.seq_len} tokens.",
                "They are not the logits of every slot, so labels would be compared with others.",
                "Pass what the model gives for the whole batch, not shifted.",
            )
        count = self.num_items_in_batch
        count = self.num_loss_tokens if count is None else count
        return token_mean_loss(
            logits, self.labels, count, weights=weights, averaged_over=averaged_over
        )

    def hf(
        self, *, model: Any = None, seq_idx: bool = False, segments: int | None = None
    ) -> dict[str, Any]:
        """Arguments for a Hugging Face transformers causal LM.

        Not every family keeps documents apart by them, and none says so. Pass the `model`, and
        they are such that it does: the first time a tiny batch is run through it, by which it is
        known for the model, its mode, device and attention implementation. Without it they are:

        Flat (1, T) `input_ids`, `position_ids`, `labels`; int32 `cu_seq_lens_q` and `_k`; ints
        `max_length_q` and `_k`. FlashAttention takes the boundaries from `cu_seq_lens_q`; eager,
        SDPA and FlexAttention (from transformers 4.53 and torch 2.6 on) from `position_ids`, and
        only if there is neither an attention mask nor a cache: hence no mask, and ``use_cache`` is
        False (a model's default is True, with which documents would attend to one another).
        From `PackedLoader.accumulate` also `num_items_in_batch`, by which transformers divides the
        summed loss, so that gradients added up over the group and over all ranks are those of the
        mean over tokens (where ranks average gradients instead of adding them, multiply the loss
        by their number). A batch without any loss token has it always, as 1: its loss is 0 and
        not 0 / 0.

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
            counts["num_items_in_batch"] = max(self.num_items_in_batch or 0, 1)
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

    def varlen(
        self,
        api: Literal["flash_attn", "torch", "torchtitan"] = "flash_attn",
        *,
        segments: int | None = None,
    ) -> dict[str, Any]:
        """Sequence arguments for variable-length attention, to be passed by keyword.

        Args:
            api: "flash_attn" for `flash_attn_varlen_func` (add ``causal=True``), "torch" for
                `torch.nn.attention.varlen.varlen_attn` (add ``window_size=(-1, 0)``, which is
                how it spells causal), "torchtitan" for the fields of its `VarlenMetadata`, which
                besides has the boundaries as a tuple of ints.
            segments: give the arguments static shapes, for `torch.compile` and CUDA graphs:
                `cu_seqlens` has `segments` + 1 entries, padded with its last value, and the
                maximum is `seq_len`. The true number is `num_segments`.

        Raises:
            ConfigError: the batch has more than `segments`; `api` is unknown.
        """
        cu_seqlens, longest = self._segments(segments)
        if api == "flash_attn":
            names = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
        elif api in ("torch", "torchtitan"):
            names = ("cu_seq_q", "cu_seq_k", "max_q", "max_k")
        else:
            raise ConfigError(
                f"api is {api!r}.",
                "Its argument names are unknown.",
                'Use "flash_attn", "torch" or "torchtitan".',
            )
        arguments = dict(zip(names, (cu_seqlens, cu_seqlens, longest, longest), strict=True))
        if api == "torchtitan":
            ends = self._runs[0].tolist()
            arguments["cu_seq_q_host"] = tuple(ends + ends[-1:] * (len(cu_seqlens) - len(ends)))
        return arguments

    def fla(self, *, chunk_size: int | None = None) -> dict[str, Tensor]:
        """Boundaries for linear attention, delta rules and short convolutions of fla.

        Kernels of flash-linear-attention take them with (1, T, ...) tensors: `cu_seqlens`,
        (segments + 1,) int64 on the batch's device, and `cu_seqlens_cpu`, the same on the host, so
        that they need not wait for the device. Pass the same dictionary to all layers: fla keeps
        what it derives by the identity of these tensors.

        Args:
            chunk_size: tokens per chunk of a kernel: also give `chunk_indices`, (chunks, 2) int64
                on the device, the segment of each chunk and the chunk's number in it.

        Raises:
            ConfigError: `chunk_size` is no whole number of at least one.
        """
        ends = self._runs[0].astype(np.int64)
        arguments = {"cu_seqlens": self.cu_seqlens.long(), "cu_seqlens_cpu": torch.from_numpy(ends)}
        if chunk_size is not None:
            chunk_size = whole_number("chunk_size", chunk_size, "A chunk holds at least one token.")
            chunks = -(-np.diff(ends) // chunk_size)
            segment = np.repeat(np.arange(len(chunks)), chunks)
            inside = np.arange(len(segment)) - (np.cumsum(chunks) - chunks)[segment]
            indices = torch.from_numpy(np.stack((segment, inside), axis=1))
            arguments["chunk_indices"] = indices.to(self.device, non_blocking=True)
        return arguments

    @property
    def seq_idx(self) -> Tensor:
        """(1, T) int32, each slot's attention segment, as mamba_ssm and causal_conv1d take it."""
        return self._segment_ids().view(1, -1)

    def next_tokens(self, depth: int = 1) -> Tensor:
        """Targets of multi-token prediction: what comes `depth` tokens later.

        (rows, seq_len) int64, shifted: compare them with what slot t predicts, without shifting.
        -100 where that lies beyond the attention segment (as it is without a `ContextSchedule`), or
        carries no loss.

        Args:
            depth: 1 is the next token.

        Raises:
            ConfigError: `depth` is no whole number of at least one.
        """
        depth = whole_number("depth", depth, "The next token is 1 later.")
        inside = self._label_positions() >= depth
        labels = self.labels.view(-1).masked_fill(~inside, -100)
        slots = self.rows * self.seq_len
        return pad(labels[depth:], (0, min(depth, slots)), value=-100).view(self.rows, self.seq_len)

    def flex(self, block_size: int = 128) -> BlockMask:
        """The block mask for `flex_attention` over the flattened rows, (1, 1, T, T).

        Causal inside attention segments. Made in a time that grows with ``(T / block_size)**2``,
        without a T x T matrix; its shapes depend on T alone.
        """
        return segment_block_mask(self.cu_seqlens, self.rows * self.seq_len, block_size)

    def torchtitan(self, *, flat: bool = True) -> tuple[dict[str, Tensor], Tensor]:
        """What torchtitan's trainer takes from a dataloader: ``({"input", "positions"}, labels)``.

        All int64; labels are shifted (each slot's is the next token). Boundaries are where
        positions are 0.

        Args:
            flat: (T,), as torchtitan after 0.3 wants them; otherwise (rows, seq_len), as 0.3 does.
        """
        shape = (-1,) if flat else (self.rows, self.seq_len)
        inputs = {"input": self.input_ids.view(shape), "positions": self.position_ids.view(shape)}
        return inputs, self.next_tokens().view(shape)

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

    def packed_seq_params(self, *, cp_size: int = 1) -> dict[str, Any]:
        """Fields of Megatron-LM's `PackedSeqParams`, for TransformerEngine's THD attention.

        `cu_seqlens_q` and `_kv`, (segments + 1,) int32, sum up real lengths;
        `cu_seqlens_q_padded` and `_kv_padded` are where the segments lie in the whole batch, each a
        multiple of ``2 * cp_size`` long if `cp_size` is more than 1; `max_seqlen_q` and `_kv` are
        ints and count that padding. `total_tokens`, an int, is what Mamba layers derive their
        `seq_idx` from; without it they take a row for one sequence. It is left out where the
        installed Megatron-LM (0.16) has no such field: its Mamba layers know no boundaries.

        Raises:
            ConfigError: as in `megatron`.
        """
        return packed_seq_params(self, cp_size)

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

    def context_parallel(self, layout: Layout, *, cp_size: int, cp_rank: int) -> dict[str, Any]:
        """The part of the batch that a rank of a context-parallel group holds.

        (1, T / cp_size) int64 `input_ids`, `position_ids` and `shift_labels` (each slot's is the
        next token, -100 where no loss is taken); `slots`, (T / cp_size,) int64, which slots of the
        flattened rows they are, by which fields and outputs go there and back; `cu_seqlens`, int32,
        and `max_seqlen` as the attention of the layout takes them. All ranks together hold every
        slot once.

        Args:
            layout: "zigzag" for ring attention: the head and the tail of every document, so that
                the work of causal attention is even; "contiguous" for ring attention too: rank r
                holds the r-th part of every document. The boundaries of both are those of the
                parts. "ulysses": rank r holds the r-th part of the flattened rows, and the
                boundaries are those of the whole batch, since attention sees all of it, for some
                of the heads.
            cp_size: ranks of the group, which all pass the same batch.
            cp_rank: which of them this is.

        Raises:
            ConfigError: documents were not packed with `align` a multiple of ``2 * cp_size`` for
                "zigzag", of `cp_size` for "contiguous"; there is no such rank or layout.
        """
        return context_parallel(self, layout, cp_size, cp_rank)

    def _segments(self, segments: int | None) -> tuple[Tensor, int]:
        """`cu_seqlens` and its maximum, of static shape if a number of segments is given."""
        if segments is None:
            return self.cu_seqlens, self.max_seqlen
        slots = self.rows * self.seq_len
        return pad_cu_seqlens(self.cu_seqlens, segments, slots), self.seq_len

    def _segment_ids(self) -> Tensor:
        slots = self.rows * self.seq_len
        number = torch.arange(self.num_segments, dtype=torch.int32, device=self.device)
        return number.repeat_interleave(self.cu_seqlens.diff(), output_size=slots)

    def _one_segment_per_row(self) -> bool:
        """Whether no row has two segments that are not padding."""
        cu_seqlens, boundaries, piece = self._runs
        starts = cu_seqlens[:-1]
        filled = starts[piece[np.searchsorted(boundaries, starts)] >= 0]
        return bool((np.diff(filled // self.seq_len) > 0).all())
