"""Batches of trees in memory: losses and gradients equal the values for single sequences."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_mask

from streampack import pack
from streampack.errors import ConfigError, PlanError
from streampack.trees.batch import TreeBatch
from tests.support.drawn import drawn
from tests.support.tiny_gpt import TinyGPT
from tests.support.tree_reference import Group, groups, plan_of, reference

VOCABULARY = 5


def batches_of(drawn: list[Group], seq_len: int = 48, **options: Any) -> list[Any]:
    planned = {n: options.pop(n) for n in ("align", "microbatches") if n in options}
    plan, ids, _ = plan_of(drawn, seq_len=seq_len, within="row", **planned)
    made = list(plan.batches(ids, **options))
    assert sum(batch.composition.shared for batch in made) == plan.shared_tokens
    assert [batch.num_tokens for batch in made] == plan.tokens[0].tolist()
    return made


DRAWN = st.lists(groups(empty=False), min_size=1, max_size=4)
CASES = (
    [[[1, 2], [1, 2], [1, 2]]],
    [[[1, 2, 3], [1, 2], [1]]],
    [[[1], [1, 2], [1, 2, 3], [4]]],
    [[[1], [2], [3]], [[1, 2, 3, 4, 1, 2]]],
)


@given(DRAWN, st.sampled_from([1, 4]))
@example(CASES[0], 1)
@example(CASES[1], 4)
@drawn(200)
def test_slots_and_masks_match_the_reference(drawn: list[Group], align: int) -> None:
    found = []
    for batch in batches_of(drawn, align=align):
        assert isinstance(batch, TreeBatch)
        sequence, mask = batch.sequence_ids, batch.mask()[0, 0]
        seen = torch.zeros_like(mask)
        index, trees = batch.provenance["index"], batch.document_fields["group_ids"]
        places = [g for g, group in enumerate(drawn) for _ in group]
        for tree in sorted(set(trees.tolist())):
            members = torch.nonzero(trees == tree).flatten().tolist()
            group = drawn[places[int(index[members[0]])]]
            found += index[members].tolist()
            ids, depths, ends, slots = reference(group)
            start = int(batch.slot[sequence == members[0]][0])
            own = slice(start, start + len(ids))
            assert start % align == 0
            assert batch.input_ids[0, own].tolist() == ids
            assert batch.position_ids[0, own].tolist() == depths
            assert (batch.tout[0, own] - start).tolist() == ends
            assert (batch.document_ids[0, own] == tree).all()
            for number, expected in zip(members, slots, strict=True):
                at = batch.slot[sequence == number]
                assert (at - start).tolist() == expected
                assert batch.source[sequence == number].tolist() == [-1, *at[:-1].tolist()]
                assert batch.decode(number) == " ".join(map(str, batch.input_ids[0, at].tolist()))
                seen[at[:, None], at[None, :]] = at[:, None] >= at[None, :]
        padding = batch.document_ids[0] < 0
        assert torch.equal(mask, seen | torch.diag(padding))
        assert torch.equal(batch.tin[0], torch.arange(batch.seq_len))
    assert sorted(found) == list(range(sum(map(len, drawn))))


def test_tout_is_also_right_with_several_rows_and_on_a_copy_in_another_place() -> None:
    (batch,) = batches_of([[[1, 2, 3], [1, 4]]])
    again = batch._moved(lambda buffer: buffer.clone())
    assert again._packed is None
    for name in ("input_ids", "position_ids", "tout", "slot", "source", "loss_mask"):
        assert torch.equal(getattr(batch, name), getattr(again, name)), name


@given(DRAWN, st.booleans())
@example(CASES[0], False)
@example(CASES[1], False)
@example(CASES[2], False)
@example(CASES[3], True)
@drawn(60)
def test_loss_and_gradients_match_sequences_one_by_one(drawn: list[Group], weighted: bool) -> None:
    sequences = [torch.tensor(sequence) for group in drawn for sequence in group]
    generator = torch.Generator().manual_seed(0)
    weights = [torch.rand(len(s), generator=generator, dtype=torch.float64) for s in sequences]
    masks = [torch.rand(len(s), generator=generator) < 0.7 for s in sequences]
    for batch in batches_of(drawn, token_fields={"weights": weights}, loss_mask=masks):
        model = TinyGPT(VOCABULARY)
        logits = model.attend(batch.input_ids[0], batch.position_ids[0], batch.mask()[0, 0])
        own = batch.fields["weights"] if weighted else None
        loss = batch.loss(logits, weights=own)
        loss.backward()
        shared = [p.grad.clone() for p in model.parameters()]
        log_probs = batch.log_probs(logits)

        model = TinyGPT(VOCABULARY)
        total, count = torch.zeros((), dtype=torch.float64), 0
        for number, i in enumerate(batch.provenance["index"].tolist()):
            ids, length = sequences[i], len(sequences[i])
            alone = model.attend(ids, torch.arange(length), torch.ones(length, length).tril() > 0)
            expected = alone[:-1].log_softmax(dim=1).gather(1, ids[1:, None])[:, 0]
            found = log_probs[batch.sequence_ids == number]
            assert found[0] == 0
            torch.testing.assert_close(found[1:], expected, rtol=0, atol=1e-12)
            factor = masks[i][1:] * (weights[i][1:] if weighted else 1)
            total = total - (expected * factor).sum()
            count += int(masks[i][1:].sum())
        assert batch.num_loss_tokens == count
        total = total / max(count, 1)
        torch.testing.assert_close(loss, total, rtol=0, atol=1e-12)
        total.backward()
        for one, parameter in zip(shared, model.parameters(), strict=True):
            torch.testing.assert_close(one, parameter.grad, rtol=0, atol=1e-12)


@given(DRAWN, st.sampled_from([4, 7, 16, 64]), st.sampled_from([None, 1, 3]))
@drawn(100)
def test_the_block_mask_is_the_mask(
    drawn: list[Group], block_size: int, window: int | None
) -> None:
    for batch in batches_of(drawn):
        found = batch.flex(block_size, window=window)
        seen, depth = batch.mask()[0, 0], batch.position_ids[0]
        if window is not None:
            seen = seen & (depth[:, None] - depth[None, :] < window)
        slots = batch.seq_len
        dense = create_mask(found.mask_mod, 1, 1, slots, slots, device="cpu")[0, 0]
        assert torch.equal(dense, seen)
        blocks = -(-slots // block_size)
        some, full = (
            {(q, int(k)) for q in range(blocks) for k in indices[0, 0, q, : int(count[0, 0, q])]}
            for count, indices in (
                (found.kv_num_blocks, found.kv_indices),
                (found.full_kv_num_blocks, found.full_kv_indices),
            )
        )
        assert not some & full
        for q in range(blocks):
            for k in range(blocks):
                part = dense[q * block_size :, k * block_size :][:block_size, :block_size]
                listed = (q, k) in some | full
                assert listed == bool(part.any()) or (listed and window is not None)
                assert part.all() or (q, k) not in full


def test_a_known_prompt_length_plans_without_ids() -> None:
    prompt, answers = [1, 2, 3], [[4], [5, 6], [7]]
    ids = [prompt + answer for answer in answers]
    lengths = [len(each) for each in ids]
    plan = pack(lengths, groups=["a"] * 3, layout="tree", seq_len=8, prefix=3)
    (batch,) = plan.batches(ids)
    assert batch.num_tokens == plan.tokens.sum() == 7
    assert plan.costs.sum() < pack(lengths, seq_len=16).costs.sum()
    wrong = pack(lengths, groups=["a"] * 3, layout="tree", seq_len=8, prefix=4)
    with pytest.raises(ConfigError) as error:
        list(wrong.batches(ids))
    assert error.value.setting == "prefix"


def test_a_group_that_fits_no_row_and_must_not_be_divided_is_refused_with_its_size() -> None:
    with pytest.raises(PlanError, match="7 slots") as error:
        pack([4, 5, 4], groups=[0] * 3, layout="tree", seq_len=6, prefix=3, within="row")
    assert error.value.setting == "seq_len"


@pytest.mark.parametrize("given", [{}, {"ids": [[1], [2]], "prefix": 1}, {"prefix": [1, 2, 3]}])
def test_shared_arguments_are_named_in_one_way(given: Any) -> None:
    with pytest.raises(ConfigError) as error:
        pack([1, 1], layout="tree", seq_len=8, **given)
    assert error.value.setting == "prefix"


@pytest.mark.parametrize("name", ["labels", "cu_seqlens", "seq_idx"])
def test_attributes_that_trees_lack_are_refused_by_name(name: str) -> None:
    (batch,) = batches_of([[[1, 2], [1, 3]]])
    with pytest.raises(ConfigError) as error:
        getattr(batch, name)
    assert error.value.setting == "layout"


def test_wrong_logits_and_weights_are_refused() -> None:
    (batch,) = batches_of([[[1, 2], [1, 3]]])
    for logits in (torch.zeros(1, 3, 9), torch.zeros(1, 48, 3)):
        with pytest.raises(ConfigError) as error:
            batch.loss(logits)
        assert error.value.setting == "logits"
    with pytest.raises(ConfigError) as error:
        batch.loss(torch.zeros(1, 48, 9), weights=torch.ones(1, 48))
    assert error.value.setting == "weights"


@pytest.mark.slow
def test_who_packs_plain_documents_never_imports_trees() -> None:
    program = (
        "import sys, streampack\n"
        "dataset = streampack.PackedDataset([[1, 2, 3]] * 9, seq_len=8, "
        "topology=streampack.Topology())\n"
        "list(streampack.PackedLoader(dataset))[0].labels\n"
        "list(streampack.pack([1], seq_len=4).batches([[1]]))[0].labels\n"
        "print([name for name in sys.modules if name.startswith('streampack') and 'tree' in name])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_an_empty_micro_batch_has_no_loss() -> None:
    empty = [b for b in batches_of([[[1, 2], [1, 3]]], microbatches=2) if not b.num_documents]
    for batch in empty:
        logits = torch.zeros(1, 48, VOCABULARY, requires_grad=True)
        loss = batch.loss(logits)
        loss.backward()
        assert loss == 0
        assert logits.grad.isfinite().all()
    assert len(empty) == 1
