"""TreeBatch: a batch whose rows are trees, in which what sequences begin with alike stands once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from streampack.batch.loss import check_logits
from streampack.batch.packed_batch import PackedBatch
from streampack.batch.tensors import TOKEN_FIELD, positions_in
from streampack.batch.text import decoder
from streampack.errors import ConfigError

if TYPE_CHECKING:
    from streampack.batch.tree_nodes import TreeNodes


def _refused(name: str, instead: str) -> property:
    """An attribute of other batches that trees do not have."""

    def refuse(self: Any) -> NoReturn:
        raise ConfigError(
            f"Trees have no `{name}`: a slot is followed by several tokens, and seen by several "
            "sequences.",
            f"Use {instead}.",
            setting="layout",
        )

    return property(refuse, doc=f"Raises `ConfigError`: use {instead}.")


_MASKS = "batch.mask(), batch.flex() or batch.hf(model=model)"


class TreeBatch(PackedBatch):
    """R rows of trees. A tree is a record of several sequences; no token of it stands twice.

    Slots of a tree lie depth first, so a slot q sees a slot k of its row exactly if
    ``tin[k] <= tin[q] < tout[k]``. What belongs to the sequences is in their order: S of them, with
    N tokens. `num_documents` is S; `provenance`, `source_ids` and `document_fields` have S entries,
    and ``document_fields["group_ids"]`` numbers the trees; `fields` have N; `num_tokens` and all
    counts of `Composition` are of slots. `document_ids` numbers the trees, -1 on padding.

    >>> from streampack import pack
    >>> ids = [[7, 8, 1], [7, 8, 2, 3], [7, 8]]
    >>> plan = pack([3, 4, 2], groups=[0, 0, 0], ids=ids, layout="tree", seq_len=6)
    >>> (batch,) = plan.batches(ids)
    >>> batch.input_ids.tolist(), batch.position_ids.tolist()
    ([[7, 8, 1, 2, 3, 0]], [[0, 1, 2, 2, 3, 0]])
    >>> batch.tout.tolist()  # the prompt's slots are seen by all; padding by itself
    [[5, 5, 3, 5, 5, 6]]
    >>> batch.slot.tolist()
    [0, 1, 2, 0, 1, 3, 4, 0, 1]
    >>> batch.source.tolist()  # slot 1 predicts a token of each answer
    [-1, 0, 1, -1, 0, 1, 3, -1, 0]
    """

    labels = _refused("labels", "batch.loss(logits) or batch.log_probs(logits)")
    next_tokens = _refused("next_tokens", "batch.log_probs(logits)")
    cu_seqlens = _refused("cu_seqlens", _MASKS)
    seq_idx = _refused("seq_idx", _MASKS)
    varlen = _refused("varlen", _MASKS)
    fla = _refused("fla", _MASKS)
    megatron = _refused("megatron", _MASKS)
    packed_seq_params = _refused("packed_seq_params", _MASKS)
    context_parallel = _refused("context_parallel", 'layout="documents"')
    limit_context = _refused("limit_context", 'layout="documents"')
    samples = _refused("samples", 'layout="documents"')
    numpy = _refused("numpy", 'layout="documents"')

    # ------------------------------------------------------------------ slots

    @property
    def tin(self) -> Tensor:
        """(rows, seq_len) int64, the number of each slot in its row."""
        return torch.arange(self.seq_len, device=self.device).expand(self.rows, -1)

    @property
    def tout(self) -> Tensor:
        """(rows, seq_len) int64, the number of the first slot after it that does not see it."""
        return self._derived["tout"]

    def mask(self) -> Tensor:
        """(rows, 1, seq_len, seq_len) bool, True where a slot sees another one, as SDPA takes it.

        A slot of padding sees itself alone.
        """
        slot = torch.arange(self.seq_len, device=self.device)
        seen = (slot <= slot[:, None]) & (slot[:, None] < self.tout[:, None, :])
        return seen[:, None]

    def flex(self, block_size: int = 128, *, window: int | None = None) -> BlockMask:
        """The block mask for `flex_attention` over the flattened rows, (1, 1, T, T).

        Made in a time that grows with ``(T / block_size)**2``, without a T x T matrix.

        Args:
            window: tokens of its sequence that a slot sees, itself included; None for all.
        """
        slots = self.rows * self.seq_len
        first = torch.arange(0, slots, self.seq_len, device=self.device)
        tout = (self.tout + first[:, None]).view(-1)

        depth = self.position_ids.view(-1)

        def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            seen = (key <= query) & (query < tout[key])
            return seen if window is None else seen & (depth[query] - depth[key] < window)

        def by_block(values: Tensor, fill: int) -> Tensor:
            padded = torch.nn.functional.pad(values, (0, blocks * block_size - slots), value=fill)
            return padded.view(blocks, block_size)

        blocks = -(-slots // block_size)
        block = torch.arange(blocks, device=self.device)
        low, high = block * block_size, ((block + 1) * block_size).clamp(max=slots)
        latest, soonest = by_block(tout, 0).amax(dim=1), by_block(tout, slots).amin(dim=1)
        before = block[None, :] < block[:, None]  # blocks of keys before those of queries
        full = before & (soonest[None, :] >= high[:, None])
        some = before & (latest[None, :] > low[:, None])
        if window is not None:
            deepest, least = by_block(depth, 0).amax(dim=1), by_block(depth, slots).amin(dim=1)
            full &= deepest[:, None] - least[None, :] < window
            some &= least[:, None] - deepest[None, :] < window
        some &= ~full
        some |= torch.eye(blocks, dtype=torch.bool, device=self.device)

        def listed(which: Tensor) -> tuple[Tensor, Tensor]:
            count = which.sum(dim=1, dtype=torch.int32)
            order = which.int().argsort(dim=1, descending=True, stable=True)
            return count[None, None], order.int()[None, None]

        return BlockMask.from_kv_blocks(
            *listed(some),
            *listed(full),
            BLOCK_SIZE=block_size,
            mask_mod=sees,
            seq_lengths=(slots, slots),
        )

    def nodes(self) -> TreeNodes:
        """Nodes and paths, for variable-length attention and layers that keep a state.

        FlashAttention aligns causal masks at the end of the keys, so
        ``flash_attn_varlen_func(q, k[n.kv_index], v[n.kv_index], n.cu_seqlens_q, n.cu_seqlens_k,
        n.max_seqlen_q, n.max_seqlen_k, causal=True)`` computes the trees. Recurrent layers begin
        a node with the state in which its parent ended.
        """
        from streampack.batch.tree_nodes import nodes_of

        return nodes_of(self)

    def hf(self, model: Any = None, **options: Any) -> dict[str, Any]:  # type: ignore[override]
        """Arguments for a Hugging Face transformers causal LM: no labels, use `loss`.

        (rows, seq_len) `input_ids` and `position_ids`, and `attention_mask`, (rows, 1, seq_len,
        seq_len). With the `model` it is in its dtype, of every kind of layer where its layers are
        of several (a sliding window counts along a sequence, not along the row); and a small tree
        is run through the model some ten times before, once for each shape, to be sure that it
        computes trees. With FlexAttention ids are (1, T), and the mask is that of `flex`. Without
        the model the mask is bool, as SDPA alone takes it.

        Raises:
            ConfigError: the model does not compute trees; the message says why.
        """
        if model is not None:
            from streampack.batch.tree_models import arguments_for

            return arguments_for(model, self)
        return {**self._ids(), "attention_mask": self.mask()}

    def _ids(self) -> dict[str, Any]:
        """What models of transformers take besides a mask."""
        return {
            "input_ids": self.input_ids,
            "position_ids": self.position_ids,
            "use_cache": False,
        }

    # ------------------------------------------------------------------ sequences

    @property
    def slot(self) -> Tensor:
        """(N,) int64, the slot of each token of the sequences, in the flattened rows."""
        return self._tensors["slot"].long()

    @property
    def source(self) -> Tensor:
        """(N,) int64, the slot whose logits predict it; -1 for the first token of a sequence."""
        return self._derived["source"]

    @property
    def sequence_ids(self) -> Tensor:
        """(N,) int64, the number of its sequence in the batch."""
        ends = self._tensors["ends"]
        number = torch.arange(len(ends) - 1, device=self.device)
        return number.repeat_interleave(ends.diff(), output_size=len(self._tensors["slot"]))

    @property
    def loss_mask(self) -> Tensor:
        """(N,) bool, True where a token counts in the loss; never for the first of a sequence."""
        return self._tensors["counted"]

    @property
    def fields(self) -> dict[str, Tensor]:
        """By name, (N,) in the dtype that ``token_fields`` of the dataset declares."""
        return self._named(TOKEN_FIELD)

    def log_probs(self, logits: Tensor) -> Tensor:
        """(N,) log-probability of every token of the sequences, 0 for the first of each.

        They are those of the sequences one by one, whether a token counts in the loss or not.
        Logits are not copied for tokens that the same slot predicts.

        Args:
            logits: as `loss` takes them.

        Returns:
            float32 or wider.

        Raises:
            ConfigError: `logits` are not those of every slot, or lack an id.
        """
        check_logits(self, logits)
        flat = logits.reshape(-1, logits.shape[-1])
        if flat.dtype in (torch.float16, torch.bfloat16):
            flat = flat.float()
        source = self.source
        wanted = self.input_ids.view(-1)[self.slot]
        try:
            found = flat[source, wanted] - flat.logsumexp(dim=1)[source]
        except IndexError as error:  # on a device it is an assertion there
            raise ConfigError(
                f"logits are of a vocabulary of {flat.shape[1]:,} ids, and a token is "
                f"{int(wanted.max()):,}.",
                "Pass logits of all the ids that the tokenizer has.",
                setting="logits",
            ) from error
        return torch.where(source < 0, 0, found)

    def loss(self, logits: Tensor, *, weights: Tensor | None = None) -> Tensor:
        """The mean next-token loss over the loss tokens of all sequences, as if each was a row.

        A token that several sequences share counts in each. See `PackedBatch.loss` for ranks and
        groups of batches.

        Args:
            logits: (rows, seq_len, vocabulary), or flat; those at a slot are for what follows it.
            weights: (N,) by which the loss of each token is multiplied, for example
                ``batch.fields["weights"]``.

        Raises:
            ConfigError: `logits` are not those of every slot; `weights` are not one for every token
                of the sequences.
        """
        log_probs, counted = self.log_probs(logits), self.loss_mask
        if weights is not None and getattr(weights, "shape", None) != counted.shape:
            raise ConfigError(
                f"weights have the shape {tuple(getattr(weights, 'shape', ()))}, and the sequences "
                f"have {len(counted)} tokens.",
                "Pass one for each, such as a token field of the batch.",
                setting="weights",
            )
        factor = counted.to(log_probs.dtype)
        if weights is not None:
            factor = factor * weights
        return -(log_probs * factor).sum() / self.num_items_in_batch

    def decode(self, number: int, tokenizer: Any = None) -> str:
        """The text of a sequence, as `PackedBatch.decode` that of a document piece."""
        if not 0 <= number < self.num_documents:
            raise ConfigError(
                f"Sequence {number} was asked for, and the batch has {self.num_documents}.",
                "Pass a number of `sequence_ids`.",
                setting="number",
            )
        own = self.slot[self.sequence_ids == number]
        return decoder(tokenizer)(self.input_ids.view(-1)[own].cpu().numpy())

    def show(self, tokenizer: Any = None, **options: Any) -> str:
        """The trees as text: a line for every sequence, with what it does not share."""
        slot, sequence = self.slot.cpu(), self.sequence_ids.cpu()
        ids, trees = self.input_ids.view(-1).cpu(), self.document_ids.view(-1).cpu()
        text, lines, tree = decoder(tokenizer), [], -1
        shown = torch.zeros(len(ids), dtype=torch.bool)
        for number in range(self.num_documents):
            own = slot[sequence == number]
            new = own[~shown[own]]
            shown[own] = True
            if int(trees[own[0]]) != tree:
                tree = int(trees[own[0]])
                lines.append(f"row {int(own[0]) // self.seq_len}, tree {tree}")
            shared = f"{len(own) - len(new)} shared, " if len(own) > len(new) else ""
            lines.append(
                f"  sequence {number}, {len(own)} tokens: {shared}{text(ids[new].numpy())}"
            )
        return "\n".join(lines)

    # ------------------------------------------------------------------ making them

    def make_fields(self) -> None:
        """Make the fields of slots now instead of when one is first asked for."""
        if self._fields is not None:
            return
        compact, slots = self._tensors, self.rows * self.seq_len
        tokens, slot, ends = compact["tokens"], self.slot, compact["ends"]
        depth = positions_in(ends, len(slot))
        last = slot[ends[1:].long() - 1]  # of each sequence
        number = torch.arange(slots, device=self.device)
        tout = (number + 1).scatter_reduce(0, slot, last[self.sequence_ids] + 1, "amax")
        shape = (self.rows, self.seq_len)
        self._fields = {
            "input_ids": (tokens.long() & ((1 << (8 * tokens.element_size())) - 1)).view(shape),
            "position_ids": torch.zeros_like(number).scatter(0, slot, depth).view(shape),
            "tout": (tout - number // self.seq_len * self.seq_len).view(shape),
            "document_ids": torch.repeat_interleave(
                compact["piece"], compact["boundaries"].diff(), output_size=slots
            ).view(shape),
            "source": torch.where(depth > 0, slot.roll(1), -1),
        }

    def _with_input_ids(self, input_ids: Tensor) -> TreeBatch:
        return self._with(_fields={**self._derived, "input_ids": input_ids})
