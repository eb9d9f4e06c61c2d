"""Images and their places in records: all common notations are read, others are an error."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from streampack.errors import ContentError
from streampack.images import Images
from tests.support.vision import PLACE, drawn, png, qwen_processor
from tests.support.vision_families import FAMILIES
from tests.support.vision_runs import assert_as_processor, dataset, documents_of

DATA = png(drawn(1, 30, 22))
JPEG = png(drawn(1, 30, 22), "JPEG")


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def lines(folder: Path, records: list[dict[str, Any]]) -> str:
    path = folder / "records.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


WRITTEN = {
    "a data: URL": f"data:image/png;base64,{encoded(DATA)}",
    "an escaped data: URL": "data:image/png," + "".join(f"%{byte:02x}" for byte in DATA),
    "base64": encoded(DATA),
    "base64 in lines of 76": base64.encodebytes(DATA).decode(),
    "base64 without padding": encoded(DATA).rstrip("="),
    "base64 as bytes of an object": {"bytes": encoded(DATA), "path": "a.png"},
    "an object with a URL": {"url": f"data:image/png;base64,{encoded(DATA)}"},
    "beside nothing": ["", None, {"bytes": None, "path": None}, {"path": ""}, encoded(DATA)],
}


@pytest.mark.parametrize("kind", WRITTEN)
def test_images_written_in_lines_of_json_are_read(kind: str, tmp_path: Path) -> None:
    path = lines(tmp_path, [{"text": f"0:{PLACE}", "images": WRITTEN[kind]}])
    given = [{"text": f"0:{PLACE}", "images": [DATA]}]
    assert_as_processor(documents_of(dataset(Images(path, text="text"))), given)


def test_base64_of_jpeg_is_not_an_absolute_path(tmp_path: Path) -> None:
    assert encoded(JPEG).startswith("/9j/")
    path = lines(tmp_path, [{"text": f"0:{PLACE}", "images": [encoded(JPEG)]}])
    given = [{"text": f"0:{PLACE}", "images": [JPEG]}]
    assert_as_processor(documents_of(dataset(Images(path, text="text"))), given)


@pytest.mark.parametrize("nothing", ["", None, [], [None, ""], {"bytes": None, "path": None}])
def test_empty_texts_and_nulls_are_not_images(nothing: Any, tmp_path: Path) -> None:
    given = [{"text": "0:words", "images": []}, {"text": f"1:{PLACE}", "images": [DATA]}]
    path = lines(tmp_path, [{**given[0], "images": nothing}, {**given[1], "images": encoded(DATA)}])
    assert_as_processor(documents_of(dataset(Images(path, text="text"))), given)


@pytest.mark.parametrize(
    "wrong", ["data:image/png;base64", "data:image/png;base64,%%", "iVBORw0KGgo" + "!" * 99]
)
def test_broken_base64_is_an_error_with_the_documents_name(wrong: str) -> None:
    with pytest.raises(ContentError) as caught:
        list(dataset(Images([{"text": PLACE, "images": [wrong]}], text="text")))
    assert caught.value.document == "item 0 of the list"


def ids_of(batches: Any) -> list[list[int]]:
    return [
        batch.input_ids[batch.document_ids == number].tolist()
        for batch in batches
        for number in range(batch.num_documents)
    ]


def expected_ids(processor: Any, text: str, images: int = 1) -> list[int]:
    from streampack.images.images import decoded, size_of

    made = processor(text=[text], images=[decoded(DATA, size_of(DATA))] * images)
    return list(made["input_ids"][0])


def test_captions_beside_a_folder_of_pictures_need_no_placeholder(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.png").write_bytes(DATA)
    records = [{"image": f"{number}.png", "caption": f"{number} cats"} for number in range(3)]
    source = Images(lines(tmp_path, records), text="caption", folder=tmp_path)
    found = ids_of(dataset(source))
    wanted = [expected_ids(qwen_processor(), f"{PLACE}{number} cats") for number in range(3)]
    assert sorted(found) == sorted(wanted)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_caption_follows_its_images_as_the_processor_writes_it(family: str) -> None:
    example = FAMILIES[family]
    processor = example.processor()
    source = Images([{"caption": "two cats", "images": [DATA, DATA]}], text="caption")
    (found,) = ids_of(dataset(source, processor, seq_len=512))
    assert found == expected_ids(processor, f"{example.place * 2}two cats", images=2)


def test_placeholders_of_llava_stand_for_images_in_texts() -> None:
    source = Images([{"text": "See <image>: a cat", "image": DATA}], text="text")
    (found,) = ids_of(dataset(source))
    assert found == expected_ids(qwen_processor(), f"See {PLACE}: a cat")
    named = Images([{"text": "See [pic]: a cat", "image": DATA}], text="text", placeholder="[pic]")
    assert ids_of(dataset(named)) == [found]


TEMPLATE = (
    "{% for m in messages %}{{ m.role }}:{% for part in m.content %}"
    f"{{% if part.type == 'image' %}}{PLACE}{{% else %}}{{{{ part.text }}}}{{% endif %}}"
    "{% endfor %}{% endfor %}"
)


def llava(**more: Any) -> dict[str, Any]:
    question = {"from": "human", "value": "<image>\nWhat is it?"}
    return {"conversations": [question, {"from": "gpt", "value": "A cat."}], **more}


def chat_ids(records: list[dict[str, Any]], **settings: Any) -> list[list[int]]:
    return ids_of(dataset(Images(records, **settings), qwen_processor(chat_template=TEMPLATE)))


def test_records_of_llava_are_read_as_they_are() -> None:
    text = f"user:{PLACE}\nWhat is it?assistant:A cat."
    assert chat_ids([llava(image=DATA)]) == [expected_ids(qwen_processor(), text)]


def test_a_placeholder_is_text_beside_parts_or_where_nothing_stands_for_an_image() -> None:
    parts = [{"type": "image", "image": DATA}, {"type": "text", "text": "an <image> tag"}]
    answer = {"role": "assistant", "content": "A cat."}
    records = [{"messages": [{"role": "user", "content": parts}, answer]}]
    wanted = expected_ids(qwen_processor(), f"user:{PLACE}an <image> tagassistant:A cat.")
    assert chat_ids(records) == [wanted]
    plain = [llava()]
    (found,) = chat_ids(plain, placeholder="")
    assert found == expected_ids(qwen_processor(), "user:<image>\nWhat is it?assistant:A cat.", 0)


#: Three mistakes, and a word of each error that the others lack.
MISTAKES = {
    "images in another field": (llava(picture=DATA), "names another field"),
    "no place in the messages": (
        {"messages": [{"role": "user", "content": "What?"}, {"role": "assistant", "content": "A."}],
         "image": DATA},
        "no place",
    ),
    "fewer places than images": (llava(images=[DATA, DATA]), "2 images and 1"),
    "both usual fields": (llava(images=[DATA], image=DATA), "images and image"),
}  # fmt: skip


@pytest.mark.parametrize("kind", MISTAKES)
def test_each_mistake_has_an_error_of_its_own(kind: str) -> None:
    record, word = MISTAKES[kind]
    with pytest.raises(ContentError) as caught:
        chat_ids([record])
    assert caught.value.document == "item 0 of the list"
    assert [other for _, other in MISTAKES.values() if other in caught.value.fact] == [word]


def test_texts_beside_images_of_a_field_that_is_not_read_are_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level("WARNING"):
        list(dataset(Images([{"caption": "a cat", "picture": DATA}], text="caption")))
    assert [record.name for record in caplog.records] == ["streampack.images.reader"]
    caplog.clear()
    list(dataset(Images([{"caption": "a cat"}], text="caption")))
    assert not caplog.records
