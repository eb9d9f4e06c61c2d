"""Sounds in documents: sizes from heads, ids and features of the processor, losses alone."""

from __future__ import annotations

import base64
import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from streampack import BestFitDecreasing, PackedDataset, PackedLoader, Topology
from streampack.errors import ConfigError, ContentError
from streampack.images.inline import inline_bytes
from streampack.images.model_arguments import media_of
from streampack.media import Images, Sounds
from streampack.packing import Capacity
from streampack.sounds.files import samples_of, size_of
from streampack.sources import Mixture, Storage
from tests.support.clips import patched
from tests.support.media_runs import assert_replayed, hashed, script
from tests.support.runs import identity
from tests.support.simulated_ranks import over_legs
from tests.support.sounds import PLACE, counted, sound, sound_processor
from tests.support.vision import drawn, png
from tests.support.vision_runs import dataset


def decoded(data: bytes) -> np.ndarray:
    return samples_of(data, size_of(data, Storage()), 16000, None)


def documents() -> list[dict[str, Any]]:
    sounds = [
        sound(16000, seed=1), sound(3200, 8000, seed=2), sound(44100, 44100, channels=2, seed=3),
        sound(20000, 22050, seed=4, form="flac", codec="flac"),
    ]  # fmt: skip
    made = [{"text": f"{i}:ab{PLACE}zz", "audios": [each]} for i, each in enumerate(sounds)]
    return [*made, {"text": f"4:{PLACE}and{PLACE}so", "audios": sounds[1:3]}, {"text": "5: none"}]


def processed(processor: Any, document: dict[str, Any]) -> Any:
    sounds = [decoded(each) for each in document.get("audios", [])]
    given = {"audio": sounds, "sampling_rate": 16000} if sounds else {}
    return processor(text=[document["text"]], return_tensors="pt", **given)


def test_ids_and_features_match_the_processor_in_workers() -> None:
    processor, given = sound_processor(), documents()
    loader = PackedLoader(dataset(Sounds(given, text="text"), processor, lanes=2), num_workers=1)
    names = set()
    for batch in loader:
        for number in range(batch.num_documents):
            ids = batch.input_ids[batch.document_ids == number].tolist()
            name = int(processor.tokenizer.decode(ids).partition(":")[0])
            wanted, media = processed(processor, given[name]), media_of(batch, number)
            assert ids == wanted["input_ids"][0].tolist()
            for key in media:
                assert torch.equal(media[key].to(wanted[key].dtype), wanted[key]), key
            assert len(media) == (0 if name == 5 else 2)
            names.add(name)
    assert names == {*range(6)}


def test_sequence_over_other_ranks_is_the_same_with_sounds() -> None:
    given = [
        {"text": f"{i}:{PLACE}{'z' * (i % 7)}", "audios": [sound(4000 + 500 * i, seed=i)]}
        for i in range(24)
    ]

    def make(topology: Topology) -> PackedDataset:
        settings = {"topology": topology, "lanes": 4, "seq_len": 64, "batch_size": 1}
        return dataset(Sounds(given, text="text"), sound_processor(), **settings)

    def of(batch: Any) -> Any:
        media = batch.media.get("input_features")
        return *identity(batch), None if media is None else media.numpy().tobytes()

    whole = over_legs(make, [(1, 0, 999)], of)
    assert len(whole) > 6
    assert over_legs(make, [(1, 0, 2), (2, 0, 1), (3, 0, 99)], of) == whole


def conversations(clip: bytes, path: str) -> dict[str, dict[str, Any]]:
    """One conversation in the forms of several trainers."""
    answer, part = {"role": "assistant", "content": "noise"}, {"type": "text", "text": "what"}
    text = base64.b64encode(clip).decode()

    def with_part(sound: dict[str, Any], **fields: Any) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": [sound, part]}, answer], **fields}

    said = [{"from": "human", "value": "<audio>what"}, {"from": "gpt", "value": "noise"}]
    held = {"data": text, "format": "mp3"}
    return {
        "field": with_part({"type": "audio"}, audios=[clip]),
        "Qwen, bytes": with_part({"type": "audio", "audio": clip}),
        "Qwen, path": with_part({"type": "audio", "audio_url": path}),
        "transformers": with_part({"type": "audio", "path": path}),
        "transformers, base64": with_part({"type": "audio", "base64": text}),
        "audio_url": with_part({"type": "audio_url", "audio_url": {"url": path}}),
        "OpenAI": with_part({"type": "input_audio", "input_audio": held}),
        "data: URL": with_part(
            {"type": "input_audio", "input_audio": {"data": f"data:audio/mp3;base64,{text}"}}
        ),
        "LLaMA-Factory": {
            "messages": [{"role": "user", "content": "<audio>what"}, answer], "audios": [path]
        },
        "ShareGPT": {"conversations": said, "audio": text},
    }  # fmt: skip


@pytest.mark.parametrize("form", conversations(b"", ""))
def test_conversations_have_the_ids_of_the_processors_template(form: str, tmp_path: Path) -> None:
    processor, clip = sound_processor(), sound(8000, form="mp3", codec="libmp3lame")
    (tmp_path / "a.mp3").write_bytes(clip)
    record = conversations(clip, str(tmp_path / "a.mp3"))[form]
    (batch,) = dataset(Sounds([record]), processor, seq_len=256)
    parts = [{"type": "audio"}, {"type": "text", "text": "what"}]
    asked = [{"role": "user", "content": parts}, {"role": "assistant", "content": "noise"}]
    text = processor.apply_chat_template(asked, tokenize=False)
    wanted = processed(processor, {"text": text, "audios": [clip]})
    ids = batch.input_ids[batch.document_ids == 0].tolist()
    assert ids == wanted["input_ids"][0].tolist()
    assert torch.equal(batch.media["input_features"], wanted["input_features"])
    assert "noise" in processor.tokenizer.decode(batch.input_ids[batch.labels != -100])


BASE64 = {
    "wav": {}, "flac": {"form": "flac", "codec": "flac"},
    "mp3": {"form": "mp3", "codec": "libmp3lame"}, "opus": {"form": "ogg", "codec": "libopus"},
    "m4a": {"form": "ipod", "codec": "aac"}, "webm": {"form": "webm", "codec": "libopus"},
}  # fmt: skip


@pytest.mark.parametrize("kind", BASE64)
def test_sounds_in_base64_are_distinguished_from_paths(kind: str) -> None:
    clip = sound(8000, **BASE64[kind])
    assert inline_bytes(base64.b64encode(clip).decode()) == clip


def test_sounds_of_tar_shards_and_of_the_audio_feature_of_datasets(tmp_path: Path) -> None:
    import datasets

    settings = {"rate": 48000, "form": "ogg", "codec": "libopus"}
    sounds = [sound(14000 + 500 * i, seed=i, **settings) for i in range(3)]
    with tarfile.open(tmp_path / "a.tar", "w") as shard:
        for i, data in enumerate(sounds):
            for name, content in ((f"{i}.txt", f"{i}: a noise".encode()), (f"{i}.ogg", data)):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                shard.addfile(member, io.BytesIO(content))
    rows = [
        {"text": f"{i}: a noise", "audio": {"bytes": data, "path": "a.ogg"}}
        for i, data in enumerate(sounds)
    ]
    table = datasets.Dataset.from_list(rows).cast_column("audio", datasets.Audio())
    sources = [
        Sounds(str(tmp_path / "a.tar"), text="txt", audios="ogg"),
        Sounds(table, text="text"),
        Sounds(rows, text="text"),
    ]
    batches = [next(iter(dataset(source, sound_processor()))) for source in sources]
    for batch in batches:
        assert batch.num_documents == 3
        assert batch.input_ids.equal(batches[-1].input_ids)
        assert batch.media["input_features"].equal(batches[-1].media["input_features"])


#: Before the plan.
WRONG = {
    "longer than the window": {"text": f"bad:{PLACE}", "audios": [sound(32001)]},
    "too short": {"text": f"bad:{PLACE}", "audios": [sound(100)]},
    "no sound": {"text": f"bad:{PLACE}", "audios": []},
    "two sounds": {"text": f"bad:{PLACE}", "audios": [sound(4000)] * 2},
    "without its marks": {"text": "bad:<|AUDIO|>", "audios": [sound(4000)]},
    "cut": {"text": f"bad:{PLACE}", "audios": [sound(4000)[:400]]},
    "webm": {"text": f"bad:{PLACE}", "audios": [sound(9600, 48000, form="webm", codec="libopus")]},
}


@pytest.mark.parametrize("kind", WRONG)
def test_sounds_that_cannot_be_planned_are_named_or_left_out(kind: str) -> None:
    given = [{"text": f"good:{PLACE}z", "audios": [sound(4000)]}, WRONG[kind]]
    with pytest.raises(ContentError) as caught:
        list(dataset(Sounds(given, text="text"), sound_processor()))
    assert caught.value.document == "item 1 of the list"
    loader = PackedLoader(dataset(Sounds(given, text="text"), sound_processor(), on_error="skip"))
    assert sum(batch.num_documents for batch in loader) == 1
    assert loader.metrics().skipped == 1


def test_sizes_from_fields_stand_for_heads_and_wrong_ones_take_the_loss() -> None:
    clip = sound(9600, 48000, form="webm", codec="libopus")
    samples, rate = counted(clip)
    right = {"text": f"good:{PLACE}z", "audios": [clip], "samples": samples, "rate": rate}
    names = ("samples", "rate")
    (batch,) = dataset(Sounds([right], text="text", sizes=names), sound_processor())
    (whole,) = dataset(Sounds([right], text="text", count="packets"), sound_processor())
    assert batch.media["input_features"].equal(whole.media["input_features"])
    for wrong in ({"samples": samples + 400}, {"samples": samples - 400}, {"rate": 22050}):
        given = [{**right, **wrong}]
        with pytest.raises(ContentError):
            list(dataset(Sounds(given, text="text", sizes=names), sound_processor()))
        (batch,) = dataset(
            Sounds(given, text="text", sizes=names), sound_processor(), on_error="skip"
        )
        assert not (batch.labels != -100).any()
    with pytest.raises(ConfigError) as caught:
        Sounds([right], text="text", sizes=("samples",))
    assert caught.value.setting == "sizes"


def test_processor_without_sounds_is_refused() -> None:
    from tests.support.vision import qwen_processor

    with pytest.raises(ConfigError) as caught:
        dataset(Sounds(documents(), text="text"), qwen_processor())
    assert caught.value.setting == "processor"


def test_head_that_declares_another_length_is_an_error_or_takes_the_loss() -> None:
    clip = sound(9000, form="mp3", codec="libmp3lame")
    at = clip.index(b"Info") + 8  # the number of frames
    clip = patched(clip, at + 146, b"\0\0")  # without a checksum
    lying = patched(clip, at, (int.from_bytes(clip[at : at + 4], "big") + 1).to_bytes(4, "big"))
    given = [
        {"text": f"good:{PLACE}z", "audios": [clip]}, {"text": f"bad:{PLACE}z", "audios": [lying]}
    ]  # fmt: skip
    with pytest.raises(ContentError) as caught:
        list(dataset(Sounds(given, text="text"), sound_processor()))
    assert caught.value.document == "item 1 of the list"
    loader = PackedLoader(dataset(Sounds(given, text="text"), sound_processor(), on_error="skip"))
    (batch,) = loader
    assert loader.metrics().skipped == 1
    assert [bool((batch.labels[batch.document_ids == i] != -100).any()) for i in (0, 1)] == [
        "bad" not in sound_processor().tokenizer.decode(batch.input_ids[batch.document_ids == i])
        for i in (0, 1)
    ]


def test_capacity_limits_the_seconds_of_sound_in_a_row() -> None:
    given = [
        {"text": f"{i}:{PLACE}", "audios": [sound(16000 * length // 10, seed=i)]}
        for i, length in enumerate([4, 6, 7, 3, 5, 5, 18])
    ]
    packer = BestFitDecreasing(seq_len=160, overflow="drop", limits=[Capacity({"patches": 100})])
    settings = {"seq_len": None, "packer": packer, "batch_size": 1, "provenance": True}
    made = dataset(Sounds(given, text="text"), sound_processor(), **settings)
    frames, names = [], []
    for batch in made:
        frames.append(int(batch.document_fields["patches"].sum()))
        assert int(batch.media["feature_attention_mask"].sum()) == frames[-1]
        names += [piece.index for piece in made.locate(batch)]
    assert sorted(frames) == [100, 100, 100]  # the sound of 1.8 s is dropped
    assert sorted(names) == [*range(6)]


def test_mixtures_of_sounds_take_texts_and_refuse_images() -> None:
    spoken = Sounds([{"text": f"{i}:{PLACE}", "audios": [sound(4000)]} for i in range(4)],
                    text="text")  # fmt: skip
    parts = {"spoken": spoken, "written": [{"text": f"{i}: words"} for i in range(4)]}
    mixed = Mixture(parts, weights={"spoken": 1, "written": 1})
    batches = list(dataset(mixed, sound_processor()))
    assert sum(len(batch.media.get("input_features", ())) for batch in batches) >= 3
    images = Images([{"text": "a", "images": [png(drawn(1, 20, 20))]}], text="text")
    mixed = Mixture({"spoken": spoken, "seen": images}, weights={"spoken": 1, "seen": 1})
    with pytest.raises(ConfigError) as caught:
        dataset(mixed, sound_processor())
    assert caught.value.setting == "source"


def test_sounds_are_replayed_and_resumed_in_the_batches_of_every_version(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [
        {"text": f"{i}:{PLACE}{'z' * (i % 7)}", "audio": sound(4000 + 500 * i, seed=i)}
        for i in range(20)
    ]
    settings = {"seq_len": 64, "batch_size": 1, "lanes": 2, "shuffle": True}
    named = script(tmp_path, "Sounds", "sound_processor", given, **settings)
    assert hashed(assert_replayed(named, tmp_path, capsys)) == "7f54a321fd7e739f"


def test_explain_tells_tokens_per_second_of_sound_and_the_share_that_no_row_takes() -> None:
    given = [{"text": f"{i}:{PLACE}", "audio": sound(16000 * (1 + i % 2))} for i in range(8)]
    explained = dataset(Sounds(given, text="text"), sound_processor(), seq_len=48).explain()
    (media,) = explained.media
    assert media[:4] == ("audio", 8, 12.0, 4 * 25 + 4 * 50)
    assert media.lost == pytest.approx(2 / 3)  # the sounds of two seconds
    assert str(media) in str(explained)
    assert explained.as_dict()["media"] == [media._asdict()]
