"""Megatron-LM's router, over gloo: its auxiliary loss leaves out the padding of batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from streampack import BestFitDecreasing, PackedBatch, PackedDataset, PackedLoader, Topology
from tests.support.packed_batches import VOCAB, packed_batches, random_documents
from tests.support.stores import free_port

pytest.importorskip("megatron.core.transformer.moe.router")

EXPERTS, WIDTH = 4, 8


def batch_of() -> PackedBatch:
    packer = BestFitDecreasing(seq_len=32, align=8)
    (batch,) = packed_batches(random_documents([13, 7, 3, 21]), packer, batch_size=4)
    assert batch.padding_mask.float().mean() > 0.5
    return batch


def padding_alone() -> PackedBatch:
    """Padding as ranks get it after their last document, until all ranks have ended."""
    packer = BestFitDecreasing(seq_len=32, align=8)
    dataset = PackedDataset([[1, 2]], packer=packer, batch_size=4, topology=Topology())
    empty: PackedBatch = PackedLoader(dataset)._run.empty_batch(0, 1)
    assert empty.num_documents == 0
    assert empty.padding_mask.all()
    return empty


def router_of(train: bool) -> Any:
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.transformer.moe.router import TopKRouter
    from megatron.core.transformer.transformer_config import TransformerConfig

    config = TransformerConfig(
        num_layers=1, hidden_size=WIDTH, num_attention_heads=2, num_moe_experts=EXPERTS,
        moe_router_topk=2, moe_router_load_balancing_type="aux_loss", moe_aux_loss_coeff=1.0,
        moe_router_dtype="fp64", use_cpu_initialization=True,
    )  # fmt: skip
    world = dist.group.WORLD
    groups = ProcessGroupCollection()
    groups.tp = groups.cp = groups.tp_cp = groups.tp_dp_cp = world
    router = TopKRouter(config, pg_collection=groups).double().train(train)
    router.set_layer_number(1)
    return router


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


TABLE, WEIGHT = drawn(VOCAB, WIDTH, seed=0), drawn(WIDTH, EXPERTS, seed=1)


def gradient(ids: torch.Tensor, padding: torch.Tensor | None, train: bool = True) -> torch.Tensor:
    """Return the gradient of the auxiliary loss, summed over ranks; `ids`, `padding`: (1, n)."""
    weight = WEIGHT.clone().requires_grad_()
    logits = TABLE[ids].transpose(0, 1) @ weight  # its own product is made on a GPU alone
    mask = None if padding is None else padding.transpose(0, 1)
    probs, _ = router_of(train).routing(logits, padding_mask=mask)
    (probs.sum() * 0).backward()
    assert weight.grad is not None
    dist.all_reduce(weight.grad)
    return weight.grad


def expected_gradient(ids: torch.Tensor) -> torch.Tensor:
    """The same of the tokens (n,) in one process, by the definition of the loss."""
    weight = WEIGHT.clone().requires_grad_()
    shares = (TABLE[ids] @ weight).softmax(-1)
    chosen = torch.zeros_like(shares).scatter(1, shares.topk(2).indices, 1)
    loss = EXPERTS / 2 * (chosen.mean(0) * shares.mean(0)).sum()
    return torch.autograd.grad(loss, weight)[0]


def compare(rank: int, ranks: int, port: str) -> None:
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=ranks)
    batch = batch_of()
    part: Any = batch.megatron(cp_size=ranks, cp_rank=rank)
    found = gradient(part["tokens"], part["padding_mask"])
    unmasked = gradient(part["tokens"], None)
    expected = expected_gradient(batch.input_ids[~batch.padding_mask])
    scale = float(expected.abs().max())
    empty: Any = padding_alone().megatron(cp_size=ranks, cp_rank=rank)
    nothing = empty["tokens"], empty["padding_mask"]
    assert gradient(*nothing).isnan().all()  # the mean over no token, as of Megatron-LM 0.16
    assert not gradient(*nothing, train=False).any()  # so the page recommends it
    assert float((unmasked - expected).abs().max()) > 0.1 * scale
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6 * scale)
    dist.destroy_process_group()


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_auxiliary_loss_of_padded_rows_has_the_gradients_of_their_tokens_alone(ranks: int) -> None:
    mp.spawn(compare, args=(ranks, str(free_port())), nprocs=ranks)
