"""Auxiliary losses of routers: padding has no part in them, or the model is refused by name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from streampack import (
    BestFitDecreasing,
    PackedBatch,
    PackedDataset,
    PackedLoader,
    Pad,
    TokenRules,
    Topology,
    check_isolation,
    pack,
)
from streampack.errors import ConfigError
from streampack.hf.router_loss import RouterLoss
from streampack.packing import Packer
from tests.support.packed_batches import packed_batches, random_documents

transformers = pytest.importorskip("transformers")

from tests.support.tiny_families import tiny_model  # noqa: E402

FAMILIES = (
    *("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "flex_olmo"),
    *("granitemoe", "granitemoeshared", "phimoe", "gpt_oss"),
)
#: Families that keep documents apart by a mask alone: all of transformers 4, and these of 5.
BY_MASK = {"gpt_oss"} if transformers.__version__ >= "5" else {
    *("qwen2_moe", "olmoe", "granitemoe", "granitemoeshared", "phimoe", "gpt_oss")
}  # fmt: skip
#: Further families that `RouterLoss` serves, tried in rows of one segment, and their settings.
BESIDE: dict[str, dict[str, Any]] = {
    "ernie4_5_moe": {"moe_layer_start_index": 0},
    "jamba": {"use_mamba_kernels": False},
    "jetmoe": {},
    "minimax": {"layer_types": ["full_attention", "linear_attention"]},
}
if transformers.__version__ < "5":  # its models cannot be made by transformers 5.24
    BESIDE["dbrx"] = {}
#: Families with routers that return probabilities.
GIVE_SHARES = {"dbrx"} if transformers.__version__ < "5" else set()
PAGE = Path(__file__).parents[2] / "docs" / "families.md"
DOCUMENTS = random_documents([9, 14, 3, 5, 1, 12])


def model_of(family: str, **settings: Any) -> Any:
    model = tiny_model(family, "eager", output_router_logits=True, **settings).double()
    model.config._experts_implementation = "eager"  # transformers 5 multiplies no double otherwise
    return model


def batch_of(packer: Packer, rows: int = 4) -> PackedBatch:
    (batch,) = packed_batches(DOCUMENTS, packer, batch_size=rows)
    assert batch.num_tokens < 0.7 * batch.rows * batch.seq_len
    return batch


def documents_of(batch: PackedBatch) -> list[Tensor]:
    ids, document = batch.input_ids.view(-1), batch.document_ids.view(-1)
    return [ids[document == number] for number in range(batch.num_documents)]


def expected_loss(model: Any, batch: PackedBatch) -> tuple[Tensor, Tensor]:
    """The loss of the documents one by one, and the auxiliary loss of all their tokens together."""
    routed: list[list[Tensor]] = []
    total = torch.zeros((), dtype=torch.float64)
    for ids in documents_of(batch):
        alone: dict[str, Any] = {"input_ids": ids[None], "use_cache": False}
        layers = model.get_decoder()(**alone, output_router_logits=True).router_logits
        routed.append([layer.reshape(len(ids), -1) for layer in layers])
        logits = model(**alone, output_router_logits=False).logits
        total = total + torch.nn.functional.cross_entropy(logits[0, :-1], ids[1:], reduction="sum")
    slots = torch.cat([torch.cat(layer) for layer in zip(*routed, strict=True)])
    shares = slots if model.config.model_type in GIVE_SHARES else slots.softmax(-1)
    chosen = torch.zeros_like(shares).scatter(1, shares.topk(2).indices, 1)
    auxiliary = shares.shape[1] * (chosen.mean(0) * shares.mean(0)).sum()
    return total / batch.num_loss_tokens, auxiliary


def gradients(model: Any, loss: Tensor) -> list[Tensor]:
    used = [p for p in model.parameters() if p.requires_grad]
    found = torch.autograd.grad(loss, used, allow_unused=True)
    return [one for one in found if one is not None]


def assert_as_documents(model: Any, batch: PackedBatch, arguments: dict[str, Any]) -> None:
    output = model(**arguments)
    loss, auxiliary = expected_loss(model, batch)
    whole = loss + model.router_aux_loss_coef * auxiliary
    # Some of these losses are computed in single precision.
    torch.testing.assert_close(output.aux_loss.double(), auxiliary.double(), rtol=2e-6, atol=0)
    torch.testing.assert_close(output.loss.double(), whole.double(), rtol=2e-6, atol=0)
    for got, wanted in zip(gradients(model, output.loss), gradients(model, whole), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(batch.loss(output.logits).double(), loss.double(), rtol=1e-6, atol=0)
    weights = torch.rand(batch.rows, batch.seq_len, dtype=torch.float64)
    logits = model(**batch.hf()).logits if "attention_mask" not in arguments else None
    if logits is not None:
        weighted = batch.loss(output.logits, weights=weights)
        torch.testing.assert_close(weighted, batch.loss(logits, weights=weights))


@pytest.mark.parametrize("family", FAMILIES)
def test_losses_of_a_padded_batch_match_its_documents_or_the_model_is_refused(
    family: str,
) -> None:
    model, batch = model_of(family), batch_of(BestFitDecreasing(seq_len=23))
    if family in BY_MASK:
        with pytest.raises(ConfigError) as caught:
            batch.hf(model=model)
        assert caught.value.setting == "model"
        assert "output_router_logits=True" in caught.value.fact
        return
    arguments = batch.hf(model=model)
    assert_as_documents(model, batch, arguments)


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_of_one_segment_work_for_every_model_by_the_refusals_advice(family: str) -> None:
    whole = {"sliding_window": None} if family == "phimoe" else {}
    model, batch = model_of(family, **whole), batch_of(Pad(seq_len=15), rows=8)
    assert not batch.document_ids[-1].max() >= 0  # a row of padding
    assert_as_documents(model, batch, batch.hf(model=model))


def test_a_model_that_gives_nan_where_only_padding_is_in_its_window_is_refused() -> None:
    if transformers.__version__ >= "5":
        pytest.skip("it gives finite numbers there")
    with pytest.raises(ConfigError) as caught:
        batch_of(Pad(seq_len=15), rows=8).hf(model=model_of("phimoe"))
    assert "NaN" in caught.value.fact


@pytest.mark.parametrize("packer", [BestFitDecreasing(seq_len=23), Pad(seq_len=15)])
def test_a_batch_of_padding_alone_has_no_part_in_any_loss(packer: Packer) -> None:
    model = model_of("mixtral")
    rules = TokenRules(pad_id=0, eos_id=1)
    dataset = PackedDataset(
        [[1, 2]], packer=packer, batch_size=2, token_rules=rules, topology=Topology()
    )
    empty = PackedLoader(dataset)._run.empty_batch(0, 1)
    assert empty.num_documents == 0
    output = model(**empty.hf(model=model))
    assert output.loss == 0
    assert not any(found.any() for found in gradients(model, output.loss))


def test_static_shapes_cannot_leave_padding_out() -> None:
    model, batch = model_of("mixtral"), batch_of(BestFitDecreasing(seq_len=23))
    with pytest.raises(ConfigError) as caught:
        batch.hf(model=model, segments=32)
    assert "segments=" in caught.value.fact


def test_full_rows_are_passed_as_they_are() -> None:
    model = model_of("mixtral")
    (batch,) = packed_batches(
        random_documents([8, 4, 12]), BestFitDecreasing(seq_len=12), batch_size=2
    )
    assert batch.num_tokens == 24
    assert batch.hf(model=model)["input_ids"].shape == (1, 24)


def test_of_trees_a_model_with_an_auxiliary_loss_is_refused() -> None:
    ids = [[1, 2, 3, 4], [1, 2, 5, 6]]
    plan = pack([4, 4], ids=ids, groups=[0, 0], layout="tree", seq_len=16, microbatches=1)
    (batch,) = plan.batches(ids)
    with pytest.raises(ConfigError) as caught:
        batch.hf(model=model_of("mixtral"))
    assert "output_router_logits=True" in caught.value.fact


@pytest.mark.parametrize("family", sorted({*FAMILIES} - BY_MASK))
def test_check_isolation_finds_padding_in_the_auxiliary_loss(family: str) -> None:
    model, batch = model_of(family), batch_of(BestFitDecreasing(seq_len=23))
    _, auxiliary = expected_loss(model, batch)
    assert float(model(**batch.hf()).aux_loss) != pytest.approx(float(auxiliary), rel=1e-4)
    found = check_isolation(model, batch)
    assert not found
    assert not found.leaks
    assert 0.05 < found.padding_in_router_loss < float("inf")
    assert check_isolation(model, batch, call=lambda batch: model(**batch.hf(model=model)))
    model.config.output_router_logits = False
    assert check_isolation(model, batch)


def test_of_rows_of_one_segment_padding_enters_no_auxiliary_loss() -> None:
    model, batch = model_of("olmoe"), batch_of(Pad(seq_len=15), rows=8)
    assert check_isolation(model, batch, call=lambda batch: model(**batch.hf(model=model)))


@pytest.mark.parametrize("family", FAMILIES)
def test_beside_the_model_the_auxiliary_loss_matches_the_documents(family: str) -> None:
    model, batch = model_of(family), batch_of(BestFitDecreasing(seq_len=23))
    loss, auxiliary = expected_loss(model, batch)
    expected = loss + model.router_aux_loss_coef * auxiliary
    model.config.output_router_logits = False
    names: dict[str, Any] = {}
    (snippet,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(compile(snippet, PAGE.name, "exec"), names)
    found = names["loss_of"](model, batch)
    with RouterLoss(model) as routed:
        model(**batch.hf(model=model))
    torch.testing.assert_close(routed.loss(batch).double(), auxiliary.double(), rtol=2e-6, atol=0)
    for got, wanted in zip(gradients(model, found), gradients(model, expected), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-7)
    assert getattr(model(**batch.hf(model=model)), "router_logits", None) is None  # hooks are gone


@pytest.mark.parametrize("family", BESIDE)
def test_beside_other_families_rows_of_one_segment_have_the_auxiliary_loss_of_the_documents(
    family: str,
) -> None:
    model = tiny_model(family, "eager", seconds=60, **BESIDE[family])
    model.config._experts_implementation = "eager"
    batch = batch_of(Pad(seq_len=15), rows=8)
    with RouterLoss(model) as routed:
        output = model(**batch.hf(model=model))
    loss, auxiliary = expected_loss(model, batch)
    whole = output.loss + routed.loss(batch)
    torch.testing.assert_close(output.loss.double(), loss.double(), rtol=1e-5, atol=0)
    torch.testing.assert_close(routed.loss(batch), auxiliary, rtol=1e-5, atol=0)
    expected = gradients(model, loss.float() + auxiliary)
    for got, wanted in zip(gradients(model, whole), expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-5)


def test_beside_a_model_of_a_derived_class_the_auxiliary_loss_is_the_familys() -> None:
    model = tiny_model("mixtral", "eager")
    batch = batch_of(BestFitDecreasing(seq_len=23))
    losses = []
    for kind in (type(model), type("Derived", (type(model),), {"__module__": __name__})):
        model.__class__ = kind  # as `fully_shard` does
        with RouterLoss(model) as routed:
            model(**batch.hf(model=model))
        losses.append(routed.loss(batch))
    assert losses[0] == losses[1] > 0


def test_beside_a_model_without_routers_or_with_mixed_tokens_the_cause_is_named() -> None:
    batch = batch_of(BestFitDecreasing(seq_len=23))
    dense = tiny_model("doge", "eager", seconds=60)
    with RouterLoss(dense) as routed:
        dense(**batch.hf(model=dense))
    with pytest.raises(ConfigError) as caught:
        routed.loss(batch)
    assert (caught.value.setting, "no routers" in caught.value.fact) == ("model", True)
    with pytest.raises(ConfigError) as caught:
        RouterLoss(tiny_model("doge", "eager", seconds=60, is_moe=True, num_experts=16))
    assert (caught.value.setting, "mix" in caught.value.fact) == ("model", True)


def test_beside_the_model_padding_alone_has_no_auxiliary_loss() -> None:
    model = model_of("mixtral")
    model.config.output_router_logits = False
    dataset = PackedDataset(
        [[1, 2]], packer=Pad(seq_len=15), batch_size=2, topology=Topology(),
        token_rules=TokenRules(pad_id=0, eos_id=1),
    )  # fmt: skip
    empty = PackedLoader(dataset)._run.empty_batch(0, 1)
    with RouterLoss(model) as routed:
        model(**empty.hf())
    assert routed.loss(empty) == 0


def test_beside_the_model_another_batch_or_a_model_that_needs_none_is_refused() -> None:
    model = model_of("mixtral")
    with pytest.raises(ConfigError) as caught:
        RouterLoss(model)
    assert caught.value.setting == "model"
    model.config.output_router_logits = False
    batch, other = (batch_of(BestFitDecreasing(seq_len=size)) for size in (23, 25))
    with RouterLoss(model) as routed:
        model(**batch.hf(model=model))
    with pytest.raises(ConfigError) as caught:
        routed.loss(other)
    assert caught.value.setting == "batch"
    with pytest.raises(ConfigError) as caught:
        RouterLoss(tiny_model("llama", "eager"))
    assert caught.value.setting == "model"


def test_of_deepseek_v3_documents_are_apart_and_its_experts_are_chosen_as_for_each_alone() -> None:
    """It has no auxiliary loss: a bias, which follows how many tokens an expert gets."""
    model = tiny_model("deepseek_v3", "eager")
    if transformers.__version__ >= "5":  # 4.57 adds up the experts' outputs in single precision
        model = model.double()
    model.config._experts_implementation = "eager"
    batch = batch_of(BestFitDecreasing(seq_len=23))
    chosen: list[Tensor] = []

    def keep(module: Any, arguments: Any, output: Any) -> None:
        (indices,) = (part for part in output if not part.is_floating_point())
        chosen.append(indices)

    routers = [m for m in model.modules() if type(m).__name__ == "DeepseekV3TopkRouter"]
    assert len(routers) == 1
    routers[0].register_forward_hook(keep)
    arguments = batch.hf(model=model)
    chosen.clear()
    output = model(**arguments)
    packed = torch.bincount(chosen.pop()[~batch.padding_mask.view(-1)].ravel(), minlength=4)
    total = torch.zeros((), dtype=model.dtype)
    for ids in documents_of(batch):
        logits = model(input_ids=ids[None], use_cache=False).logits
        total = total + torch.nn.functional.cross_entropy(logits[0, :-1], ids[1:], reduction="sum")
    assert torch.equal(packed, torch.bincount(torch.cat(chosen).ravel(), minlength=4))
    assert packed.sum() == 2 * batch.num_tokens
    expected = total / batch.num_loss_tokens
    torch.testing.assert_close(output.loss.double(), expected.double(), rtol=2e-6, atol=0)
    for got, wanted in zip(gradients(model, output.loss), gradients(model, expected), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-6)


def grouped(model: Any) -> list[PackedBatch]:
    dataset = PackedDataset(
        DOCUMENTS, packer=BestFitDecreasing(seq_len=24), batch_size=1, topology=Topology()
    )
    (group,) = PackedLoader(dataset).accumulate(8)
    assert len(group) > 1
    return list(group)


@pytest.mark.parametrize("family", ["mixtral", "qwen2_moe"])
def test_the_summed_losses_of_a_group_have_the_mean_auxiliary_loss_of_its_batches(
    family: str,
) -> None:
    model = model_of(family)
    model.config.output_router_logits = False
    group, coefficient = grouped(model), model.router_aux_loss_coef
    summed = torch.zeros((), dtype=torch.float64)
    for batch in group:
        with RouterLoss(model) as routed:
            output = model(**batch.hf(model=model))
        summed = summed + output.loss + coefficient * routed.loss(batch)
    wanted = torch.zeros((), dtype=torch.float64)
    tokens = sum(batch.num_loss_tokens for batch in group)
    for batch in group:
        loss, auxiliary = expected_loss(model, batch)
        wanted = wanted + loss * batch.num_loss_tokens / tokens
        wanted = wanted + coefficient * auxiliary / len(group)
    torch.testing.assert_close(summed, wanted, rtol=2e-6, atol=0)
    for got, want in zip(gradients(model, summed), gradients(model, wanted), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


def test_a_loss_that_a_group_would_count_several_times_is_refused() -> None:
    model = model_of("mixtral")
    with pytest.raises(ConfigError) as caught:
        grouped(model)[0].hf(model=model)
    assert caught.value.setting == "model"
