"""Megatron-LM and TransformerEngine: packed (THD) batches under context parallelism.

    python examples/megatron_batches.py

The result of a Megatron training script's `get_batch`, made from a packed batch: with context
parallelism every document is padded to a multiple of ``2 * cp_size`` (`align=`), and each rank of
the group holds the head and the tail of every document. All ranks of a context-parallel, tensor or
pipeline group load the same batch: give them the same data-parallel `Topology`.
"""

from __future__ import annotations

from typing import Any

import torch

from streampack import (
    BestFitDecreasing,
    PackedBatch,
    PackedDataset,
    PackedLoader,
    TokenRules,
    Topology,
)

try:
    from megatron.core.packed_seq_params import PackedSeqParams
except ImportError:  # shown without it, too
    PackedSeqParams = dict

CP_SIZE = 2


def get_batch(batch: PackedBatch, cp_rank: int) -> tuple[dict[str, Any], Any]:
    """For ``model(tokens, position_ids, attention_mask, labels=, packed_seq_params=)``.

    A mixture of experts also takes ``padding_mask=``, from Megatron-LM 0.16 on. Its auxiliary loss
    of a batch of padding alone is 0 / 0, so call ``model.train(batch.num_documents > 0)`` before.
    """
    tensors = batch.megatron(cp_size=CP_SIZE, cp_rank=cp_rank)
    return tensors, PackedSeqParams(**batch.packed_seq_params(cp_size=CP_SIZE))


def main() -> None:
    """The parts of two ranks, and that no token is lost between them."""
    documents = [[1 + i % 63] * (1 + i * 7 % 60) for i in range(300)]
    packer = BestFitDecreasing(seq_len=128, align=2 * CP_SIZE)
    dataset = PackedDataset(
        documents, packer=packer, lanes=1, topology=Topology(), token_rules=TokenRules(pad_id=0)
    )
    loader = PackedLoader(dataset)
    counted = 0
    for batch in loader:
        parts = [get_batch(batch, rank)[0] for rank in range(CP_SIZE)]
        tokens = torch.cat([part["tokens"] for part in parts], dim=1)
        assert torch.equal(tokens.sort().values, batch.input_ids.view(1, -1).sort().values)
        assert sum(part["loss_mask"].sum() for part in parts) == batch.num_loss_tokens
        counted += int((tokens > 0).sum())
    utilisation = loader.metrics().composition.utilisation
    print(
        f"{counted} tokens of {sum(map(len, documents))} on {CP_SIZE} context-parallel ranks, "
        f"{parts[0]['tokens'].shape[1]} slots each; rows are {utilisation:.1%} full"
    )


if __name__ == "__main__":
    main()
