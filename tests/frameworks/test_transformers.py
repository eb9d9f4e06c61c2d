"""Hugging Face transformers, 4.57 and 5.x: arguments of models and of the collator.

`scripts/test_frameworks.sh` runs this file with transformers 5.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from streampack import PackedBatch, WindowConfig
from streampack.packing import BestFitDecreasing
from tests.support.packed_batches import VOCAB, packed_batches, random_documents
from tests.support.tiny_gpt import summed_loss

transformers = pytest.importorskip("transformers")
SEQ_LEN = 24
LENGTHS = [5, 23, 9, 40, 2, 1, 13, 24, 17, 8, 1, 1]


def tiny_llama(attention: str) -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        attn_implementation=attention,
    )
    return transformers.LlamaForCausalLM(config).double()


def batches() -> list[PackedBatch]:
    documents = random_documents(LENGTHS)
    window = WindowConfig(rows=8)
    packer = BestFitDecreasing(seq_len=SEQ_LEN)
    return packed_batches(documents, packer, batch_size=2, window=window)


def test_the_models_own_loss_is_the_mean_over_the_loss_tokens_of_the_batch() -> None:
    model = tiny_llama("sdpa")
    for batch in batches():
        kwargs = batch.hf()
        output = model(**kwargs)
        expected = summed_loss(output.logits[0], kwargs["labels"][0]) / batch.num_loss_tokens
        torch.testing.assert_close(output.loss.double(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("forbidden", ["attention_mask", "use_cache"])
def test_arguments_that_hf_leaves_out_would_let_documents_attend_to_one_another(
    forbidden: str,
) -> None:
    model = tiny_llama("sdpa")
    batch = batches()[0]
    kwargs = batch.hf()
    right = model(**kwargs).logits
    if forbidden == "attention_mask":
        kwargs["attention_mask"] = torch.ones_like(kwargs["input_ids"])
    else:
        del kwargs["use_cache"]  # a config's default is True
    assert (model(**kwargs).logits - right).abs().max() > 1e-3


def test_seq_idx_numbers_attention_segments() -> None:
    for batch in batches():
        seq_idx = batch.hf(seq_idx=True)["seq_idx"]
        assert seq_idx.dtype == torch.int32
        assert seq_idx.shape == (1, batch.rows * batch.seq_len)
        lengths = np.diff(batch.cu_seqlens)
        np.testing.assert_array_equal(seq_idx[0], np.repeat(np.arange(len(lengths)), lengths))


def test_keys_match_the_flattening_collator_of_transformers() -> None:
    collator = transformers.DataCollatorWithFlattening(
        return_flash_attn_kwargs=True, return_seq_idx=True, return_tensors="pt"
    )
    theirs = collator([{"input_ids": [1, 2, 3]}, {"input_ids": [4, 5]}])
    ours = batches()[0].hf(seq_idx=True)
    assert set(ours) - {"use_cache"} == set(theirs)
    for name, value in theirs.items():
        if isinstance(value, torch.Tensor):
            assert (ours[name].dtype, ours[name].ndim) == (value.dtype, value.ndim), name
        else:
            assert type(ours[name]) is type(value), name
