"""Sounds in documents: sizes from heads, ids and features of the processor, losses alone."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("av", reason="PyAV, the extra [video]")

from streampack import PackedDataset, PackedLoader, Topology
from streampack.errors import ConfigError, ContentError
from streampack.images.model_arguments import media_of
from streampack.media import Sounds
from streampack.sounds.files import samples_of, size_of
from streampack.sources import Storage
from tests.support.runs import identity
from tests.support.simulated_ranks import over_legs
from tests.support.sounds import PLACE, counted, sound, sound_processor
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


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "audio"}, {"type": "text", "text": "what"}],
        "<audio>what",
    ],
)
def test_conversations_have_the_ids_of_the_processors_template(content: Any) -> None:
    processor, clip = sound_processor(), sound(8000)
    messages = [{"role": "user", "content": content}, {"role": "assistant", "content": "noise"}]
    (batch,) = dataset(Sounds([{"messages": messages, "audios": [clip]}]), processor, seq_len=256)
    parts = [{"type": "audio"}, {"type": "text", "text": "what"}]
    asked = [{"role": "user", "content": parts}, messages[1]]
    text = processor.apply_chat_template(asked, tokenize=False)
    wanted = processed(processor, {"text": text, "audios": [clip]})
    ids = batch.input_ids[batch.document_ids == 0].tolist()
    assert ids == wanted["input_ids"][0].tolist()
    assert (batch.labels != -100).any()


def test_sounds_of_tar_shards_and_of_the_audio_feature_of_datasets(tmp_path: Path) -> None:
    import datasets

    sounds = [sound(4000 + 500 * i, seed=i) for i in range(3)]
    with tarfile.open(tmp_path / "a.tar", "w") as shard:
        for i, data in enumerate(sounds):
            for name, content in ((f"{i}.txt", f"{i}: a noise".encode()), (f"{i}.wav", data)):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                shard.addfile(member, io.BytesIO(content))
    rows = [
        {"text": f"{i}: a noise", "audio": {"bytes": data, "path": "a.wav"}}
        for i, data in enumerate(sounds)
    ]
    table = datasets.Dataset.from_list(rows).cast_column("audio", datasets.Audio())
    sources = [
        Sounds(str(tmp_path / "a.tar"), text="txt", audios="wav"),
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
