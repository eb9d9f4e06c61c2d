"""The snippets of docs/sharding.md, and one of consumers.md, give what each consumer divides."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

from streampack import BestFitDecreasing
from tests.support.packed_batches import packed_batches, random_documents

PAGE = Path(__file__).parents[2] / "docs" / "sharding.md"
CONSUMERS = PAGE.with_name("consumers.md")  # has the section on Megatron-LM
MAGI, ULYSSES = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
MEGATRON = re.findall(r"```python\n(.*?)```", CONSUMERS.read_text(), re.DOTALL)[-1]
DOCUMENTS = random_documents([13, 7, 30, 21, 2, 9])


def names_of(snippet: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(snippet, PAGE.name, "exec"), names)
    return names


def batch_of() -> Any:
    (batch,) = packed_batches(DOCUMENTS, BestFitDecreasing(seq_len=48), batch_size=2)
    return batch


def test_ranks_of_a_megatron_group_load_one_batch_and_hold_parts_of_it() -> None:
    names = names_of(MEGATRON)
    loaders = [names["loader_of"]([d.tolist() for d in DOCUMENTS], 0, 1, 2) for _ in range(2)]
    for batches in zip(*loaders, strict=True):
        parts = [names["get_batch"](batch, 2, rank)[0] for rank, batch in enumerate(batches)]
        tokens = torch.cat([part["tokens"][~part["padding_mask"]] for part in parts])
        whole = batches[0].input_ids[~batches[0].padding_mask]
        assert torch.equal(tokens.sort().values, whole.sort().values)
        assert sum(part["loss_mask"].sum() for part in parts) == batches[0].num_loss_tokens


def test_magi_gets_the_mask_of_the_whole_batch() -> None:
    batch = batch_of()
    q_ranges, k_ranges, types = names_of(MAGI)["mask_of"](batch)
    assert q_ranges == k_ranges == batch.magi()["q_ranges"].tolist()
    assert set(types) == {"causal"}


def test_deepspeeds_adapter_shifts_and_divides_batches_without_mixing_documents() -> None:
    batch = batch_of()
    given = names_of(ULYSSES)["for_ulysses"](batch)
    assert {tensor.shape for tensor in given.values()} == {(1, 96)}
    shifted = torch.nn.functional.pad(given["labels"], (0, 1), value=-100)[:, 1:]
    assert torch.equal(shifted.view(-1), batch.next_tokens().view(-1))
    gathered = torch.cat(given["position_ids"].chunk(2, dim=1), dim=1)
    starts = (gathered.view(-1) == 0).nonzero().view(-1)
    assert starts.tolist() == batch.cu_seqlens[:-1].tolist()
    assert batch.num_segments > batch.rows
