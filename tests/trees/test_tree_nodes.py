"""Nodes and paths: attention from them is attention with the mask, and so are its gradients."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from streampack import PackedDataset, PackedLoader, Topology, pack, sources
from streampack.trees.nodes import TreeNodes
from tests.support.drawn import drawn
from tests.support.memory_source import numbered_documents
from tests.support.tree_reference import Group, branching, groups, plan_of


def varlen(q: Tensor, k: Tensor, v: Tensor, nodes: TreeNodes) -> Tensor:
    """Like flash_attn_varlen_func with causal=True: queries are the last ones of their keys."""
    assert nodes.max_seqlen_q == int(nodes.cu_seqlens_q.diff().max())
    assert nodes.max_seqlen_k == int(nodes.cu_seqlens_k.diff().max())
    k, v = k[nodes.kv_index], v[nodes.kv_index]
    out = []
    for m in range(len(nodes.parents)):
        own, path = (slice(*ends[m : m + 2].tolist()) for ends in nodes[:2])
        scores = q[own] @ k[path].T
        hidden = torch.ones_like(scores, dtype=torch.bool).triu(1 + scores.shape[1] - len(scores))
        out.append(scores.masked_fill(hidden, -torch.inf).softmax(1) @ v[path])
    return torch.cat(out)


def cascade(q: Tensor, k: Tensor, v: Tensor, nodes: TreeNodes) -> Tensor:
    """Node by node of the path, merged by the logarithms of the sums of exponentials."""
    out = []
    bounds = nodes.cu_seqlens_q.tolist()
    for m in range(len(nodes.parents)):
        own = slice(bounds[m], bounds[m + 1])
        parts, sums, at = [], [], m
        while at >= 0:
            keys = slice(bounds[at], bounds[at + 1])
            scores = q[own] @ k[keys].T
            if at == m:
                hidden = torch.ones_like(scores, dtype=torch.bool).triu(1)
                scores = scores.masked_fill(hidden, -torch.inf)
            sums.append(scores.logsumexp(1))
            parts.append(scores.softmax(1) @ v[keys])
            at = int(nodes.parents[at])
        share = torch.stack(sums).softmax(0)
        out.append((share[:, :, None] * torch.stack(parts)).sum(0))
    return torch.cat(out)


def assert_is_masked_attention(batch: Any) -> TreeNodes:
    nodes: TreeNodes = batch.nodes()
    slots = batch.rows * batch.seq_len
    generator = torch.Generator().manual_seed(0)
    given = torch.randn((3, slots, 4), generator=generator, dtype=torch.float64)
    weight = torch.randn((slots, 4), generator=generator, dtype=torch.float64)
    real = batch.document_ids.view(-1) >= 0
    seen = torch.block_diag(*batch.mask()[:, 0])

    def masked(q: Tensor, k: Tensor, v: Tensor, _: TreeNodes) -> Tensor:
        return (q @ k.T).masked_fill(~seen, -torch.inf).softmax(1) @ v

    found = []
    for attention in (masked, varlen, cascade):
        inputs = given.clone().requires_grad_()
        out = attention(*inputs, nodes)[real]
        (out * weight[real]).sum().backward()
        assert inputs.grad is not None
        found.append((out, inputs.grad))
    for out, gradient in found[1:]:
        torch.testing.assert_close(out, found[0][0], rtol=0, atol=1e-12)
        torch.testing.assert_close(gradient[:, real], found[0][1][:, real], rtol=0, atol=1e-12)
    ends = torch.zeros(slots + 1, dtype=torch.bool)
    ends[nodes.cu_seqlens_q.long()] = True
    for number in range(batch.num_documents):
        last = batch.slot[batch.sequence_ids == number][-1]
        assert ends[last + 1]  # so a sequence is whole nodes
    return nodes


@given(st.lists(groups(empty=False), min_size=1, max_size=4), st.sampled_from([1, 4]))
@example([[[1, 2], [1, 2], [1, 2]]], 1)
@example([[[1, 2, 3], [1, 2], [1]]], 4)
@example([[[1] * 48]], 1)
@example([[[1] * 47, [1] * 46 + [2]]], 1)
@drawn(100)
def test_attention_from_nodes_is_attention_with_the_mask(drawn: list[Group], align: int) -> None:
    plan, ids, _ = plan_of(drawn, seq_len=48, align=align)
    for batch in plan.batches(ids):
        assert_is_masked_attention(batch)


def test_nodes_of_several_rows_lie_in_the_flattened_rows() -> None:
    documents = numbered_documents([5, 9, 14, 3, 8, 20, 7, 2, 11, 6])
    dataset = PackedDataset(
        sources.Items(branching(documents, 24)), seq_len=32, batch_size=3, layout="tree",
        topology=Topology(),
    )  # fmt: skip
    (batch,) = PackedLoader(dataset)
    nodes = assert_is_masked_attention(batch)
    assert int(nodes.cu_seqlens_q[-1]) == 96


def test_nodes_of_a_prompt_and_its_answers() -> None:
    ids = [[5, 6, 7, 1, 2], [5, 6, 7, 1, 3, 4], [5, 6, 7, 8]]
    plan = pack([5, 6, 4], ids=ids, groups=[0] * 3, layout="tree", seq_len=10)
    (batch,) = plan.batches(ids)
    nodes = batch.nodes()
    assert nodes.cu_seqlens_q.tolist() == [0, 3, 4, 5, 7, 8, 10]
    assert nodes.parents.tolist() == [-1, 0, 1, 1, 0, -1]
    paths = [path.tolist() for path in nodes.kv_index.split(nodes.cu_seqlens_k.diff().tolist())]
    assert paths == [
        [0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4], [0, 1, 2, 3, 5, 6], [0, 1, 2, 7], [8, 9],
    ]  # fmt: skip
    assert (nodes.max_seqlen_q, nodes.max_seqlen_k) == (3, 6)


def test_a_batch_without_documents_is_one_node_of_padding() -> None:
    plan = pack(
        [2, 2], ids=[[1, 2], [1, 3]], groups=[0, 0], layout="tree", seq_len=8,
        microbatches=2,
    )  # fmt: skip
    empty = [b for b in plan.batches([[1, 2], [1, 3]]) if not b.num_documents]
    assert [b.nodes().cu_seqlens_q.tolist() for b in empty] == [[0, 8]]
