"""Films with their sound for Qwen-Omni: ids, arrays, positions and losses of the processor."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from streampack import PackedLoader, check_isolation
from streampack.errors import ConfigError, ContentError
from streampack.films import planner
from streampack.films.planner import FilmPlanner
from streampack.forms.image_columns import images_of
from streampack.hf.isolation import without_loss
from streampack.images import boxes
from streampack.images.media_file import MediaFile
from streampack.images.model_arguments import media_of
from streampack.media import Films
from streampack.sounds import files
from streampack.sounds.files import declare, samples_of, size_of
from streampack.sources import Storage
from tests.images.test_losses import gradients
from tests.support.clips import decoded, film, patched, turned
from tests.support.film_processors import processor_of
from tests.support.films import as_processed
from tests.support.servers import HTTPServer
from tests.support.sound_families import FAMILIES, OMNI
from tests.support.vision_runs import dataset

PLACE = f"{OMNI['vision_bos_token']}{OMNI['video_token']}{OMNI['vision_eos_token']}"
OMNIS = ["Qwen2.5-Omni", "Qwen3-Omni"]


def omni(family: str, *, sound: bool = True, **settings: Any) -> Any:
    """A processor with small frames, which takes two a second, and chunks of a second."""
    processor = FAMILIES[family].processor()
    sides = {"shortest_edge": 16 * 16, "longest_edge": 24 * 24 * 6}
    processor.videos_kwargs = {"do_sample_frames": True, "fps": 2.0, "size": sides, **settings}
    processor.seconds_per_chunk, processor.load_audio_from_video = 1.0, sound
    return processor


@pytest.fixture(scope="module")
def clips() -> list[bytes]:
    """Films with a sound that is as long, longer or shorter, of odd rates, and without sound."""
    small = {"size": (32, 24)}
    return [
        film(36, sound=1.5, **small),
        film(30, rate=Fraction(30000, 1001), sound=1.9, sound_rate=44100, seed=1, **small),
        turned(film(50, rate=25, sound=1.1, sound_rate=22050, seed=2, **small), 90),
        film(30, seed=3, **small),
        film(22, rate=12, sound=1.3, sound_rate=48000, form="mov", seed=4, **small),
    ]


def heard(data: bytes) -> np.ndarray | None:
    """The samples of a film's sound, or None without one."""
    if b"mp4a" not in data:
        return None
    return samples_of(data, size_of(data, Storage()), 16000, None)


def processed(processor: Any, document: dict[str, Any]) -> Any:
    """The processor's own result for a document and films that are decoded whole."""
    films = [*zip(*map(decoded, document["videos"]), strict=True)]
    heard_in = [heard(clip) for clip in document["videos"]]
    sounds = [each for each in heard_in if each is not None]
    more: dict[str, Any] = {"load_audio_from_video": False}
    if sounds:
        numbers = [i for i, each in enumerate(heard_in) if each is not None]
        more = {"audio": sounds, "audio_from_video_indices": numbers, "load_audio_from_video": True}
    return as_processed(processor, document["text"], *map(list, films), **more)


def given(clips: list[bytes]) -> list[dict[str, Any]]:
    alone = [{"text": f"{i}:ab{PLACE}zz", "videos": [clip]} for i, clip in enumerate(clips)]
    return [*alone, {"text": f"{len(clips)}:{PLACE}and{PLACE}so", "videos": [clips[0], clips[0]]}]


@pytest.mark.parametrize("family", OMNIS)
def test_ids_and_arrays_of_films_with_sound_match_the_processor(
    family: str, clips: list[bytes]
) -> None:
    processor, documents = omni(family), given(clips)
    made = dataset(Films(documents, text="text"), processor, seq_len=640, batch_size=1)
    found = set()
    for batch in PackedLoader(made):
        for number in range(batch.num_documents):
            ids = batch.input_ids[batch.document_ids == number].tolist()
            name = int(processor.tokenizer.decode(ids).partition(":")[0])
            wanted, media = processed(processor, documents[name]), media_of(batch, number)
            assert ids == wanted["input_ids"][0].tolist()
            of_text = ("input_ids", "attention_mask")
            assert {*media} == {*wanted} - {*of_text}
            for key in ("pixel_values_videos", "video_grid_thw", "video_second_per_grid"):
                assert torch.equal(media[key].to(wanted[key].dtype), wanted[key]), key
            if name != 3:
                mask = wanted["feature_attention_mask"]
                frames = mask.shape[1]
                at = torch.nn.functional.pad(media["feature_attention_mask"], (0, frames))
                assert torch.equal(at[:, :frames].to(mask.dtype), mask)
                features = torch.nn.functional.pad(media["input_features"], (0, frames))
                for mine, own, kept in zip(features, wanted["input_features"], mask, strict=True):
                    assert torch.equal(mine[:, :frames] * kept, own * kept)
            found.add(name)
    assert found == {*range(6)}


def logits_of(model: Any, arguments: Any, **more: Any) -> torch.Tensor:
    drop = ("labels", "use_cache", "token_type_ids")
    kept = {name: value for name, value in arguments.items() if name not in drop}
    if "input_features" in kept:
        kept["input_features"] = kept["input_features"].double()
    return model(**kept, **more, use_cache=False).logits


def model_of(family: str, processor: Any) -> Any:
    model = FAMILIES[family].model(processor)
    for each in (model.config, getattr(model.model, "config", model.config)):
        each.seconds_per_chunk = int(processor.seconds_per_chunk)
    return model


def summed(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    flat = logits.view(-1, logits.shape[-1])[:-1], labels.view(-1)[1:]
    return torch.nn.functional.cross_entropy(*flat, ignore_index=-100, reduction="sum")


@pytest.mark.parametrize("family", OMNIS)
def test_positions_losses_and_gradients_match_single_documents(
    family: str, clips: list[bytes]
) -> None:
    processor = omni(family)
    model = model_of(family, processor)
    documents = [*given(clips), {"text": "6: words alone"}]
    source = Films(documents, text="text")
    (batch,) = dataset(source, processor, seq_len=640, batch_size=2)
    arguments = batch.hf(model=model)
    packed = summed(logits_of(model, arguments), batch.labels)
    packed.backward()
    of_packed, alone = gradients(model), torch.zeros((), dtype=torch.float64)
    found = set()
    for number in range(batch.num_documents):
        at = (batch.document_ids == number).view(-1)
        ids = batch.input_ids.view(-1)[at]
        name = int(processor.tokenizer.decode(ids.tolist()).partition(":")[0])
        found.add(name)
        one = {"input_ids": ids[None], "attention_mask": torch.ones_like(ids)[None]}
        if "videos" in documents[name]:
            one = dict(processed(processor, documents[name]))
            inside = {"use_audio_in_video": "input_features" in one}
            lengths = one["feature_attention_mask"].sum(1) if "input_features" in one else None
            axes, _ = model.get_rope_index(
                one["input_ids"], None, one["video_grid_thw"], one["attention_mask"],
                inside["use_audio_in_video"], lengths, one["video_second_per_grid"],
            )  # fmt: skip
            assert torch.equal(arguments["position_ids"][1:, 0, at].to(axes.dtype), axes[:, 0])
            one |= inside
        loss = summed(logits_of(model, one), batch.labels.view(-1)[at])
        loss.backward()
        alone += loss.detach()
    assert found == {*range(7)}
    close = 1e-6 if family == "Qwen3-Omni" else 1e-12  # its router rounds to single precision
    torch.testing.assert_close(packed.detach(), alone, rtol=close, atol=0)
    of_alone = gradients(model)
    assert of_packed.keys() == of_alone.keys()
    for tower in ("audio_tower", "visual"):
        assert any(tower in name and bool(each.any()) for name, each in of_alone.items())
    for name, gradient in of_alone.items():
        atol = close * max(float(gradient.abs().max()), 1)
        torch.testing.assert_close(of_packed[name], gradient, rtol=0, atol=atol)
    call = lambda one: model(**without_loss(one.hf(model=model)))  # noqa: E731
    assert check_isolation(model, batch, call=call)


@pytest.mark.parametrize("family", OMNIS)
def test_batches_without_a_film_or_a_sound_run_both_towers(family: str, clips: list[bytes]) -> None:
    processor = omni(family)
    model = model_of(family, processor)
    silent = [{"text": f"{i}:{PLACE}", "videos": [clips[3]]} for i in range(2)]
    words = [{"text": f"{i}: words"} for i in range(6)]
    for documents in (silent, words):
        batch = next(iter(dataset(Films(documents, text="text"), processor, seq_len=256)))
        assert len(images_of(batch).blank) > 0
        summed(logits_of(model, batch.hf(model=model)), batch.labels).backward()
        of_all = gradients(model)
        for tower in ("audio_tower", "visual"):
            towers = [each for name, each in of_all.items() if tower in name]
            assert towers
            if documents is words or tower == "audio_tower":
                assert not any(bool(each.any()) for each in towers)


def run(documents: list[dict[str, Any]], *, processor: Any = None, **settings: Any) -> Any:
    made = {name: settings.pop(name) for name in ("sizes", "count") if name in settings}
    source = Films(documents, text="text", **made)
    return dataset(source, processor or omni("Qwen2.5-Omni"), seq_len=640, **settings)


def without_packets(data: bytes) -> bytes:
    """A film of which the packets of the sound are zeros."""
    file = MediaFile(data, Storage())
    declare(file)
    for start, stop in file.declared:
        data = patched(data, start, bytes(stop - start))
    return data


NAMES = ("frames", "height", "width", "fps", "samples", "rate")
RIGHT = dict(zip(NAMES, (36, 24, 32, 24.0, 25600, 16000), strict=True))


def test_sizes_from_fields_stand_for_heads_of_films_with_sound(clips: list[bytes]) -> None:
    document = {"text": f"0:{PLACE}z", "videos": [clips[0]]}
    (batch,), (named,) = run([document]), run([{**document, **RIGHT}], sizes=NAMES)
    other = film(36, size=(32, 24), sound=1.5, form="matroska")
    (counted,) = run([{**document, "videos": [other]}], count="packets")
    assert named.input_ids.equal(batch.input_ids)
    silent = omni("Qwen2.5-Omni", sound=False)
    (alone,) = run([{**document, **RIGHT}], sizes=NAMES, processor=silent)
    assert "input_features" not in alone.media
    assert alone.media["pixel_values_videos"].equal(batch.media["pixel_values_videos"])
    assert counted.media.keys() == batch.media.keys()
    assert named.media["input_features"].equal(batch.media["input_features"])


@pytest.mark.parametrize("fault", ["packets", "more samples", "no samples", "four fields"])
def test_films_unlike_their_sound_are_named_or_stay_without_loss(
    fault: str, clips: list[bytes]
) -> None:
    good = {"text": f"good:{PLACE}z", "videos": [clips[0]], **RIGHT}
    bad, sizes = {**good, "text": f"bad:{PLACE}zz"}, NAMES
    if fault == "packets":
        bad["videos"] = [without_packets(clips[0])]
    elif fault == "four fields":
        good, sizes = {"text": "good: words", **RIGHT, "videos": []}, NAMES[:4]
    else:
        bad["samples"] = 24576 if fault == "more samples" else 0
    with pytest.raises(ContentError) as caught:
        list(run([good, bad], sizes=sizes))
    assert caught.value.document == "item 1 of the list"
    tokenizer, learnt = omni("Qwen2.5-Omni").tokenizer, {}
    for batch in run([good, bad], sizes=sizes, on_error="skip"):
        for number in range(batch.num_documents):
            at = batch.document_ids == number
            name = tokenizer.decode(batch.input_ids[at].tolist()).partition(":")[0]
            learnt[name] = bool((batch.labels[at] != -100).any())
    assert learnt == {"good": True, "bad": False}


def test_documents_in_which_models_would_not_find_a_sound_are_refused(clips: list[bytes]) -> None:
    for document in (
        {"text": f"0:{PLACE}{PLACE}", "videos": [clips[0], clips[3]]},
        {"text": f"0:a{OMNI['video_token']}b", "videos": [clips[0]]},
    ):
        with pytest.raises(ContentError) as caught:
            list(run([document]))
        assert caught.value.index == 0


def test_sound_of_a_film_is_decoded_from_the_packets_of_its_track(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(boxes, "_MOST_BETWEEN", 0)
    data = film(48, size=(128, 96), qp="1", sound=2)
    file = MediaFile(data, Storage())
    declare(file)
    assert 0 < sum(stop - start for start, stop in file.declared) < len(data) / 2
    sound = heard(data)
    monkeypatch.setattr(files, "declare", MediaFile.declare_all)
    assert np.array_equal(sound, heard(data))


def test_whether_the_sound_is_read_is_in_the_fingerprint(clips: list[bytes]) -> None:
    documents = [{"text": f"{i}:{PLACE}z", "videos": [clips[3]]} for i in range(8)]
    states = []
    for settings in ({}, {"sound": False}, {"fps": 1.0}):
        loader = PackedLoader(run(documents, processor=omni("Qwen2.5-Omni", **settings)))
        next(iter(loader))
        states.append(loader.state_dict())
    loader = PackedLoader(run(documents))
    for state in states[1:]:
        with pytest.raises(Exception, match="media"):
            loader.load_state_dict(state)
    loader.load_state_dict(states[0])


def test_settings_for_sound_elsewhere_are_refused() -> None:
    for name in ("use_audio_in_video", "load_audio_from_video"):
        with pytest.raises(ConfigError) as caught:
            Films([], template_kwargs={name: True})
        assert caught.value.setting == name
    processor = processor_of("Gemma4")
    processor.load_audio_from_video = True
    with pytest.raises(ConfigError) as caught:
        FilmPlanner(processor)
    assert caught.value.setting == "processor"


def test_films_with_sound_by_url_are_the_films_in_memory(
    clips: list[bytes],
    http: HTTPServer,
    storage: Storage,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(planner, "_KEPT_SIZES", 2)  # of five: they are planned again when decoded
    for i, clip in enumerate(clips):
        (http.folder / f"{i}.mp4").write_bytes(clip)
    held = [{"text": f"{i}:{PLACE}z", "videos": [clip]} for i, clip in enumerate(clips)]
    lines = [{**each, "videos": [f"{http.url}/{i}.mp4"]} for i, each in enumerate(held)]
    named = tmp_path / "films.jsonl"
    named.write_text("".join(json.dumps(each) + "\n" for each in lines))
    (batch,) = run(held, batch_size=1)
    source = Films(str(named), text="text", storage=storage)
    (other,) = dataset(source, omni("Qwen2.5-Omni"), seq_len=640, batch_size=1)
    assert other.input_ids.equal(batch.input_ids)
    for name, values in batch.media.items():
        assert other.media[name].equal(values), name
