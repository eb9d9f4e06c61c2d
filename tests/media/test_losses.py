"""Losses and gradients of packed documents with images are those of the documents by themselves."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from streampack import PackedDataset, TokenRules, Topology, check_isolation
from streampack.errors import ConfigError
from streampack.media import Images
from streampack.media.images import decoded, size_of
from tests.support.vision import qwen_model, qwen_processor, records

FAMILIES = {
    "Qwen2VL": ("Qwen2VLProcessor", {"embed_dim": 16, "hidden_size": 32, "mlp_ratio": 2}),
    "Qwen2_5_VL": (
        "Qwen2_5_VLProcessor",
        {
            "hidden_size": 16, "intermediate_size": 24, "out_hidden_size": 32, "window_size": 16,
            "fullatt_block_indexes": [1],
        },
    ),
}  # fmt: skip


def dataset(source: Any, processor: Any, **settings: Any) -> PackedDataset:
    given = {"seq_len": 160, "batch_size": 3, "shuffle": False, "topology": Topology()}
    given |= {"token_rules": TokenRules(eos="as-is"), "processor": processor}
    return PackedDataset(source, **{**given, **settings})


def gradients(model: Any) -> dict[str, torch.Tensor]:
    found = {name: own.grad for name, own in model.named_parameters() if own.grad is not None}
    model.zero_grad()
    return found


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    shifted = labels.view(-1)[1:]
    return torch.nn.functional.cross_entropy(
        logits.view(len(labels.view(-1)), -1)[:-1], shifted, ignore_index=-100, reduction="sum"
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_losses_and_gradients_of_vision_tower_and_text_are_those_of_single_documents(
    family: str,
) -> None:
    name, vision = FAMILIES[family]
    processor, model, given = qwen_processor(name), qwen_model(family, **vision), records(9)
    (batch,) = dataset(Images(given, text="text"), processor)
    logits = model(**batch.hf(model=model)).logits
    packed = loss_of(logits, batch.labels)
    packed.backward()
    of_packed = gradients(model)
    alone = torch.zeros((), dtype=torch.float64)
    for record in given:
        images = [decoded(each, size_of(each)) for each in record["images"]]
        made = processor(text=[record["text"]], images=images or None, return_tensors="pt")
        ids = made["input_ids"]
        labels = torch.where(ids == processor.image_token_id, -100, ids)
        loss = loss_of(model(**made).logits, labels)
        loss.backward()
        alone += loss.detach()
    of_alone = gradients(model)
    torch.testing.assert_close(packed.detach(), alone, rtol=1e-12, atol=0)
    assert any("visual" in name for name in of_alone)
    assert of_packed.keys() == of_alone.keys()
    for name, gradient in of_alone.items():
        scale = float(gradient.abs().max())
        torch.testing.assert_close(of_packed[name], gradient, rtol=0, atol=1e-12 * max(scale, 1))


@pytest.mark.parametrize("family", FAMILIES)
def test_isolation_is_found_with_text_plane_and_a_leak_without(family: str) -> None:
    name, vision = FAMILIES[family]
    (batch,) = dataset(Images(records(6), text="text"), qwen_processor(name), batch_size=2)
    model = qwen_model(family, **vision)
    assert check_isolation(model, batch)

    def three_axes_alone(one: Any) -> Any:
        given = one.hf()
        given["position_ids"] = given["position_ids"][1:]
        return model(**{k: v for k, v in given.items() if k != "labels"})

    assert not check_isolation(model, batch, call=three_axes_alone)


def test_model_that_takes_images_otherwise_than_alone_is_refused() -> None:
    name, vision = FAMILIES["Qwen2VL"]
    (batch,) = dataset(Images(records(6), text="text"), qwen_processor(name), batch_size=2)
    model = qwen_model("Qwen2VL", **vision)
    batch.hf(model=model)
    other = qwen_model("Qwen2VL", **vision)
    forward = type(other).forward

    class Leaking(type(other)):  # type: ignore[misc]
        def forward(self, *args: Any, **given: Any) -> Any:
            if given.get("pixel_values") is not None:
                mean = given["pixel_values"].mean(0, keepdim=True)
                given["pixel_values"] = given["pixel_values"] + 5 * mean
            return forward(self, *args, **given)

    other.__class__ = Leaking
    with pytest.raises(ConfigError) as caught:
        batch.hf(model=other)
    assert caught.value.setting == "model"
