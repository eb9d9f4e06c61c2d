"""Batches with rows of prefix trees, in which sequences store a shared prefix once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from streampack.batch.packed_batch import Form, PackedBatch
from streampack.batch.tensors import TOKEN_FIELD, positions_in
from streampack.errors import ConfigError
from streampack.forms.loss import check_logits
from streampack.forms.text import decoder

if TYPE_CHECKING:
    from streampack.trees.nodes import TreeNodes


def _refused(name: str, instead: str) -> property:
    """Return a property that raises `ConfigError` and names the replacement for trees."""

    def refuse(self: Any) -> NoReturn:
        raise ConfigError(
            f"Trees have no `{name}`, because several tokens may follow a slot and several "
            "sequences see it.",
            f"Use {instead}.",
            setting="layout",
        )

    return property(refuse, doc=f"Raises `ConfigError`: use {instead}.")


_MASKS = "batch.mask(), batch.flex() or batch.hf(model=model)"


class TreeBatch(PackedBatch):
    """R rows of prefix trees. A tree is a record of several sequences with shared prefixes merged.

    Slots of a tree are in depth-first order, so slot q sees slot k of its row exactly if
    ``tin[k] <= tin[q] < tout[k]``. Attributes of sequences are in the order of the sequences: S of
    them, with N tokens in total. `num_documents` is S; `provenance`, `source_ids` and
    `document_fields` have S entries, and ``document_fields["group_ids"]`` is the tree's index;
    `fields` have N entries, or are by slot if they have several numbers per token. `num_tokens` and
    all counts of `PackingStats` count slots.
    `document_ids` is the tree's index per slot, -1 on padding.

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
    per_token = _refused("per_token", "batch.document_fields[name][batch.sequence_ids]")

    # ------------------------------------------------------------------ slots

    @property
    def tin(self) -> Tensor:
        """(rows, seq_len) int64, the index of each slot in its row."""
        return torch.arange(self.seq_len, device=self.device).expand(self.rows, -1)

    @property
    def tout(self) -> Tensor:
        """(rows, seq_len) int64, the index of the first later slot that does not see this one."""
        return self._derived["tout"]

    def mask(self) -> Tensor:
        """Return SDPA's bool mask, (rows, 1, seq_len, seq_len), True where a slot sees another.

        A padding slot sees only itself.
        """
        slot = torch.arange(self.seq_len, device=self.device)
        seen = (slot <= slot[:, None]) & (slot[:, None] < self.tout[:, None, :])
        return seen[:, None]

    def flex(self, block_size: int = 128, *, window: int | None = None) -> BlockMask:
        """Return the (1, 1, T, T) block mask for `flex_attention` over the flattened rows.

        The cost grows with ``(T / block_size)**2``; no T x T matrix is made.

        Args:
            window: number of tokens of its sequence that a slot sees, itself included, for models
                with a sliding window; None for all.
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
        # True where the key block precedes the query block.
        before = block[None, :] < block[:, None]
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
        """Return nodes and paths, for variable-length attention and recurrent layers.

        FlashAttention aligns causal masks at the end of the keys, so
        ``flash_attn_varlen_func(q, k[n.kv_index], v[n.kv_index], n.cu_seqlens_q, n.cu_seqlens_k,
        n.max_seqlen_q, n.max_seqlen_k, causal=True)`` computes the trees. Recurrent layers start
        a node from the final state of its parent.
        """
        from streampack.trees.nodes import nodes_of

        return nodes_of(self)

    def magi(self) -> dict[str, Tensor]:
        """Return the mask as arguments of MagiAttention; see `trees.slices`."""
        from streampack.trees.slices import of_trees

        return of_trees(self)

    def hf(self, model: Any = None, **options: Any) -> dict[str, Any]:  # type: ignore[override]
        """Return keyword arguments for a causal language model of Hugging Face transformers.

        There are no labels; use `loss`. `input_ids` and `position_ids` are (rows, seq_len), and
        `attention_mask` is (rows, 1, seq_len, seq_len), bool, which only SDPA takes. With `model`
        the mask is in the model's dtype, or a dictionary if its layers are of several kinds (a
        sliding window counts along a sequence, not along the row). For each new shape a small tree
        is then run through the model about ten times to verify that it computes trees. For
        FlexAttention ids are (1, T), and the mask is the result of `flex`.

        Args:
            model: the model that will be called.

        Raises:
            ConfigError: the model does not compute trees; the message has the reason.
        """
        if model is not None:
            from streampack.trees.models import arguments_for

            return arguments_for(model, self)
        return {**self._ids(), "attention_mask": self.mask()}

    def _ids(self) -> dict[str, Any]:
        """Return the arguments of models of transformers besides the mask."""
        return {
            "input_ids": self.input_ids,
            "position_ids": self.position_ids,
            "use_cache": False,
        }

    # ------------------------------------------------------------------ sequences

    @property
    def slot(self) -> Tensor:
        """(N,) int64, the slot of each sequence token in the flattened rows."""
        return self._tensors["tree slot"].long()

    @property
    def source(self) -> Tensor:
        """(N,) int64, the slot that predicts each token; -1 for the first token of a sequence."""
        return self._derived["source"]

    @property
    def sequence_ids(self) -> Tensor:
        """(N,) int64, the index of each token's sequence in the batch."""
        ends = self._tensors["tree ends"]
        number = torch.arange(len(ends) - 1, device=self.device)
        return number.repeat_interleave(ends.diff(), output_size=len(self._tensors["tree slot"]))

    @property
    def loss_mask(self) -> Tensor:
        """(N,) bool, True where a token counts in the loss; False for the first of a sequence."""
        return self._tensors["tree counted"]

    @property
    def fields(self) -> dict[str, Tensor]:
        """Token fields by name, in the dtypes that the dataset declares.

        Fields with one number per token are (N,). A field with several, on which all sequences of a
        slot agree, is (rows, seq_len, *shape), and 0 on padding; ``.flatten(0, 1)[batch.slot]`` has
        the values of each sequence.
        """
        return {
            name: values.view(self.rows, self.seq_len, *values.shape[1:])
            if values.dim() > 1
            else values
            for name, values in self._named(TOKEN_FIELD).items()
        }

    def log_probs(self, logits: Tensor) -> Tensor:
        """Return the log-probability of every sequence token, 0 for the first of each sequence.

        The values equal those of the sequences one by one, and include tokens that do not count in
        the loss. Logits of a slot that predicts several tokens are not copied.

        Args:
            logits: as in `loss`.

        Returns:
            (N,), float32 or wider.

        Raises:
            ConfigError: `logits` do not have one entry for every slot, or lack an id.
        """
        check_logits(self, logits)
        flat = logits.reshape(-1, logits.shape[-1])
        if flat.dtype in (torch.float16, torch.bfloat16):
            flat = flat.float()
        source = self.source
        wanted = self.input_ids.view(-1)[self.slot]
        try:
            log_probs = flat[source, wanted] - flat.logsumexp(dim=1)[source]
        except IndexError as error:  # on an accelerator it is a device-side assertion
            raise ConfigError(
                f"Tokens must be below the logits' vocabulary of {flat.shape[1]:,} ids, got "
                f"{int(wanted.max()):,}.",
                "Pass logits for all ids of the tokenizer.",
                setting="logits",
            ) from error
        return torch.where(source < 0, 0, log_probs)

    def loss(self, logits: Tensor, *, weights: Tensor | None = None) -> Tensor:
        """Compute the mean next-token loss over all sequences, as if each were a row by itself.

        A token that several sequences share counts in each. See `PackedBatch.loss` for ranks and
        groups of batches.

        Args:
            logits: (rows, seq_len, vocabulary), or flat, not shifted: logits at a slot predict the
                tokens after it.
            weights: (N,) factor of each token's loss, for example ``batch.fields["weights"]``.

        Raises:
            ConfigError: `logits` do not have one entry for every slot, or `weights` not one for
                every sequence token.
        """
        log_probs, counted = self.log_probs(logits), self.loss_mask
        if weights is not None and getattr(weights, "shape", None) != counted.shape:
            raise ConfigError(
                f"weights must have one entry for each of the {len(counted)} sequence tokens, got "
                f"the shape {tuple(getattr(weights, 'shape', ()))}.",
                "Pass a tensor of shape (N,), such as a token field of the batch.",
                setting="weights",
            )
        factor = counted.to(log_probs.dtype)
        if weights is not None:
            factor = factor * weights
        return -(log_probs * factor).sum() / self.num_items_in_batch

    def decode(self, number: int, tokenizer: Any = None) -> str:
        """Return the text of a sequence, special tokens included.

        Args:
            number: index of the sequence, as in `sequence_ids`.
            tokenizer: as in `PackedBatch.decode`.

        Raises:
            ConfigError: the sequence does not exist, or `tokenizer` is not a tokenizer.
        """
        if not 0 <= number < self.num_documents:
            raise ConfigError(
                f"number must be the index of one of the batch's {self.num_documents} sequences, "
                f"got {number}.",
                "Pass a value of `sequence_ids`.",
                setting="number",
            )
        slots = self.slot[self.sequence_ids == number]
        return decoder(tokenizer)(self.input_ids.view(-1)[slots].cpu().numpy())

    def show(self, tokenizer: Any = None, **options: Any) -> str:
        """Return the trees as text: a line for every sequence, without its shared prefix."""
        slot, sequence = self.slot.cpu(), self.sequence_ids.cpu()
        ids, trees = self.input_ids.view(-1).cpu(), self.document_ids.view(-1).cpu()
        text, lines, tree = decoder(tokenizer), [], -1
        shown = torch.zeros(len(ids), dtype=torch.bool)
        for number in range(self.num_documents):
            slots = slot[sequence == number]
            new = slots[~shown[slots]]
            shown[slots] = True
            if int(trees[slots[0]]) != tree:
                tree = int(trees[slots[0]])
                lines.append(f"row {int(slots[0]) // self.seq_len}, tree {tree}")
            shared = f"{len(slots) - len(new)} shared, " if len(slots) > len(new) else ""
            lines.append(
                f"  sequence {number}, {len(slots)} tokens: {shared}{text(ids[new].numpy())}"
            )
        return "\n".join(lines)

    # ------------------------------------------------------------------ making them

    def make_fields(self) -> None:
        """Make the per-slot fields now instead of on first access."""
        if self._fields is not None:
            return
        compact, slots = self._tensors, self.rows * self.seq_len
        tokens, slot, ends = compact["tokens"], self.slot, compact["tree ends"]
        depth = positions_in(ends, len(slot))
        last = slot[ends[1:].long() - 1]  # last slot of each sequence
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


_AS_FOR_ROWS = ("keys", "pairs")  # forms that are right for trees as they are
for _name, _form in vars(PackedBatch).items():
    if isinstance(_form, Form) and _name not in {*vars(TreeBatch), *_AS_FOR_ROWS}:
        setattr(TreeBatch, _name, _refused(_name, 'layout="documents"'))
