"""Sounds, or any files, that a model of one's own opens: by given sizes, as images are."""

from __future__ import annotations

import io
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streampack import PackedDataset, PackedLoader, Topology
from streampack.errors import ContentError
from streampack.forms.image_columns import images_of
from streampack.images import Images
from tests.support.runs import identity
from tests.support.simulated_ranks import over_legs
from tests.support.vision import drawn, fast_tokenizer, png, qwen_processor
from tests.support.vision_runs import dataset

FRAME = 40  # samples of a token


class Loudness:
    """A token for every 40 samples, with their mean as its feature."""

    image_token = "<sound>"
    smallest = (FRAME,)

    def __init__(self) -> None:
        self.tokenizer = fast_tokenizer(["<|endoftext|>", "<sound>"])

    def plan(self, samples: int) -> tuple[int, int]:
        return -(-samples // FRAME), -(-samples // FRAME)

    def open(self, data: bytes) -> Any:
        with wave.open(io.BytesIO(data)) as file:
            return np.frombuffer(file.readframes(file.getnframes()), dtype=np.int16)

    def blank(self, samples: int) -> Any:
        return np.zeros(samples, dtype=np.int16)

    def arrays(self, opened: Any) -> dict[str, Any]:
        padded = np.pad(opened, (0, -len(opened) % FRAME)).reshape(-1, FRAME)
        return {"pixel_values": padded.mean(1, keepdims=True, dtype=np.float32)}

    def describe(self) -> dict[str, Any]:
        return {"frame": FRAME}


def sound(seed: int, samples: int) -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        values = np.random.default_rng(seed).integers(-999, 999, samples).astype("<i2")
        file.writeframes(values.tobytes())
    return out.getvalue()


def records(count: int) -> list[dict[str, Any]]:
    """Texts with none to two sounds."""
    made, rng = [], np.random.default_rng(2)
    for i in range(count):
        samples = rng.integers(1, 900, rng.integers(0, 3)).tolist()
        sounds = [sound(10 * i + k, own) for k, own in enumerate(samples)]
        text = f"{i}:" + "<sound>z" * len(samples)
        made.append({"text": text, "sounds": sounds, "samples": samples})
    return made


def source(given: list[dict[str, Any]], sizes: tuple[str, ...] | None = ("samples",)) -> Images:
    return Images(given, text="text", images="sounds", sizes=sizes)


def features_of(batches: Any) -> dict[str, bytes]:
    """Return features by the first words of the documents."""
    model, found = Loudness(), {}
    for batch in batches:
        rows = np.append(0, np.cumsum(images_of(batch).entries))
        for number in range(batch.num_documents):
            ids = batch.input_ids[batch.document_ids == number].tolist()
            own = np.flatnonzero(images_of(batch).pieces == number)
            values = [batch.media["pixel_values"][rows[i] : rows[i + 1]].numpy() for i in own]
            places = ids.count(model.tokenizer.convert_tokens_to_ids("<sound>"))
            assert sum(map(len, values)) == places
            name = model.tokenizer.decode(ids).partition(":")[0]
            found[name] = b"".join(each.tobytes() for each in values)
    return found


def wanted(given: list[dict[str, Any]]) -> dict[str, bytes]:
    model = Loudness()
    return {
        str(i): b"".join(
            model.arrays(model.open(each))["pixel_values"].tobytes() for each in one["sounds"]
        )
        for i, one in enumerate(given)
    }


def test_features_of_sounds_equal_the_features_of_each_alone() -> None:
    given = records(40)
    assert features_of(dataset(source(given), Loudness())) == wanted(given)


def test_workers_read_sounds_that_are_named_by_path(tmp_path: Path) -> None:
    given = records(40)
    named = []
    for i, one in enumerate(given):
        paths = [tmp_path / f"{i}-{k}.wav" for k in range(len(one["sounds"]))]
        for path, data in zip(paths, one["sounds"], strict=True):
            path.write_bytes(data)
        named.append({**one, "sounds": [str(path) for path in paths]})
    loader = PackedLoader(dataset(source(named), Loudness(), lanes=2), num_workers=2)
    assert features_of(loader) == wanted(given)


def test_sequence_over_other_ranks_is_the_same_with_features() -> None:
    given = records(60)

    def make(topology: Topology) -> PackedDataset:
        made = {"topology": topology, "lanes": 4, "seq_len": 64, "batch_size": 1}
        return dataset(source(given), Loudness(), **made)

    def of(batch: Any) -> Any:
        return *identity(batch), batch.media["pixel_values"].numpy().tobytes()

    whole = over_legs(make, [(1, 0, 999)], of)
    assert len(whole) > 12
    assert over_legs(make, [(1, 0, 3), (2, 0, 2), (3, 0, 99)], of) == whole


@pytest.mark.parametrize("change", ["cut", "another size", "no sound"])
def test_sound_that_is_not_as_planned_is_named_or_its_document_without_loss(change: str) -> None:
    given = records(12)
    at = next(i for i, one in enumerate(given) if one["sounds"])
    data = given[at]["sounds"][0]
    given[at]["sounds"][0] = {
        "cut": data[:20], "another size": sound(1, 2000), "no sound": b"RIFF" * 9
    }[change]  # fmt: skip
    with pytest.raises(ContentError) as caught:
        list(dataset(source(given), Loudness()))
    assert caught.value.document == f"item {at} of the list"
    loader = PackedLoader(dataset(source(given), Loudness(), on_error="skip"))
    assert features_of(loader).keys() == {str(i) for i in range(12)}
    assert loader.metrics().skipped == 1


def test_sizes_that_are_not_given_or_not_two_for_an_image_are_named() -> None:
    with pytest.raises(ContentError, match="sizes="):
        list(dataset(source(records(12), None), Loudness()))
    image = {"text": "<|image_pad|>", "sounds": [png(drawn(0, 20, 20))], "samples": 400}
    with pytest.raises(ContentError, match="two numbers"):
        list(dataset(source([image]), qwen_processor()))


def test_batch_without_sounds_gets_the_smallest() -> None:
    given = [{"text": f"{i}: words", "sounds": [], "samples": []} for i in range(6)]
    (batch,) = dataset(source(given), Loudness())
    assert batch.media["pixel_values"].shape == (1, 1)
    assert len(images_of(batch).blank) == 1
