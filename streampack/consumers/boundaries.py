"""KernelBoundaries: where a packed batch's documents end, as each attention or scan takes it.

All of it is views of the batch's tensors and a few tensor operations on its device; nothing here
waits for the device.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from torch.nn.functional import pad

from streampack.arguments import one_of, whole_number
from streampack.consumers.block_mask import segment_block_mask
from streampack.consumers.context_parallel import Layout, context_parallel
from streampack.consumers.megatron import packed_seq_params
from streampack.consumers.padded_segments import are_padding, pad_cu_seqlens
from streampack.device.tensors import BatchTensors


class KernelBoundaries(BatchTensors):
    """The methods of `PackedBatch` that give a kernel its boundaries."""

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
        known = ("flash_attn", "torch", "torchtitan")
        one_of("api", api, known, "The names of its arguments are unknown.")
        names = ("cu_seq_q", "cu_seq_k", "max_q", "max_k")
        if api == "flash_attn":
            names = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
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
        filled = self._runs[0][:-1][~are_padding(*self._runs)]
        return bool((np.diff(filled // self.seq_len) > 0).all())
