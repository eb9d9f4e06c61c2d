"""Films in documents: ids, grids and pixels of the processor, and losses of documents alone."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import torch

from streampack import PackedDataset, PackedLoader, Topology, check_isolation
from streampack.errors import ConfigError, ContentError
from streampack.forms.image_columns import images_of
from streampack.hf.isolation import without_loss
from streampack.media import Films, Images
from tests.images.test_losses import IN_SINGLE_PRECISION, gradients, logits_of, loss_of
from tests.support.clips import decoded, film, turned
from tests.support.films import (
    FAMILIES,
    MODELS,
    PLACE,
    as_processed,
    film_model,
    film_processor,
    with_model,
)
from tests.support.runs import identity
from tests.support.simulated_ranks import over_legs
from tests.support.vision import PLACE as IMAGE
from tests.support.vision import drawn, png, records
from tests.support.vision_families import FAMILIES as IMAGES
from tests.support.vision_runs import dataset

UNEVEN = [0, 1, 2, 3, 7, 9, 10, 11, 12, 13, 14, 15, 18, 19, 20, 25, 26, 27, 28, 40]


@pytest.fixture(scope="module")
def clips() -> list[bytes]:
    """Films of odd rates, codecs, turns and times."""
    return [
        film(12),
        film(31, rate=Fraction(30000, 1001), seed=1, form="mov"),
        turned(film(48, seed=2), 90),
        film(20, codec="libvpx-vp9", seed=3, times=UNEVEN),
        film(9, size=(80, 32), rate=3, seed=4, codec="mpeg4"),
    ]


def given(clips: list[bytes]) -> list[dict[str, Any]]:
    alone = [{"text": f"{i}:ab{PLACE}zz", "videos": [clip]} for i, clip in enumerate(clips)]
    both = {"text": f"{len(clips)}:{PLACE}and{PLACE}so", "videos": clips[:2]}
    return [*alone, both] if clips[1:] else alone


def placed(documents: list[dict[str, Any]], processor: Any, family: str) -> list[dict[str, Any]]:
    """Write the placeholders of a family, at the beginning of lines, into texts."""
    if family in FAMILIES:
        return documents
    film = "<|begin_of_video|><|video|><|end_of_video|>" if family == "GLM-4V" else "<video>"
    image = IMAGES[family].place
    return [
        {**one, "text": one["text"].replace(PLACE, f"\n{film}\n").replace(IMAGE, f"\n{image}")}
        for one in documents
    ]


def by_name(batches: Any, processor: Any) -> dict[str, tuple[list[int], dict[str, Any]]]:
    """Return ids and media of documents by the first words."""
    from streampack.images.model_arguments import media_of

    found = {}
    for batch in batches:
        for number in range(batch.num_documents):
            ids = batch.input_ids[batch.document_ids == number].tolist()
            name = processor.tokenizer.decode(ids).partition(":")[0]
            found[name] = ids, media_of(batch, number)
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_ids_grids_and_pixels_match_the_processor(family: str, clips: list[bytes]) -> None:
    processor = film_processor(family)
    documents = given(clips)
    made = dataset(Films(documents, text="text"), processor, seq_len=800)
    found = by_name(PackedLoader(made, num_workers=1), processor)
    assert len(found) == len(documents)
    for name, document in enumerate(documents):
        films = [decoded(clip) for clip in document["videos"]]
        wanted = as_processed(processor, document["text"], *map(list, zip(*films, strict=True)))
        ids, media = found[str(name)]
        assert ids == wanted["input_ids"][0].tolist()
        assert torch.equal(media["pixel_values_videos"], wanted["pixel_values_videos"])
        assert media["video_grid_thw"].tolist() == wanted["video_grid_thw"].tolist()
        if "second_per_grid_ts" in wanted:
            assert media["second_per_grid_ts"].tolist() == pytest.approx(
                [float(each) for each in wanted["second_per_grid_ts"]]
            )


@pytest.mark.parametrize("family", MODELS)
def test_losses_and_gradients_match_single_documents(family: str, clips: list[bytes]) -> None:
    processor, model = with_model(family)
    images = [] if family == "GLM-4V" else records(3)  # it takes no images beside films
    documents = placed([*given(clips[:3]), *images], processor, family)
    documents = [{**one, "text": f"{i}: {one['text']}"} for i, one in enumerate(documents)]
    (batch,) = dataset(Films(documents, text="text"), processor, seq_len=480, batch_size=3)
    logits = logits_of(model, batch.hf(model=model))
    packed = loss_of(logits, batch.labels)
    packed.backward()
    of_packed = gradients(model)
    places = [batch.document_ids == number for number in range(batch.num_documents)]
    learnt = {tuple(batch.input_ids[at].tolist()): batch.labels[at] for at in places}
    assert len(learnt) == len(documents)
    alone = torch.zeros((), dtype=torch.float64)
    for one in documents:
        if "videos" in one:
            films = [decoded(clip) for clip in one["videos"]]
            made = as_processed(processor, one["text"], *map(list, zip(*films, strict=True)))
        else:
            images = [drawn_again(each) for each in one["images"]]
            made = processor(text=[one["text"]], images=images or None, return_tensors="pt")
        loss = loss_of(logits_of(model, made), learnt[tuple(made["input_ids"][0].tolist())])
        loss.backward()
        alone += loss.detach()
    tolerance = 1e-6 if family in IN_SINGLE_PRECISION else 1e-12
    torch.testing.assert_close(packed.detach(), alone, rtol=tolerance, atol=0)
    of_alone = gradients(model)
    assert of_packed.keys() == of_alone.keys()
    for name, gradient in of_alone.items():
        atol = tolerance * max(float(gradient.abs().max()), 1)
        torch.testing.assert_close(of_packed[name], gradient, rtol=0, atol=atol)


def drawn_again(data: bytes) -> Any:
    from streampack.images.images import decoded as image
    from streampack.images.images import size_of

    return image(data, size_of(data))


@pytest.mark.parametrize("family", MODELS)
def test_documents_with_films_are_isolated(family: str, clips: list[bytes]) -> None:
    processor, model = with_model(family)
    documents = placed(given(clips[:3]), processor, family)
    batch = next(iter(dataset(Films(documents, text="text"), processor, seq_len=480)))
    call = lambda one: model(**without_loss(one.hf(model=model)))  # noqa: E731
    assert check_isolation(model, batch, call=call)


def test_batch_with_films_needs_the_model(clips: list[bytes]) -> None:
    source = Films(given(clips[:1]), text="text")
    batch = next(iter(dataset(source, film_processor(), seq_len=480)))
    with pytest.raises(ConfigError) as caught:
        batch.hf()
    assert caught.value.setting == "model"
    assert batch.hf(model=film_model("Qwen2-VL"))["position_ids"].shape[0] == 4


def test_sequence_over_other_ranks_is_the_same_with_films(clips: list[bytes]) -> None:
    documents = [
        {"text": f"{i}:{PLACE}{'z' * (i % 7)}", "videos": [clips[i % 5]]} for i in range(24)
    ]

    def make(topology: Topology) -> PackedDataset:
        settings = {"topology": topology, "lanes": 4, "seq_len": 256, "batch_size": 1}
        return dataset(Films(documents, text="text"), film_processor(), **settings)

    def of(batch: Any) -> Any:
        media = batch.media.get("pixel_values_videos")
        return *identity(batch), None if media is None else media.numpy().tobytes()

    whole = over_legs(make, [(1, 0, 999)], of)
    assert len(whole) > 6
    assert over_legs(make, [(1, 0, 2), (2, 0, 1), (3, 0, 99)], of) == whole


def conversations(clip: bytes, image: bytes) -> dict[str, dict[str, Any]]:
    """One conversation in the forms of several trainers."""
    ask, answer = "what is it", {"role": "assistant", "content": "a film"}
    user = {"role": "user"}
    part = {"type": "text", "text": ask}
    said = [
        {"from": "human", "value": f"<video>{ask}"}, {"from": "gpt", "value": "a film"}
    ]  # fmt: skip
    return {
        "Qwen": {"messages": [
            {**user, "content": [{"type": "video", "video": clip}, part]}, answer
        ]},
        "OpenAI": {"messages": [
            {**user, "content": [{"type": "video_url", "video_url": {"bytes": clip}}, part]}, answer
        ]},
        "field": {"messages": [{**user, "content": [{"type": "video"}, part]}, answer],
                  "videos": [clip]},
        "LLaMA-Factory": {"messages": [{**user, "content": f"<video>{ask}"}, answer],
                          "videos": [clip]},
        "ShareGPT": {"conversations": said, "video": clip},
        "LLaVA-Video": {"conversations": [
            {"from": "human", "value": f"<image>{ask}"}, {"from": "gpt", "value": "a film"}
        ], "video": clip},
    }  # fmt: skip


TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}{% if part.type == 'image' %}" + IMAGE
    + "{% elif part.type == 'video' %}" + PLACE + "{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
)  # fmt: skip


def chat_processor() -> Any:
    processor = film_processor()
    processor.chat_template = TEMPLATE
    return processor


@pytest.mark.parametrize(
    "form", ["Qwen", "OpenAI", "field", "LLaMA-Factory", "ShareGPT", "LLaVA-Video"]
)
def test_conversations_of_all_forms_have_the_ids_of_the_processor(
    form: str, clips: list[bytes]
) -> None:
    record = conversations(clips[0], b"")[form]
    processor = chat_processor()
    (batch,) = dataset(Films([record]), processor, seq_len=256)
    frames, rate = decoded(clips[0])
    text = (
        f"<|im_start|>user\n{PLACE}what is it<|im_end|>\n<|im_start|>assistant\na film<|im_end|>\n"
    )
    wanted = as_processed(processor, text, [frames], [rate])
    ids = batch.input_ids[batch.document_ids == 0].tolist()
    assert ids == wanted["input_ids"][0].tolist()
    learnt = batch.input_ids[batch.labels != -100].tolist()
    assert processor.tokenizer.decode(learnt) == "a film<|im_end|>"


def test_images_and_films_of_a_conversation_keep_their_places(clips: list[bytes]) -> None:
    image = png(drawn(5, 30, 24))
    content = [
        {"type": "video", "video": clips[0]}, {"type": "image", "image": image},
        {"type": "video", "video": clips[2]}, {"type": "text", "text": "which"},
    ]  # fmt: skip
    record = {"messages": [
        {"role": "user", "content": content}, {"role": "assistant", "content": "the last"}
    ]}  # fmt: skip
    processor = chat_processor()
    (batch,) = dataset(Films([record]), processor, seq_len=480)
    assert images_of(batch).kinds.tolist() == ["video", "image", "video"]
    films = [decoded(clips[0]), decoded(clips[2])]
    text = (
        f"<|im_start|>user\n{PLACE}{IMAGE}{PLACE}which<|im_end|>\n"
        "<|im_start|>assistant\nthe last<|im_end|>\n"
    )
    wanted = as_processed(
        processor, text, *map(list, zip(*films, strict=True)), images=[drawn(5, 30, 24)]
    )
    assert batch.input_ids[batch.document_ids == 0].tolist() == wanted["input_ids"][0].tolist()
    for name in ("pixel_values", "pixel_values_videos", "image_grid_thw", "video_grid_thw"):
        assert torch.equal(batch.media[name].to(wanted[name].dtype), wanted[name]), name
    shown = str(batch.show(processor.tokenizer, color=False))
    assert shown.count("[video, ") == 2
    assert shown.count("[image, ") == 1


def test_settings_of_the_video_processor_are_in_the_fingerprint(clips: list[bytes]) -> None:
    def state(**settings: Any) -> Any:
        loader = PackedLoader(
            dataset(Films(given(clips[:2]), text="text"), film_processor(**settings), seq_len=480)
        )
        next(iter(loader))
        return loader

    saved = state().state_dict()
    state().load_state_dict(saved)
    with pytest.raises(Exception, match="media"):
        state(fps=1).load_state_dict(saved)
    assert "Films" in repr(Films(given(clips[:1]), text="text"))


def test_processor_without_films_is_refused(clips: list[bytes]) -> None:
    from tests.support.vision import qwen_processor

    with pytest.raises(ConfigError) as caught:
        dataset(Films(given(clips[:1]), text="text"), qwen_processor())
    assert caught.value.setting == "processor"
    with pytest.raises(ContentError):
        list(dataset(Images([{"text": PLACE}], text="text"), film_processor()))
