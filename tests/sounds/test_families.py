"""Every family that takes sounds: ids, features and losses of its processor and model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from streampack import check_isolation
from streampack.errors import ConfigError, ContentError
from streampack.hf.isolation import without_loss
from streampack.images.model_arguments import media_of
from streampack.media import Sounds
from streampack.sounds.families import REFUSED
from streampack.sounds.files import samples_of, size_of
from streampack.sounds.heads import SoundSize
from streampack.sounds.planner import SoundPlanner
from streampack.sources import Storage
from tests.images.test_losses import gradients
from tests.support.sound_families import FAMILIES, OMNI
from tests.support.sounds import sound
from tests.support.vision_runs import dataset
from tests.support.whole_processors import FIVE


def decoded(data: bytes) -> np.ndarray:
    return samples_of(data, size_of(data, Storage()), 16000, None)


def documents(family: str) -> list[dict[str, Any]]:
    """Documents with none to two sounds, of several rates and forms; some have several windows."""
    place, longest = FAMILIES[family].place, FAMILIES[family].longest
    least = FAMILIES[family].shortest

    def clip(samples: int, rate: int, **settings: Any) -> bytes:
        return sound(max(samples, int(least * rate)), rate, **settings)

    clips = [
        clip(16000, 16000, seed=1), clip(3201, 8000, seed=2),
        clip(44100, 44100, channels=2, seed=3, form="mp3", codec="libmp3lame"),
        clip(20011, 22050, seed=4, form="flac", codec="flac"), clip(longest, 16000, seed=5),
    ]  # fmt: skip
    made = [{"text": f"{i}:ab{place}zz", "audios": [clip]} for i, clip in enumerate(clips)]
    return [*made, {"text": f"5:{place}and{place}so", "audios": clips[1:3]}]


def processed(processor: Any, document: dict[str, Any]) -> tuple[list[int], dict[str, Any]]:
    """Return ids and features of a document, each sound by itself.

    Processors pad the sounds of a call to the longest of them, and some take only one.
    """
    ids: list[int] = []
    arrays: dict[str, list[torch.Tensor]] = {}
    place = processor.audio_token
    texts, sounds = document["text"].split(place), document.get("audios", [])
    for i, clip in enumerate(sounds):
        made = processor(
            text=[texts[i] + place + (texts[-1] if i + 1 == len(sounds) else "")],
            audio=[decoded(clip)], return_tensors="pt",
        )  # fmt: skip
        ids += made["input_ids"][0].tolist()
        for name in made:
            if "feature" in name:
                arrays.setdefault(name, []).append(made[name])
    return ids, {
        name: torch.cat([pad(each, max(one.shape[-1] for one in parts)) for each in parts])
        for name, parts in arrays.items()
    }


def pad(values: torch.Tensor, length: int) -> torch.Tensor:
    return torch.nn.functional.pad(values, (0, length - values.shape[-1]))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_of_all_lengths_match_the_processor(family: str) -> None:
    rng = np.random.default_rng(0)
    example = FAMILIES[family]
    processor = example.processor()
    planner = SoundPlanner(processor)
    lengths = [*range(700, 1100, 57), 15999, 16000, 16001, 31999, 32000]
    lengths += [n for n in (32001, 32800, 47999, 64000, 70001) if n <= example.longest]
    lengths += [rng.integers(800, example.longest) for _ in range(6)]
    for samples in lengths:
        values = rng.normal(0, 0.1, samples).astype(np.float32)
        try:
            (ids,), (frames,) = planner.plan([SoundSize(samples, 16000)])
        except ValueError:
            few = samples < max(1100, 16000 * example.shortest)
            assert few or 0 < samples % 32000 < 1000, (family, samples)
            continue
        made = processor(text=[example.place], audio=[values], return_tensors="pt")
        wanted = made["input_ids"][0].tolist()
        at = wanted.index(int(ids[0]))
        assert wanted[at : at + len(ids)] == ids.tolist(), (family, samples)
        assert wanted.count(planner.token_id) == ids.tolist().count(planner.token_id)
        assert planner.count(planner.arrays(values)) == frames


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", FAMILIES)
def test_ids_and_features_match_the_processor(family: str) -> None:
    example, given = FAMILIES[family], documents(family)
    processor, found = example.processor(), set()
    for batch in dataset(Sounds(given, text="text"), processor, seq_len=320):
        for number in range(batch.num_documents):
            ids = batch.input_ids[batch.document_ids == number].tolist()
            name = int(processor.tokenizer.decode(ids).partition(":")[0])
            wanted, features = processed(processor, given[name])
            assert ids == wanted
            media = media_of(batch, number)
            assert media.keys() == features.keys()
            (mask,) = (each.bool() for key, each in features.items() if "mask" in key)
            length = max(each.shape[-1] for each in (*media.values(), mask))
            for key, values in features.items():
                made, wanted_here = pad(media[key], length), pad(values, length)
                if "mask" not in key:  # features behind the end of a sound have no effect
                    made, wanted_here = (
                        each * pad(mask, length)[:, None] for each in (made, wanted_here)
                    )
                assert torch.equal(made.to(wanted_here.dtype), wanted_here), key
            found.add(name)
    assert found == {*range(6)}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("family", FAMILIES)
def test_losses_and_gradients_match_single_documents(family: str) -> None:
    example, given = FAMILIES[family], documents(family)
    processor = example.processor()
    model = example.model(processor)
    given = [*given, {"text": "6: words alone"}]
    (batch,) = dataset(Sounds(given, text="text"), processor, seq_len=320, batch_size=3)
    if family == "Qwen3-Omni" and not FIVE:  # its encoder attends from one sound to others
        with pytest.raises(ConfigError):
            batch.hf(model=model)
        return

    def loss_of(arguments: dict[str, Any], labels: torch.Tensor) -> torch.Tensor:
        drop = ("labels", "use_cache", "token_type_ids")
        kept = {name: value for name, value in arguments.items() if name not in drop}
        if "input_features" in kept:
            kept["input_features"] = kept["input_features"].double()
        logits = model(**kept, use_cache=False).logits
        return torch.nn.functional.cross_entropy(
            logits.view(-1, logits.shape[-1])[:-1], labels.view(-1)[1:], ignore_index=-100,
            reduction="sum",
        )  # fmt: skip

    packed = loss_of(batch.hf(model=model), batch.labels)
    packed.backward()
    of_packed, alone = gradients(model), torch.zeros((), dtype=torch.float64)
    places = [batch.document_ids == number for number in range(batch.num_documents)]
    learnt = {tuple(batch.input_ids[at].tolist()): batch.labels[at] for at in places}
    assert len(learnt) == 7
    for document in given:
        if "audios" in document:
            ids, features = processed(processor, document)
        else:
            ids, features = processor.tokenizer(document["text"])["input_ids"], {}
        asked = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids)).long()}
        loss = loss_of({**asked, **features}, learnt[tuple(ids)])
        loss.backward()
        alone += loss.detach()
    close = 1e-6 if family == "Qwen3-Omni" else 1e-12  # its router rounds to single precision
    torch.testing.assert_close(packed.detach(), alone, rtol=close, atol=0)
    of_alone = gradients(model)
    assert of_packed.keys() == of_alone.keys()
    assert any("audio_tower" in name and bool(each.any()) for name, each in of_alone.items())
    for name, gradient in of_alone.items():
        atol = close * max(float(gradient.abs().max()), 1)
        torch.testing.assert_close(of_packed[name], gradient, rtol=0, atol=atol)
    call = lambda one: model(**without_loss(one.hf(model=model)))  # noqa: E731
    assert check_isolation(model, batch, call=call)
    source = Sounds([{"text": f"{i}: words", "audios": []} for i in range(6)], text="text")
    (batch,) = dataset(source, processor, seq_len=320)
    call(batch).logits.sum().backward()
    towers = [each.grad for name, each in model.named_parameters() if "audio_tower" in name]
    assert any(each is not None for each in towers)


@pytest.mark.parametrize("family", FAMILIES)
def test_sounds_that_the_processor_would_cut_are_refused(family: str) -> None:
    planner = SoundPlanner(FAMILIES[family].processor())
    size = SoundSize(16000 * 1300, 16000)
    if FIVE and family in ("Qwen3-Omni", "Qwen3-ASR"):  # which cut nothing
        ids, _ = planner.plan([size])
        assert (ids[0] == planner.token_id).sum() == 13 * 1300
        return
    with pytest.raises(ValueError, match="cuts"):
        planner.plan([size])


@pytest.mark.parametrize("family", ["Qwen2.5-Omni", "Qwen3-Omni"])
def test_tokens_of_images_in_texts_with_sounds_alone_are_refused(family: str) -> None:
    processor = FAMILIES[family].processor()
    for token in (OMNI["image_token"], OMNI["video_token"]):
        given = [{"text": f"a{token}"}, {"text": "b"}]
        with pytest.raises(ContentError) as caught:
            list(dataset(Sounds(given, text="text"), processor))
        assert caught.value.index == 0
        (batch,) = dataset(Sounds(given, text="text"), processor, on_error="skip")
        assert batch.num_documents == 1


def test_processors_that_are_not_packed_are_refused_with_a_reason() -> None:
    for name in (*REFUSED, "WhisperProcessor"):
        own = type(name, (), {})()
        with pytest.raises(ConfigError) as caught:
            SoundPlanner(own)
        assert caught.value.setting == "processor"
        assert ("(" in str(caught.value)) == (name != "WhisperProcessor")
