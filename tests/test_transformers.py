"""Hugging Face transformers, 4.57 and 5.x: a packed Llama is the Llama of each document.

`scripts/test_transformers5.sh` runs this file with transformers 5.
"""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from streampack import PackedBatch, WindowConfig
from streampack.packing import BestFitDecreasing, Concat, Packer, Pad, Seamless
from tests.packed_batches import VOCAB, packed_batches, random_documents
from tests.tiny_gpt import summed_loss

transformers = pytest.importorskip("transformers")
SEQ_LEN = 24
LENGTHS = [5, 23, 9, 40, 2, 1, 13, 24, 17, 8, 1, 1]
PACKERS: list[Packer] = [
    BestFitDecreasing(seq_len=SEQ_LEN),
    Concat(seq_len=SEQ_LEN),
    Pad(seq_len=SEQ_LEN, overflow="drop"),
    Seamless(seq_len=SEQ_LEN),
]


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


def batches(packer: Packer, **options: Any) -> list[PackedBatch]:
    documents = random_documents(LENGTHS)
    window = WindowConfig(window_tokens=8 * SEQ_LEN)
    return packed_batches(documents, packer, batch_tokens=2 * SEQ_LEN, window=window, **options)


def alone(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Logits (n, vocabulary) of one piece by itself."""
    return model(input_ids=ids[None], use_cache=False).logits[0]


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("packer", PACKERS, ids=lambda packer: type(packer).__name__)
def test_a_packed_llama_has_the_losses_and_gradients_of_its_documents(
    attention: str, packer: Packer
) -> None:
    tolerance = 1e-10 if attention == "sdpa" else 1e-5  # eager has its softmax in float32
    packed_model = tiny_llama(attention)
    single_model = copy.deepcopy(packed_model)
    pieces = 0
    for batch in batches(packer):
        kwargs = batch.hf()
        labels = kwargs["labels"][0]
        logits = packed_model(**kwargs).logits[0]  # its own loss is in float32
        packed = summed_loss(logits, labels)
        single = torch.zeros((), dtype=torch.float64)
        ends = batch.cu_seqlens.tolist()
        for low, high in pairwise(ends):
            if batch.document_ids.view(-1)[low] < 0:
                continue
            pieces += 1
            ids = kwargs["input_ids"][0, low:high]
            own = alone(single_model, ids)
            torch.testing.assert_close(logits[low:high], own, rtol=tolerance, atol=tolerance)
            single = single + summed_loss(own, labels[low:high])
        torch.testing.assert_close(packed, single, rtol=tolerance, atol=tolerance)
        packed.backward()
        single.backward()
    assert pieces >= len(LENGTHS) - 1
    for ours, theirs in zip(packed_model.parameters(), single_model.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=tolerance, atol=tolerance)


def test_the_models_own_loss_is_the_mean_over_the_loss_tokens_of_the_batch() -> None:
    model = tiny_llama("sdpa")
    for batch in batches(PACKERS[0]):
        kwargs = batch.hf()
        output = model(**kwargs)
        expected = summed_loss(output.logits[0], kwargs["labels"][0]) / batch.num_loss_tokens
        torch.testing.assert_close(output.loss.double(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("forbidden", ["attention_mask", "use_cache"])
def test_what_hf_leaves_out_would_make_documents_attend_to_one_another(forbidden: str) -> None:
    model = tiny_llama("sdpa")
    batch = batches(PACKERS[0])[0]
    kwargs = batch.hf()
    right = model(**kwargs).logits
    if forbidden == "attention_mask":
        kwargs["attention_mask"] = torch.ones_like(kwargs["input_ids"])
    else:
        del kwargs["use_cache"]  # a config's default is True
    assert (model(**kwargs).logits - right).abs().max() > 1e-3


def test_seq_idx_numbers_attention_segments() -> None:
    for batch in batches(PACKERS[0]):
        seq_idx = batch.hf(seq_idx=True)["seq_idx"]
        assert seq_idx.dtype == torch.int32
        assert seq_idx.shape == (1, batch.rows * batch.seq_len)
        lengths = np.diff(batch.cu_seqlens)
        np.testing.assert_array_equal(seq_idx[0], np.repeat(np.arange(len(lengths)), lengths))


def test_keys_are_those_of_transformers_own_flattening_collator() -> None:
    collator = transformers.DataCollatorWithFlattening(
        return_flash_attn_kwargs=True, return_seq_idx=True, return_tensors="pt"
    )
    theirs = collator([{"input_ids": [1, 2, 3]}, {"input_ids": [4, 5]}])
    ours = batches(PACKERS[0])[0].hf(seq_idx=True)
    assert set(ours) - {"use_cache"} == set(theirs)
    for name, value in theirs.items():
        if isinstance(value, torch.Tensor):
            assert (ours[name].dtype, ours[name].ndim) == (value.dtype, value.ndim), name
        else:
            assert type(ours[name]) is type(value), name
