"""Losses and gradients of packed documents with images equal those without packing."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import transformers

from streampack import check_isolation
from streampack.errors import ConfigError
from streampack.hf.isolation import without_loss
from streampack.images import Images
from streampack.images.images import decoded, size_of
from tests.support.vision import records
from tests.support.vision_families import FAMILIES
from tests.support.vision_runs import dataset

#: They round to single precision inside, whatever the weights are.
IN_SINGLE_PRECISION = {"GLM-4V", "Gemma 3"}
#: In transformers 5 packed rows change the documents of these families.
REFUSED = {"Gemma 3"} if int(transformers.__version__.partition(".")[0]) >= 5 else set()


def gradients(model: Any) -> dict[str, torch.Tensor]:
    found = {name: own.grad for name, own in model.named_parameters() if own.grad is not None}
    model.zero_grad()
    return found


def logits_of(model: Any, given: Any) -> torch.Tensor:
    """Return logits in double precision; Gemma 3 makes floats of its own."""
    given = {name: own for name, own in given.items() if name not in ("labels", "use_cache")}
    return model.lm_head(model.model(**given, use_cache=False).last_hidden_state)


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    shifted = labels.view(-1)[1:]
    return torch.nn.functional.cross_entropy(
        logits.view(len(labels.view(-1)), -1)[:-1], shifted, ignore_index=-100, reduction="sum"
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize("family", FAMILIES)
def test_losses_and_gradients_of_vision_tower_and_text_match_single_documents(
    family: str,
) -> None:
    example = FAMILIES[family]
    processor, given = example.processor(), records(9, place=example.place)
    model = example.model(processor)
    (batch,) = dataset(Images(given, text="text"), processor, seq_len=256)
    if family in REFUSED:
        with pytest.raises(ConfigError):
            batch.hf(model=model)
        return
    logits = logits_of(model, batch.hf(model=model))
    packed = loss_of(logits, batch.labels)
    packed.backward()
    of_packed = gradients(model)
    places = [batch.document_ids == number for number in range(batch.num_documents)]
    found = {tuple(batch.input_ids[at].tolist()): batch.labels[at] for at in places}
    assert len(found) == len(given)
    alone = torch.zeros((), dtype=torch.float64)
    for record in given:
        images = [decoded(each, size_of(each)) for each in record["images"]]
        made = processor(text=[record["text"]], images=images or None, return_tensors="pt")
        ids = made["input_ids"]
        labels = found[tuple(ids[0].tolist())]
        loss = loss_of(logits_of(model, made), labels)
        loss.backward()
        alone += loss.detach()
    of_alone = gradients(model)
    tolerance = 1e-6 if family in IN_SINGLE_PRECISION else 1e-12
    torch.testing.assert_close(packed.detach(), alone, rtol=tolerance, atol=0)
    towers = [gradient for name, gradient in of_alone.items() if "vis" in name]
    assert any(bool(gradient.any()) for gradient in towers)
    assert of_packed.keys() == of_alone.keys()
    for name, gradient in of_alone.items():
        scale = float(gradient.abs().max())
        torch.testing.assert_close(
            of_packed[name], gradient, rtol=0, atol=tolerance * max(scale, 1)
        )


def example_of(family: str) -> tuple[Any, Any]:
    """A model, and a batch of its processor."""
    example = FAMILIES[family]
    processor = example.processor()
    source = Images(records(6, place=example.place), text="text")
    batch = next(iter(dataset(source, processor, batch_size=2, seq_len=256)))
    return example.model(processor), batch


@pytest.mark.sampled(1)
@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in REFUSED])
def test_documents_with_images_are_isolated(family: str) -> None:
    model, batch = example_of(family)

    def call(one: Any) -> Any:
        return model(**without_loss(one.hf(model=model)))

    assert check_isolation(model, batch, call=call)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("family", ["Qwen2-VL", "Qwen2.5-VL"])
def test_three_axes_without_the_plane_of_the_text_leak(family: str) -> None:
    model, batch = example_of(family)

    def three_axes_alone(one: Any) -> Any:
        given = one.hf()
        given["position_ids"] = given["position_ids"][1:]
        return model(**{k: v for k, v in given.items() if k != "labels"})

    assert not check_isolation(model, batch, call=three_axes_alone)


def test_model_that_takes_images_otherwise_than_alone_is_refused() -> None:
    model, batch = example_of("Qwen2-VL")
    batch.hf(model=model)
    other, _ = example_of("Qwen2-VL")
    usual = type(other).forward

    class Leaking(type(other)):  # type: ignore[misc]
        @functools.wraps(usual)  # its signature is inspected
        def forward(self, *args: Any, **given: Any) -> Any:
            if given.get("pixel_values") is not None:
                mean = given["pixel_values"].mean(0, keepdim=True)
                given["pixel_values"] = given["pixel_values"] + 5 * mean
            return usual(self, *args, **given)

    other.__class__ = Leaking
    with pytest.raises(ConfigError) as caught:
        batch.hf(model=other)
    assert caught.value.setting == "model"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", FAMILIES)
def test_batch_of_text_alone_runs_the_vision_tower_where_it_has_room(family: str) -> None:
    example = FAMILIES[family]
    processor = example.processor()
    source = Images([{"text": f"{i}: some text"} for i in range(9)], text="text")
    (batch,) = dataset(source, processor)
    model = example.model(processor)
    loss_of(logits_of(model, batch.hf(model=model)), batch.labels).backward()
    towers = [
        own.grad for name, own in model.named_parameters() if "vision" in name or "visual" in name
    ]
    assert any(own is not None for own in towers)
    assert not any(own.any() for own in towers if own is not None)
