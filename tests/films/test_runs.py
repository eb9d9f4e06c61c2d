"""Films in runs: damaged and lying files, sizes from fields, files by path and URL."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streampack import BestFitDecreasing, PackedLoader
from streampack.errors import ConfigError, ContentError
from streampack.images.model_arguments import media_of
from streampack.media import Films
from streampack.packing import Capacity
from streampack.sources import Storage
from tests.support.clips import film, patched
from tests.support.films import PLACE, film_processor
from tests.support.media_runs import assert_replayed, hashed, script
from tests.support.vision_runs import dataset

GOOD = {"text": f"good:{PLACE}z", "videos": [film(24)]}


def bad(clip: Any) -> dict[str, Any]:
    return {"text": f"bad:{PLACE}zzz", "videos": [clip]}


def run(documents: Any, **settings: Any) -> Any:
    settings = {"seq_len": 400, **settings}
    made = {name: settings.pop(name) for name in ("sizes", "count", "folder") if name in settings}
    return dataset(Films(documents, text="text", **made), film_processor(), **settings)


def learnt_by_name(batches: Any) -> dict[str, bool]:
    """Return by the first word of each document if it has a token with loss."""
    tokenizer, learnt = film_processor().tokenizer, {}
    for batch in batches:
        for number in range(batch.num_documents):
            at = batch.document_ids == number
            name = tokenizer.decode(batch.input_ids[at].tolist()).partition(":")[0]
            learnt[name] = bool((batch.labels[at] != -100).any())
    return learnt


def lying(data: bytes, pixels: int, side: str = "height") -> bytes:
    """A film with another height or width in its head than in its frames."""
    at = data.index(b"avc1", data.index(b"stsd")) + 4 + (26 if side == "height" else 24)
    return patched(data, at, pixels.to_bytes(2, "big"))


#: Before the plan: heads that cannot be counted.
UNPLANNED = {
    "empty": b"",
    "text": b"<html>404</html>",
    "cut": film(24)[:3000],
    "webm": film(7, form="webm", codec="libvpx"),
    "fragmented": film(7, options={"movflags": "frag_keyframe+empty_moov"}),
    "billions of pixels": lying(lying(film(24), 65000), 65000, side="width"),
    "longer than 200 times its width": film(4, size=(1200, 4), codec="mpeg4"),
}


@pytest.mark.parametrize("kind", UNPLANNED)
def test_films_that_cannot_be_planned_are_named_or_their_documents_left_out(kind: str) -> None:
    documents = [GOOD, bad(UNPLANNED[kind])]
    with pytest.raises(ContentError) as caught:
        list(run(documents))
    assert caught.value.document == "item 1 of the list"
    loader = PackedLoader(run(documents, on_error="skip"))
    assert learnt_by_name(loader) == {"good": True}
    assert loader.metrics().skipped == 1


#: After the plan: heads that the frames contradict.
CONTRADICTED = {
    "another height": lying(film(24), 96),
    "8,000 lines more": lying(film(48), 8000),
    "no frames": patched(film(24, codec="mpeg4"), 48, b"\0" * 3000),
}


@pytest.mark.parametrize("kind", CONTRADICTED)
def test_films_unlike_their_heads_are_named_or_stay_without_loss(kind: str) -> None:
    documents = [GOOD, bad(CONTRADICTED[kind])]
    with pytest.raises(ContentError) as caught:
        list(run(documents))
    assert caught.value.document == "item 1 of the list"
    loader = PackedLoader(run(documents, on_error="skip"), num_workers=1)
    assert learnt_by_name(loader) == {"good": True, "bad": False}
    assert loader.metrics().skipped == 1


def test_sizes_from_fields_stand_for_heads_and_wrong_ones_are_errors() -> None:
    webm = film(48, form="webm", codec="libvpx")
    right = {"frames": 48, "height": 48, "width": 64, "fps": 24.0}
    names = ("frames", "height", "width", "fps")
    (batch,) = run([{**bad(webm), **right}], sizes=names)
    (counted,) = run([bad(webm)], count="packets")
    assert batch.media["pixel_values_videos"].equal(counted.media["pixel_values_videos"])
    for wrong in ({"frames": 60}, {"frames": 40}, {"height": 52}, {"fps": 12}):
        with pytest.raises(ContentError):
            list(run([{**bad(webm), **right, **wrong}], sizes=names))
    for broken in ({"fps": 0}, {"frames": None}, {"width": "64"}, {"fps": float("nan")}):
        with pytest.raises(ContentError):
            list(run([{**bad(webm), **right, **broken}], sizes=names))
    with pytest.raises(ConfigError) as caught:
        Films([], sizes=("frames", "height"))
    assert caught.value.setting == "sizes"


def test_lines_of_json_name_films_by_path_and_url(tmp_path: Path) -> None:
    import fsspec

    clips = [film(24 + i, seed=i) for i in range(3)]
    for i, clip in enumerate(clips):
        (tmp_path / f"{i}.mp4").write_bytes(clip)
        fsspec.filesystem("memory").pipe(f"memory://films/{i}.mp4", clip)
    batches = []
    for folder in (str(tmp_path), "memory://films", None):
        lines = [
            {"text": f"{i}:{PLACE}", "video": clip if folder is None else f"{i}.mp4"}
            for i, clip in enumerate(clips)
        ]
        source: Any = lines
        if folder is not None:
            source = tmp_path / "a.jsonl"
            source.write_text("".join(json.dumps(each) + "\n" for each in lines))
            source = str(source)
        storage = {} if folder is None else {"storage": Storage(cache_dir=tmp_path / "cache")}
        given = Films(source, text="text", folder=folder, **storage)
        (batch,) = dataset(given, film_processor(), seq_len=160)
        batches.append((batch.input_ids, batch.media["pixel_values_videos"]))
    for ids, pixels in batches[1:]:
        assert ids.equal(batches[0][0])
        assert pixels.equal(batches[0][1])


def test_rows_have_at_most_their_capacity_of_patches_of_films() -> None:
    documents = [{"text": f"{i}:{PLACE}", "videos": [film(24, seed=i)]} for i in range(5)]
    (one,) = run(documents[:1])
    patches = int(one.document_fields["patches"][0])
    assert patches == len(one.media["pixel_values_videos"])
    packer = BestFitDecreasing(
        seq_len=800, overflow="drop", limits=[Capacity({"patches": 2 * patches})]
    )
    made = dataset(Films(documents, text="text"), film_processor(), packer=packer, seq_len=None)
    for batch in made:
        assert max(len({*row.tolist()} - {-1}) for row in batch.document_ids) <= 2


def test_settings_of_a_single_film_are_refused() -> None:
    part = {"type": "video", "video": film(4), "fps": 1.0}
    record = {"messages": [
        {"role": "user", "content": [part]}, {"role": "assistant", "content": "no"}
    ]}  # fmt: skip
    processor = film_processor()
    processor.chat_template = "{{ messages }}"
    with pytest.raises(ContentError, match="fps"):
        list(dataset(Films([record]), processor))


@pytest.mark.slow
def test_flipped_bits_of_films_are_skips_or_the_same_documents() -> None:
    data, rng = film(24), np.random.default_rng(0)
    at, tokenizer, kinds = data.index(b"moov") - 4, film_processor().tokenizer, Counter()
    flips, places = [], []
    for number in range(1000):  # three of four in the head
        place = int(rng.integers(at if number % 4 else 0, len(data)))
        places.append("head" if place >= at or place < 48 else "frames")
        flips.append(patched(data, place, bytes([data[place] ^ 1 << int(rng.integers(8))])))
    (whole,) = run([{"text": f"0:{PLACE}", "videos": [data]}])
    pixels, length = whole.media["pixel_values_videos"], int((whole.document_ids == 0).sum())
    for begin in range(0, 1000, 100):
        documents = [
            {"text": f"{i}:{PLACE}", "videos": [each]}
            for i, each in enumerate(flips[begin : begin + 100])
        ]
        loader, left = PackedLoader(run(documents, on_error="skip")), {*range(100)}
        for batch in loader:
            for number in range(batch.num_documents):
                at_document = batch.document_ids == number
                ids = batch.input_ids[at_document].tolist()
                name = tokenizer.decode(ids).partition(":")[0]
                left.remove(int(name))
                media = media_of(batch, number)["pixel_values_videos"]
                if not (batch.labels[at_document] != -100).any():
                    kinds["without loss"] += 1
                elif len(ids) - len(name) == length - 1 and media.shape == pixels.shape:
                    other = f"other pixels by {places[begin + int(name)]}"
                    kinds["same" if media.equal(pixels) else other] += 1
                else:
                    kinds["another film"] += 1
        kinds["skipped"] += len(left)
        assert loader.metrics().skipped >= len(left)
    assert kinds["skipped"] + kinds["without loss"] > 200
    assert kinds["same"] > 50
    assert kinds["another film"] == 0, kinds
    assert kinds["other pixels by head"] < 3, kinds  # settings of the codec, which has no checksum


def test_films_are_located_and_forecast() -> None:
    documents = [{"text": f"{i}:{PLACE}", "videos": [film(24, seed=i)]} for i in range(4)]
    made = run(documents, batch_size=1, provenance=True)
    batches = list(made)
    pieces = [piece for batch in batches for piece in made.locate(batch)]
    assert sorted(piece.index for piece in pieces) == [0, 1, 2, 3]
    tokens = sum(int((batch.document_ids >= 0).sum()) for batch in batches)
    assert made.explain().sample.lengths.sum() == tokens


def test_films_are_replayed_and_resumed_in_the_batches_of_every_version(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [
        {"text": f"{i}:{PLACE}{'z' * (i % 7)}", "video": film(12 + 4 * i, seed=i)}
        for i in range(12)
    ]
    settings = {"seq_len": 256, "batch_size": 1, "lanes": 2, "shuffle": True}
    named = script(tmp_path, "Films", "film_processor", given, **settings)
    assert hashed(assert_replayed(named, tmp_path, capsys)) == "12fb838d4982c210"


def test_explain_tells_tokens_per_second_of_film() -> None:
    documents = [{"text": f"{i}:{PLACE}", "videos": [film(24 * (1 + i % 2))]} for i in range(4)]
    tokens = [int(batch.document_fields["patches"].sum()) // 4 for batch in run(documents[:2])]
    (media,) = run(documents).explain().media
    assert media == ("video", 4, 6.0, 2 * sum(tokens), 0.0)
