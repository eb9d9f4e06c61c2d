"""Conversations with images: ids of the processor's own template, loss on the answers alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streampack import sources
from streampack.errors import ConfigError, ContentError
from streampack.forms.image_columns import images_of
from streampack.images import Images
from streampack.images.images import decoded, size_of
from tests.support.vision import drawn, png, qwen_processor
from tests.support.vision_runs import dataset

#: As Qwen2-VL has it.
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% elif 'text' in part %}{{ part['text'] }}"
    "{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def chats(count: int) -> list[dict[str, Any]]:
    """The usual form: parts, and the images in a field."""
    rng = np.random.default_rng(1)
    made = []
    for i in range(count):
        images = [png(drawn(10 * i + k, 20 + i, 30)) for k in range(rng.integers(0, 3))]
        parts = [{"type": "image"} for _ in images] + [{"type": "text", "text": f"{i}: what?"}]
        messages = [
            {"role": "user", "content": parts},
            {"role": "assistant", "content": [{"type": "text", "text": f"It is {i}."}]},
            {"role": "user", "content": [{"type": "text", "text": "And?"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "No more."}]},
        ]
        made.append({"messages": messages, "images": images})
    return made


def processor() -> Any:
    return qwen_processor(chat_template=TEMPLATE)


def assert_as_processor(batches: Any, given: list[dict[str, Any]]) -> None:
    reference, found = processor(), {}
    for batch in batches:
        for number in range(batch.num_documents):
            at = batch.document_ids == number
            ids, labels = batch.input_ids[at].tolist(), batch.labels[at]
            found[tuple(ids)] = reference.tokenizer.decode(labels[labels != -100].tolist())
    assert len(found) == len(given)
    for i, record in enumerate(given):
        text = reference.apply_chat_template(record["messages"])
        images = [decoded(each, size_of(each)) for each in record["images"]]
        ids = reference(text=[text], images=images or None)["input_ids"][0]
        assert found[tuple(ids)] == f"It is {i}.<|im_end|>No more.<|im_end|>"


def parts_with_images(record: dict[str, Any], value: Any) -> dict[str, Any]:
    images = iter(record["images"])
    first = [
        value(next(images)) if part["type"] == "image" else part
        for part in record["messages"][0]["content"]
    ]
    return {"messages": [{"role": "user", "content": first}, *record["messages"][1:]]}


def test_parts_take_the_images_of_the_field_in_order() -> None:
    given = chats(12)
    assert_as_processor(dataset(Images(given), processor(), seq_len=256), given)


def test_parts_hold_their_images_in_lines_of_json(tmp_path: Path) -> None:
    given = chats(12)

    def saved(image: bytes) -> dict[str, Any]:
        name = f"{abs(hash(image))}.png"
        (tmp_path / name).write_bytes(image)
        return {"type": "image_url", "image_url": {"url": name}}

    with (tmp_path / "a.jsonl").open("w") as file:
        file.writelines(json.dumps(parts_with_images(one, saved)) + "\n" for one in given)
    source = Images(tmp_path / "a.jsonl", folder=tmp_path)
    assert_as_processor(dataset(source, processor(), seq_len=256), given)


def test_placeholders_of_llava_stand_for_images() -> None:
    given = chats(12)
    records = [
        {
            "conversations": [
                {"from": "human", "value": "<image>" * len(one["images"]) + f"{i}: what?"},
                {"from": "gpt", "value": f"It is {i}."},
                {"from": "human", "value": "And?"},
                {"from": "gpt", "value": "No more."},
            ],
            "images": one["images"],
        }
        for i, one in enumerate(given)
    ]
    source = Images(records, placeholder="<image>")
    assert_as_processor(dataset(source, processor(), seq_len=256), given)


def test_chats_of_hugging_faces_datasets_are_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    given = chats(12)
    string = datasets.Value("string")
    features = datasets.Features(
        {
            "messages": [
                {
                    "role": string,
                    "content": [
                        {"type": datasets.Value("string"), "text": datasets.Value("string")}
                    ],
                }
            ],
            "images": datasets.Sequence(datasets.Image()),
        }
    )
    rows = [{**one, "messages": json.loads(json.dumps(one["messages"]))} for one in given]
    for row in rows:
        for message in row["messages"]:
            for part in message["content"]:
                part.setdefault("text", None)
    made = datasets.Dataset.from_list(rows, features=features)
    made.to_parquet(tmp_path / "a.parquet")
    for source in (Images(made), Images(tmp_path / "a.parquet")):
        assert_as_processor(dataset(source, processor(), seq_len=256), given)


def test_text_that_writes_the_placeholder_itself_is_refused() -> None:
    (record,) = chats(1)
    record["messages"][0]["content"].append({"type": "text", "text": "<|image_pad|>"})
    with pytest.raises(ContentError) as caught:
        list(dataset(Images([record]), processor(), seq_len=256))
    assert caught.value.document == "item 0 of the list"


def test_records_without_conversations_need_the_name_of_the_text() -> None:
    with pytest.raises(ConfigError) as caught:
        Images([{"caption": "a", "images": []}])
    assert caught.value.setting == "text"


def test_mixture_with_text_alone_keeps_its_weights_and_its_loss() -> None:
    given = chats(40)
    texts = [{"text": "plain " * (i % 7 + 1)} for i in range(80)]
    mixture = sources.Mixture(
        {"images": Images(given), "text": sources.Items(texts, text="text")},
        weights={"images": 0.5, "text": 0.5},
    )
    found = list(dataset(mixture, processor(), seq_len=256, epochs=1))
    kinds = {int(kind) for batch in found for kind in batch.source_ids}
    assert kinds == {0, 1}
    for batch in found:
        assert int((batch.labels != -100).sum()) == batch.num_loss_tokens
        assert int(batch.by_source[:, 2].sum()) == batch.num_loss_tokens
        patches = batch.document_fields["patches"]
        assert bool((patches[batch.source_ids == 1] == 0).all())


def test_ids_without_images_are_mixed_in() -> None:
    given = chats(30)
    ids = [{"input_ids": [i % 200 + 1] * (i % 40 + 2)} for i in range(60)]
    mixture = sources.Mixture(
        {"images": Images(given), "ids": sources.Items(ids, tokens="input_ids")},
        weights={"images": 0.5, "ids": 0.5},
    )
    batches = list(dataset(mixture, processor(), seq_len=256, on_error="skip"))
    assert {int(kind) for batch in batches for kind in batch.source_ids} == {0, 1}
    for batch in batches:
        of_images = batch.document_fields["patches"] > 0
        assert set(np.flatnonzero(of_images).tolist()) == set(images_of(batch).pieces.tolist())
