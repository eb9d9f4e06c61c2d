"""A corpus with very unequal numbers of loss tokens per batch, and lanes that end early."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch

from streampack import PackedDataset, TokenRules, Topology
from streampack.packing import BestFitDecreasing
from tests.support.memory_source import numbered_documents
from tests.support.runs import EqualShards

SEQ_LEN = 16
VOCABULARY = 50
DOCUMENTS = [
    d % VOCABULARY for d in numbered_documents([3, 9, 16, 4, 12, 7, 5] * 6, dtype="uint16")
]


def dataset(rank: int = 0, world_size: int = 1) -> PackedDataset:
    """One lane of six has nearly everything, so others are dry long before it."""
    bounds = [0, 30, 33, 34, 36, 40, 42]
    source = EqualShards([DOCUMENTS[a:b] for a, b in pairwise(bounds)], block_documents=3)
    return PackedDataset(
        source,
        packer=BestFitDecreasing(seq_len=SEQ_LEN),
        batch_size=2,
        lanes=6,
        token_rules=TokenRules(pad_id=0),
        topology=Topology(rank, world_size),
    )


def double_llama() -> Any:
    """A tiny Llama of transformers in double precision, the same every time."""
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).double()
