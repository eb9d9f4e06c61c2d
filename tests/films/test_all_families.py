"""Films of all families: ids, pixels and other arrays of the processor, for made processors."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from streampack import PackedLoader, check_isolation
from streampack.errors import ConfigError, ContentError
from streampack.films.families import FILM_FAMILIES, REFUSED
from streampack.films.planner import FilmPlanner
from streampack.hf.isolation import without_loss
from streampack.images.model_arguments import media_of
from streampack.media import Films
from tests.support.clips import decoded, film, turned
from tests.support.film_models import MODELS, SEQ_LENS, VIDEOS, model_of
from tests.support.film_models import REFUSED as UNSERVED
from tests.support.film_processors import FAMILIES, processor_of
from tests.support.films import as_processed
from tests.support.vision_runs import dataset


@pytest.fixture(scope="module")
def clips() -> list[bytes]:
    return [
        film(49, rate=Fraction(30000, 1001), seed=1, size=(84, 56)),
        turned(film(60, seed=2, size=(84, 56)), 90),
        film(100, size=(80, 32), rate=25, seed=4, codec="mpeg4"),
    ]


def test_every_family_that_is_taken_is_tested() -> None:
    assert {f"{each}Processor" for each in FAMILIES} == {*FILM_FAMILIES}
    assert not {*FILM_FAMILIES} & {*REFUSED}


@pytest.mark.parametrize("family", FAMILIES)
def test_ids_and_arrays_of_documents_match_the_processor(family: str, clips: list[bytes]) -> None:
    processor = processor_of(family)
    token = processor.video_token
    if family == "MiniMaxM3VL":  # by default it does not resize, and takes sides of 28 n pixels
        clips = [*clips[:2], film(31, size=(56, 56), seed=4)]
    given = [{"text": f"{i}:ab\n{token}zz", "videos": [clip]} for i, clip in enumerate(clips)]
    given += [{"text": f"3:{token}\nand{token}", "videos": clips[:2]}, {"text": "4: none"}]
    made = dataset(Films(given, text="text"), processor, seq_len=16384, batch_size=1)
    names = set()
    for batch in PackedLoader(made):
        for number in range(batch.num_documents):
            ids = batch.input_ids[batch.document_ids == number].tolist()
            name = int(processor.tokenizer.decode(ids).partition(":")[0])
            names.add(name)
            media, document = media_of(batch, number), given[name]
            if name == 4:
                assert not media
                continue
            films = zip(*map(decoded, document["videos"]), strict=True)
            wanted = as_processed(processor, document["text"], *map(list, films))
            assert ids == wanted.pop("input_ids")[0].tolist()
            of_text = ("attention_mask", "mm_token_type_ids", "token_type_ids")
            arrays = {name: each for name, each in wanted.items() if name not in of_text}
            assert media.keys() == arrays.keys()
            for name, array in arrays.items():
                array = array.flatten(0, 1) if family == "SmolVLM" else array  # films of a batch
                assert torch.equal(media[name].to(array.dtype), array), name
    assert names == {*range(5)}


def test_texts_that_share_a_token_with_the_time_of_a_film_are_refused(clips: list[bytes]) -> None:
    processor = processor_of("VideoLlama3")
    made = json.loads(processor.tokenizer.backend_tokenizer.to_str())
    vocabulary = made["model"]["vocab"]  # in place of a byte that no text here has
    vocabulary["bT"] = vocabulary.pop(max(vocabulary, key=vocabulary.get))
    made["model"]["merges"] = [["b", "T"]]
    processor.tokenizer._tokenizer = Tokenizer.from_str(json.dumps(made))
    token = processor.video_token

    def run(text: str) -> Any:
        source = Films([{"text": text, "videos": clips[:1]}], text="text")
        return list(dataset(source, processor, seq_len=16384, batch_size=1))

    with pytest.raises(ContentError, match="share a token"):
        run(f"ab{token}")
    for text in (f"a{token}", f"ab\n{token}T", token):
        (batch,) = run(text)
        wanted = as_processed(processor, text, *([each] for each in decoded(clips[0])))
        assert batch.input_ids[batch.document_ids == 0].tolist() == wanted["input_ids"][0].tolist()


def test_counts_that_depend_on_pixels_and_families_that_are_not_read_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        FilmPlanner(processor_of("VideoLlama3", use_token_compression=True))
    assert caught.value.setting == "processor"
    odd = type("Ernie4_5_VLMoeProcessor", (), {"video_processor": None})()
    with pytest.raises(ConfigError, match="font"):
        FilmPlanner(odd)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("family", [*MODELS, *UNSERVED])
def test_models_keep_documents_with_films_apart_or_are_refused(
    family: str, clips: list[bytes]
) -> None:
    if family == "PerceptionLM":
        pytest.importorskip("timm")
    processor = processor_of(family, **VIDEOS.get(family, {}))
    model = model_of(family, processor)
    texts = [f"{i}:ab\n{processor.video_token}\nzz" for i in range(2)]
    if family == "MiniMaxM3VL":
        clips = [film(31, size=(56, 56), seed=i) for i in range(2)]
    given = [{"text": text, "videos": [clip]} for text, clip in zip(texts, clips, strict=False)]
    source = Films([*given, {"text": "2: none"}], text="text")
    seq_len = SEQ_LENS.get(family, 480)
    (batch,) = dataset(source, processor, seq_len=seq_len, batch_size=1)
    assert batch.num_documents == 3
    call = lambda one: model(**without_loss(one.hf(model=model)))  # noqa: E731
    if family in UNSERVED:
        with pytest.raises(ConfigError) as caught:
            call(batch)
        assert caught.value.setting == "model"
        return
    assert check_isolation(model, batch, call=call)


def test_every_family_is_tried_with_a_model() -> None:
    tried = {*MODELS, *UNSERVED, "InternVL", "LlavaOnevision", "Qwen2VL", "Qwen2_5_VL", "Qwen3VL"}
    tried |= {"Glm4v", "Qwen2_5Omni", "Qwen3OmniMoe"}  # in test_families.py, test_sound_inside.py
    assert tried == {*FAMILIES}


@pytest.mark.parametrize("family", ["Qwen2_5Omni", "Qwen3OmniMoe"])
def test_tokens_of_sounds_are_refused(family: str) -> None:
    processor = processor_of(family)
    with pytest.raises(ContentError) as error:
        list(dataset(Films([{"text": f"a{processor.audio_token}"}], text="text"), processor))
    assert error.value.index == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_grey_films_and_least_films_have_the_arrays_of_a_family(family: str) -> None:
    planner = FilmPlanner(processor_of(family))
    size = (60, 56, 84, 24, 1)
    _, (patches,) = planner.plan([size])
    assert planner.count(planner.arrays(planner.blank(size))) == patches
    arrays, tokens = planner.smallest
    assert arrays
    assert tokens > 0
