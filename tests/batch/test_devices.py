"""Every tensor of a batch on a device is on that device: on a CPU alone a forgotten one passes.

The device "meta" has shapes and no values, so that a copy to the host is an error too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from streampack.batch.packed_batch import Form, PackedBatch
from tests.support.packed_batches import every_packer, packed_batches, random_documents

FORMS = [name for name, value in vars(PackedBatch).items() if isinstance(value, Form)]
#: Forms that need arguments, host memory or groups, or that refuse every batch.
OTHERS = {
    *("context_parallel", "decode", "keys", "limit_context", "loss", "numpy", "pairs"),
    *("per_token", "show"),
}

ON_HOST = {"cu_seqlens_cpu", "original_seq_len", "padded_seq_len"}  # as documented


def on_meta(attention: Any) -> PackedBatch:
    documents = random_documents([5, 23, 9, 40, 2])
    packer = every_packer(24)["BestFitDecreasing"]
    return packed_batches(documents, packer, batch_size=2, attention=attention)[0].to("meta")


def tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for name, each in value.items():
            if name not in ON_HOST:
                yield from tensors_in(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from tensors_in(each)
    elif hasattr(value, "__dict__"):
        yield from tensors_in(vars(value))


@pytest.mark.parametrize("attention", ["document", "row"])
@pytest.mark.parametrize("form", sorted({*FORMS} - OTHERS))
def test_a_form_of_a_batch_on_a_device_is_on_that_device(form: str, attention: Any) -> None:
    made = list(tensors_in(getattr(on_meta(attention), form)()))
    assert made
    assert {tensor.device.type for tensor in made} == {"meta"}


def test_limited_contexts_losses_and_values_of_a_batch_on_a_device_are_on_that_device() -> None:
    batch = on_meta("document")
    limited = batch.limit_context(8)
    assert limited.cu_seqlens.device.type == limited.labels.device.type == "meta"
    logits = torch.zeros(batch.rows, batch.seq_len, 92, device="meta")
    assert batch.loss(logits).device.type == "meta"
    values = torch.zeros(batch.num_documents, device="meta")
    assert batch.per_token(values).device.type == "meta"
