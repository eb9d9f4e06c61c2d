"""Documents in memory with images: the media of their micro-batches and of rollouts."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streampack import pack, rollouts
from streampack.errors import ConfigError, ContentError
from streampack.forms.image_columns import images_of
from streampack.images.families import ImagePlanner
from streampack.images.images import decoded, size_of
from tests.support.vision import PLACE, drawn, png, qwen_processor, records
from tests.support.vision_runs import assert_as_processor, documents_of

GIVEN = records(16)


def ids_of(record: dict[str, Any]) -> list[int]:
    processor = qwen_processor()
    images = [decoded(each, size_of(each)) for each in record["images"]]
    made = processor(text=[record["text"]], images=images or None, return_tensors="np")
    return made["input_ids"][0].tolist()


IDS = [ids_of(record) for record in GIVEN]
IMAGES = [record["images"] for record in GIVEN]


def batches_of(ids: list[list[int]], images: Any, **settings: Any) -> list[Any]:
    plan = pack([*map(len, ids)], seq_len=160)
    settings = {"processor": qwen_processor(), **settings}
    return [*plan.batches(ids, images=images, **settings)]


def test_documents_in_memory_have_the_pixels_of_the_processor() -> None:
    assert_as_processor(documents_of(batches_of(IDS, IMAGES)), GIVEN)


def test_every_micro_batch_runs_the_vision_tower() -> None:
    plan = pack([*map(len, IDS[:1])], seq_len=160, microbatches=2)
    for batch in plan.batches({0: IDS[0]}, images={0: IMAGES[0]}, processor=qwen_processor()):
        assert len(batch.media["pixel_values"])


def test_images_are_files_by_path_too(tmp_path: Path) -> None:
    paths = [
        [str(tmp_path / f"{i}-{k}.png") for k in range(len(held))] for i, held in enumerate(IMAGES)
    ]
    for names, held in zip(paths, IMAGES, strict=True):
        for name, data in zip(names, held, strict=True):
            Path(name).write_bytes(data)
    assert_as_processor(documents_of(batches_of(IDS, paths)), GIVEN)


FIRST = next(i for i, held in enumerate(IMAGES) if len(held) == 2)
PAD = qwen_processor().image_token_id


@pytest.mark.parametrize(
    ("ids", "images"),
    [
        (IDS[FIRST], IMAGES[FIRST][:1]),
        (IDS[FIRST], []),
        (IDS[FIRST], [*IMAGES[FIRST], IMAGES[FIRST][0]]),
        (IDS[FIRST], [png(drawn(0, 60, 60)), IMAGES[FIRST][1]]),
        ([PAD, 5], IMAGES[FIRST][:1]),
        ([*IDS[FIRST], PAD], IMAGES[FIRST]),
        ([], IMAGES[FIRST]),
        (IDS[FIRST], [b"no image", IMAGES[FIRST][1]]),
        (IDS[FIRST], ["/nowhere.png", IMAGES[FIRST][1]]),
        (IDS[FIRST], [3, 4]),
    ],
)
def test_ids_that_do_not_fit_their_images_are_refused(ids: list[int], images: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        batches_of([[7], [*ids, 8]], [[], images])
    assert caught.value.document == "document 1"


def test_an_image_that_cannot_be_decoded_names_its_document() -> None:
    data = png(drawn(3, 40, 40))
    ids = ids_of({"text": GIVEN[FIRST]["text"], "images": [data] * 2})
    with pytest.raises(ContentError) as caught:
        batches_of([[7], ids], [[], [data, data[: len(data) // 2]]])
    assert caught.value.document == "document 1"


def test_images_need_a_processor_and_no_tree() -> None:
    with pytest.raises(ConfigError) as caught:
        batches_of(IDS, IMAGES, processor=None)
    assert caught.value.setting == "processor"
    plan = pack([*map(len, IDS)], seq_len=320, layout="tree", ids=IDS, groups=range(len(IDS)))
    with pytest.raises(ConfigError) as caught:
        next(plan.batches(IDS, images=IMAGES, processor=qwen_processor()))
    assert caught.value.setting == "layout"


# ---------------------------------------------------------------------- rollouts


def queue_of(**settings: Any) -> rollouts.Queue:
    rows = [{"ids": ids, "number": number} for number, ids in enumerate(IDS)]
    prompts = rollouts.Prompts(
        rows, tokens="ids", document_fields={"number": "int64"}, epochs=1, shuffle=False
    )
    return rollouts.Queue(prompts, answers=2, groups=4, timeout_s=None, **settings)


def answer_all(queue: rollouts.Queue, count: int) -> None:
    for _ in range(count):
        ticket = queue.get()
        assert ticket is not None
        for number in range(2):
            ids = [*ticket.prompt.tolist(), 40 + number]
            mask = np.arange(len(ids)) == len(ids) - 1
            images = IMAGES[ticket.fields["number"]]
            queue.put(ticket, rollouts.Answer(ids, mask, images=images))


def assert_has_images_of_prompts(step: rollouts.Step) -> None:
    processor = qwen_processor()
    for batch in step:
        begins = np.append(0, np.cumsum(images_of(batch).entries))
        for piece, serial in enumerate(batch.document_fields["prompt_serial"].tolist()):
            own = np.flatnonzero(images_of(batch).pieces == piece)
            pixels = [batch.media["pixel_values"][begins[i] : begins[i + 1]] for i in own]
            images = [decoded(each, size_of(each)) for each in IMAGES[serial]]
            made = processor.image_processor(images, return_tensors="np") if images else {}
            expected = made.get("pixel_values", np.zeros(0))
            assert b"".join(each.numpy().tobytes() for each in pixels) == expected.tobytes()


def test_steps_have_the_images_of_their_answers() -> None:
    queue = queue_of()
    answer_all(queue, 4)
    loader = rollouts.Loader(queue, seq_len=320, processor=qwen_processor())
    step = next(iter(loader))
    sent = pickle.loads(pickle.dumps(replace(step, settings={}, on_last=None)))
    for each in (replace(sent, settings=step.settings), step):
        assert_has_images_of_prompts(each)


def test_the_image_of_a_prompt_is_decoded_once_for_its_answers(monkeypatch: Any) -> None:
    processor, sizes = qwen_processor(), []
    given = [IMAGES[FIRST][0]] * 6
    ids = [ids_of({"text": f"{PLACE}{n}", "images": given[:1]}) for n in range(6)]
    planner_arrays = ImagePlanner.arrays
    monkeypatch.setattr(
        ImagePlanner, "arrays", lambda own, image: sizes.append(1) or planner_arrays(own, image)
    )
    (batch,) = pack([*map(len, ids)], seq_len=2048).batches(ids, images=given, processor=processor)
    assert len(images_of(batch).entries) == 6
    assert len(sizes) == 1
    pixels = batch.media["pixel_values"]
    assert (pixels.view(6, -1) == pixels[: len(pixels) // 6].ravel()).all()


def test_spooled_groups_keep_their_images(tmp_path: Path) -> None:
    queue = queue_of(spool=str(tmp_path))
    answer_all(queue, 4)
    assert queue._spool is not None
    queue._spool.flush()
    resumed = queue_of(spool=str(tmp_path))
    resumed.load_state(json.loads(json.dumps(queue.state())))
    assert resumed.metrics().restored == 4
    loader = rollouts.Loader(resumed, seq_len=320, processor=qwen_processor())
    assert_has_images_of_prompts(next(iter(loader)))


def test_images_without_a_processor_are_refused_before_a_batch() -> None:
    queue = queue_of()
    answer_all(queue, 4)
    step = next(iter(rollouts.Loader(queue, seq_len=320)))
    with pytest.raises(ConfigError) as caught:
        next(iter(step))
    assert caught.value.setting == "processor"


@pytest.mark.parametrize("image", [3, "", b"", None, drawn(0, 9, 9)])
def test_an_image_of_an_answer_is_bytes_or_a_name(image: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        rollouts.Answer([1, 2], [0, 1], images=[image])
    assert caught.value.setting == "images"
