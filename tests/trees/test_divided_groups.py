"""Groups that are longer than a row: divided at nodes, learnt as their sequences one by one."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from streampack import pack
from streampack.errors import PlanError
from tests.support.drawn import drawn
from tests.support.tiny_families import VOCABULARY, tiny_model
from tests.support.tiny_gpt import TinyGPT
from tests.support.tree_reference import Group, groups, plan_of
from tests.trees.test_models import in_double

DRAWN = st.lists(groups(empty=False), min_size=1, max_size=4)


@given(
    DRAWN, st.integers(0, 6), st.integers(1, 3), st.sampled_from([1, 4]),
    st.sampled_from([None, "rank"]),
)  # fmt: skip
@example([[[1, 2]] * 9], 0, 2, 1, None)
@example([[[1, 2, 3, 4], [1, 2, 3, 1], [1, 2, 2, 2], [2, 2, 2, 2]]], 0, 3, 1, "rank")
@drawn(150)
def test_every_sequence_is_learnt_once_with_the_gradients_that_it_has_alone(
    found: list[Group], room: int, ranks: int, align: int, within: Literal["rank"] | None
) -> None:
    longest = max(len(sequence) for group in found for sequence in group)
    seq_len = -(-max(longest + room, 2) // align) * align
    plan, ids, own = plan_of(found, seq_len=seq_len, ranks=ranks, align=align, within=within)
    model, seen = TinyGPT(5), []
    masks = [torch.rand(len(one), generator=torch.Generator().manual_seed(7)) < 0.7 for one in ids]
    count = 0
    for rank in range(ranks):
        for batch in plan.batches(ids, rank=rank, loss_mask=masks):
            assert batch.seq_len == seq_len
            seen += batch.provenance["index"].tolist()
            count += batch.num_loss_tokens
            logits = model.attend(batch.input_ids[0], batch.position_ids[0], batch.mask()[0, 0])
            (-batch.log_probs(logits)[batch.loss_mask].sum()).backward()
    assert sorted(seen) == list(range(len(ids)))
    assert count == sum(int(mask[1:].sum()) for mask in masks)
    alone = TinyGPT(5)
    for sequence, mask in zip(map(torch.tensor, ids), masks, strict=True):
        length = len(sequence)
        causal = torch.ones(length, length).tril() > 0
        logits = alone.attend(sequence, torch.arange(length), causal)
        learnt = logits[:-1].log_softmax(1).gather(1, sequence[1:, None])[:, 0]
        (-(learnt * mask[1:]).sum()).backward()
    for one, other in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=1e-12)
    if within == "rank":
        of_rank = [{own[i] for i in plan.documents(rank).tolist()} for rank in range(ranks)]
        assert sum(map(len, of_rank)) == len(found)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3", "mixtral"])
def test_models_learn_a_divided_group_as_its_sequences_one_by_one(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    softmax = torch.nn.functional.softmax
    monkeypatch.setattr(torch.nn.functional, "softmax", lambda x, dim, **_: softmax(x, dim))
    model = in_double(tiny_model(family, "sdpa", seconds=60))
    rng = np.random.default_rng(0)
    prompt, turn = rng.integers(2, VOCABULARY, 9), rng.integers(2, VOCABULARY, 4)
    answers = [rng.integers(2, VOCABULARY, n) for n in (3, 7, 2, 8, 5)]
    ids = [np.concatenate([prompt, answer]) for answer in answers]
    ids += [np.concatenate([prompt, turn, answer]) for answer in answers]
    plan, ids, _ = plan_of([[one.tolist() for one in ids]], seq_len=32, ranks=2)
    assert len(set(plan.group.tolist())) > 1
    for rank in range(2):
        for batch in plan.batches(ids, rank=rank):
            logits = model(**batch.hf(model=model)).logits
            (batch.loss(logits) * batch.num_loss_tokens).backward()
    divided = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    for one in map(torch.tensor, ids):
        logits = model(input_ids=one[None], use_cache=False).logits[0, :-1]
        (-logits.log_softmax(-1).gather(1, one[1:, None]).sum()).backward()
    scale = max(float(p.grad.abs().max()) for p in model.parameters() if p.grad is not None)
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(
                divided[name], parameter.grad, rtol=0, atol=1e-12 * max(scale, 1), msg=name
            )


def rollouts(seed: int, count: int, answers: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Lengths of the answers of ordinary steps, with their prompts, and lengths of the prompts."""
    rng = np.random.default_rng(seed)
    prompts = np.repeat(rng.integers(300, 1500, count), answers)
    scale = np.repeat(rng.lognormal(0, 0.6, count), answers)
    lengths = np.clip(rng.lognormal(6.3, 0.7, count * answers) * scale, 8, 16_000).astype(np.int64)
    return prompts + lengths, prompts


@pytest.mark.parametrize(("count", "answers"), [(64, 16), (256, 8)])
@pytest.mark.parametrize("seed", range(4))
def test_steps_have_the_fewest_level_micro_batches_and_repeat_few_prompts(
    seed: int, count: int, answers: int
) -> None:
    lengths, prompts = rollouts(seed, count, answers)
    group = np.arange(count).repeat(answers)
    plan = pack(lengths, groups=group, prefix=prompts, layout="tree", seq_len=32_768, ranks=8)
    distinct = int((lengths - prompts).sum() + prompts[::answers].sum())
    assert plan.microbatches <= -(-1.03 * distinct // (8 * 32_768))
    assert plan.tokens.max() <= 32_768
    assert plan.tokens.sum() <= 1.015 * distinct
    assert plan.imbalance <= 1.025


def test_a_group_is_divided_into_the_fewest_parts() -> None:
    lengths, shared = [60] * 10, 50  # 50 + 10 * 10 slots
    for seq_len, parts in ((150, 1), (149, 2), (100, 2), (99, 3), (60, 10)):
        plan = pack(
            lengths, groups=[0] * 10, prefix=shared, layout="tree", seq_len=seq_len, within="rank"
        )
        assert plan.microbatches == len(set(plan.group.tolist())) == parts


def test_only_a_sequence_that_is_longer_than_a_row_is_refused() -> None:
    pack([60] * 10, groups=[0] * 10, prefix=50, layout="tree", seq_len=60, ranks=3)
    with pytest.raises(PlanError) as error:
        pack([60] * 9 + [61], groups=[0] * 10, prefix=50, layout="tree", seq_len=60)
    assert error.value.setting == "seq_len"
    with pytest.raises(PlanError) as error:
        pack([60] * 10, groups=[0] * 10, prefix=50, layout="tree", seq_len=60, microbatches=9)
    assert error.value.setting == "microbatches"
