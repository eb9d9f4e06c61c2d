"""Documents with images: ids as the processor makes them, pixels after the plan, resume."""

from __future__ import annotations

import inspect
import json
import os
import signal
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from streampack import (
    BestFitDecreasing,
    PackedBatch,
    PackedDataset,
    PackedLoader,
    SimilarityOrder,
    Topology,
    WindowConfig,
)
from streampack.errors import ConfigError, ContentError, WorkerError
from streampack.forms.image_columns import images_of
from streampack.images import Images
from streampack.images.families import axes_of
from streampack.images.images import decoded, size_of
from streampack.packing import Balance, Capacity
from tests.support.runs import child_processes, identity
from tests.support.simulated_ranks import over_legs
from tests.support.vision import PATCH, PLACE, drawn, png, qwen_model, qwen_processor, records
from tests.support.vision_runs import assert_as_processor, dataset, documents_of


def test_ids_and_pixels_match_the_processor() -> None:
    given = records(20)
    assert_as_processor(documents_of(dataset(Images(given, text="text"))), given)


def test_patches_are_a_document_field() -> None:
    (batch,) = dataset(Images(records(6), text="text"))
    rows = np.zeros(batch.num_documents, dtype=np.int64)
    np.add.at(rows, images_of(batch).pieces, images_of(batch).entries)
    assert batch.document_fields["patches"].tolist() == rows.tolist()


def test_lines_of_json_name_images_by_path_below_a_folder(tmp_path: Path) -> None:
    given = records(20)
    with (tmp_path / "a.jsonl").open("w") as file:
        for i, record in enumerate(given):
            names = [f"{i}-{k}.png" for k in range(len(record["images"]))]
            for name, data in zip(names, record["images"], strict=True):
                (tmp_path / name).write_bytes(data)
            file.write(json.dumps({"text": record["text"], "pictures": names}) + "\n")
    source = Images(str(tmp_path / "a.jsonl"), text="text", images="pictures", folder=tmp_path)
    assert_as_processor(documents_of(dataset(source)), given)


def test_images_of_pillow_and_sizes_in_fields_are_taken() -> None:
    images = [drawn(i, 20 + i, 30) for i in range(4)]
    given = [
        {"text": f"{i}:{PLACE}", "images": image, "h": 30, "w": 20 + i}
        for i, image in enumerate(images)
    ]
    plain = [{"text": one["text"], "images": [png(one["images"])]} for one in given]
    assert_as_processor(documents_of(dataset(Images(given, text="text", sizes=("h", "w")))), plain)


def test_size_in_a_field_that_is_not_the_images_is_an_error_with_the_documents_name() -> None:
    given = [{"text": PLACE, "images": [png(drawn(0, 20, 30))], "h": 90, "w": 20}]
    with pytest.raises(ContentError) as caught:
        list(dataset(Images(given, text="text", sizes=("h", "w"))))
    assert caught.value.document == "item 0 of the list"


def test_workers_give_the_same_pixels() -> None:
    given = records(20)
    loader = PackedLoader(dataset(Images(given, text="text"), lanes=2), num_workers=2)
    assert_as_processor(documents_of(loader), given)


def test_image_that_cannot_be_decoded_takes_the_loss_from_its_document_and_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    given = records(12)
    hurt = next(i for i, record in enumerate(given) if record["images"])
    data = given[hurt]["images"][0]
    given[hurt]["images"][0] = data[: len(data) // 2]
    with pytest.raises(ContentError) as caught:
        list(dataset(Images(given, text="text")))
    assert caught.value.document == f"item {hurt} of the list"
    loader = PackedLoader(dataset(Images(given, text="text"), on_error="skip"))
    with caplog.at_level("WARNING"):
        batches = list(loader)
    assert f"tem {hurt} of the list" in caplog.text
    assert loader.metrics().skipped == 1
    assert loader.metrics().times.finish_s > 0  # images are decoded at the end
    for batch in batches:
        assert int((batch.labels != -100).sum()) == batch.num_loss_tokens
    found = documents_of(batches)
    assert not any(found[str(hurt)][1])
    assert all(any(learnt) for name, (_, learnt, _) in found.items() if name != str(hurt))
    whole = documents_of(dataset(Images(records(12), text="text")))
    assert {name: own[0] for name, own in found.items()} == {
        name: own[0] for name, own in whole.items()
    }


@pytest.mark.parametrize("images", [[b"no image"], [], ["/not/there.png"], 7])
def test_record_with_images_that_cannot_be_planned_is_named_or_skipped(images: Any) -> None:
    given = [*records(6), {"text": f"bad:{PLACE}", "images": images}]
    with pytest.raises(ContentError) as caught:
        list(dataset(Images(given, text="text")))
    assert caught.value.document == "item 6 of the list"
    assert len(documents_of(dataset(Images(given, text="text"), on_error="skip"))) == 6


@pytest.mark.parametrize("words", ["", "z" * 999])
def test_batch_without_images_runs_the_tower_by_a_small_one_that_changes_nothing(
    words: str,
) -> None:
    given = [{"text": f"{i}{words}"[:40], "images": []} for i in range(8)]
    (batch,) = dataset(Images(given, text="text"), seq_len=40, batch_size=8 if words else 1)
    assert (batch.num_tokens == batch.rows * batch.seq_len) == bool(words)
    image = qwen_processor().image_token_id
    assert image not in batch.input_ids.view(-1).tolist()
    model = qwen_model("Qwen2VL", embed_dim=16, hidden_size=32, mlp_ratio=2)
    arguments = batch.hf(model=model)
    assert arguments["input_ids"].view(-1).tolist().count(image) == 1
    batch.loss(model(**arguments).logits).backward()
    found = {name: own.grad for name, own in model.named_parameters()}
    model.zero_grad()
    text = {name: own for name, own in arguments.items() if name not in batch.media}
    text["input_ids"] = batch.input_ids.view(1, -1)
    batch.loss(model(**text).logits).backward()
    for name, own in model.named_parameters():
        if "visual" in name:
            assert found[name] is not None
            assert not found[name].any()
        else:
            torch.testing.assert_close(found[name], own.grad, rtol=0, atol=1e-14)


def test_axes_match_the_models_count() -> None:
    processor = qwen_processor()
    model = qwen_model("Qwen2VL", embed_dim=16, hidden_size=32, mlp_ratio=2)
    for record in [one for one in records(12, seed=4) if one["images"]]:
        images = [decoded(each, size_of(each)) for each in record["images"]]
        made = processor(text=[record["text"]], images=images or None, return_tensors="pt")
        ids, grids = made["input_ids"], made.get("image_grid_thw")
        count = model.model.get_rope_index
        types = {}
        if "mm_token_type_ids" in inspect.signature(count).parameters:  # of transformers 5
            types = {"mm_token_type_ids": (ids == processor.image_token_id).int()}
        wanted, _ = count(input_ids=ids, image_grid_thw=grids, **types)
        spans, at = [], 0
        for t, h, w in [] if grids is None else grids.tolist():
            start = ids[0, at:].tolist().index(processor.image_token_id) + at
            at = start + t * h * w // 4
            spans.append((start, at))
        found = axes_of(spans, [] if grids is None else grids.tolist(), ids.shape[1])
        assert torch.equal(torch.from_numpy(found), wanted[:, 0])


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "legs",
    [
        [(1, 0, 3), (2, 0, 2), (3, 0, 1), (8, 0, 99)],
        [(2, 0, 1), (1, 2, 2), (1, 0, 99)],
    ],
)
def test_sequence_over_other_ranks_and_workers_is_the_same_with_pixels(
    legs: list[tuple[int, int, int]],
) -> None:
    given = records(60, seed=3)

    def make(topology: Topology) -> PackedDataset:
        return dataset(
            Images(given, text="text"), topology=topology, lanes=4, seq_len=128, batch_size=1
        )

    def of(batch: PackedBatch) -> Any:
        return *identity(batch), batch.media["pixel_values"].numpy().tobytes()

    whole = over_legs(make, [(1, 0, 999)], of)
    assert len(whole) > 12
    assert over_legs(make, legs, of) == whole


def patches_of_rows(batch: PackedBatch) -> list[int]:
    patches = batch.document_fields["patches"].numpy()
    return [int(patches[np.unique(row[row >= 0])].sum()) for row in batch.document_ids.numpy()]


def test_rows_hold_no_more_patches_than_their_capacity_and_larger_documents_are_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    given = records(40)
    plain = list(dataset(Images(given, text="text"), seq_len=320))
    most = max(int(batch.document_fields["patches"].max()) for batch in plain)
    assert max(n for batch in plain for n in patches_of_rows(batch)) > most
    packer = BestFitDecreasing(seq_len=320, overflow="drop", limits=[Capacity({"patches": most})])
    large = {"text": f"big:{PLACE * 3}", "images": [png(drawn(0, 60, 60))] * 3}
    source = Images([*given, large], text="text")
    loader = PackedLoader(dataset(source, seq_len=None, packer=packer))
    batches = list(loader)
    assert max(n for batch in batches for n in patches_of_rows(batch)) <= most
    assert loader.metrics().composition.documents_lost == 1
    assert f"dropped: item 40 of the list has 768 patches, a row has {most}" in caplog.text
    assert_as_processor(documents_of(batches), given)


def test_balance_by_patches_is_measured_on_images_and_goes_on() -> None:
    given = records(60)
    packer = BestFitDecreasing(seq_len=160, overflow="drop", choice=Balance("patches"))

    def loader() -> PackedLoader:
        made = dataset(
            Images(given, text="text"), seq_len=None, packer=packer, batch_size=1, lanes=2
        )
        return PackedLoader(made)

    first = loader()
    batches = [batch for _, batch in zip(range(4), first, strict=False)]
    state = first.state_dict()
    assert state["fingerprint"]["balance"]["kind"] == "patches"
    assert max(state["fingerprint"]["balance"]["quantiles"]) > 0
    second = loader()
    second.load_state_dict(state)
    assert_as_processor(documents_of([*batches, *second]), given)


def test_state_holds_no_image() -> None:
    given = records(60)
    loader = PackedLoader(dataset(Images(given, text="text")))
    next(iter(loader))
    assert len(json.dumps(loader.state_dict())) < 8000


@pytest.mark.parametrize(
    ("settings", "setting"),
    [
        ({"map": lambda documents, seeds: documents}, "map"),
        ({"attention": "row"}, "attention"),
        ({"processor": "Qwen/Qwen2-VL"}, "processor"),
        ({"processor": None, "tokenizer": qwen_processor().tokenizer}, "processor"),
    ],
)
def test_settings_that_do_not_go_with_images_are_refused(
    settings: dict[str, Any], setting: str
) -> None:
    given = {"seq_len": 160, "topology": Topology(), "processor": qwen_processor(), **settings}
    with pytest.raises(ConfigError) as caught:
        PackedDataset(Images(records(3), text="text"), **given)
    assert caught.value.setting == setting


@pytest.mark.slow
def test_plain_text_imports_neither_pillow_nor_this_room() -> None:
    program = """
import sys
from itertools import islice
from streampack import PackedDataset, PackedLoader
for batch in PackedLoader(PackedDataset([[1, 2, 3]] * 9, seq_len=8)):
    batch.hf()
assert not [name for name in sys.modules if name.startswith("streampack.images")]
assert "PIL" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_rows_are_shown_with_images_in_their_places() -> None:
    given = [{"text": f"0:{PLACE}z", "images": [png(drawn(0, 40, 40))]}]
    (batch,) = dataset(Images(given, text="text"), batch_size=1)
    tokens = int(
        (batch.input_ids[batch.document_ids == 0] == qwen_processor().image_token_id).sum()
    )
    shown = batch.show(qwen_processor().tokenizer, color=False)
    assert f"0«:<|vision_start|>»[image, {tokens} tokens]«<|vision_end|>z»" in shown


def test_text_with_a_place_for_a_video_is_refused_by_name() -> None:
    given = [{"text": "a <|video_pad|>", "images": []}]
    with pytest.raises(ContentError) as caught:
        list(dataset(Images(given, text="text")))
    assert caught.value.document == "item 0 of the list"


def test_pixels_move_with_the_batch() -> None:
    (batch,) = dataset(Images(records(6), text="text"))
    moved = batch._moved(lambda buffer: buffer.clone())
    assert torch.equal(moved.media["pixel_values"], batch.media["pixel_values"])
    for name, own in batch.hf().items():
        assert not isinstance(own, torch.Tensor) or torch.equal(own, moved.hf()[name])


def test_order_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        PackedDataset(
            Images(records(3), text="text"), seq_len=160, processor=qwen_processor(),
            packer=None, order=SimilarityOrder(), attention="row",
        )  # fmt: skip
    assert caught.value.setting in ("order", "attention")


def test_other_settings_go_on_with_images_that_wait() -> None:
    given = records(60)

    def loader(seq_len: int) -> PackedLoader:
        return PackedLoader(dataset(Images(given, text="text"), lanes=1, seq_len=seq_len))

    first = loader(160)
    batches = [next(iter(first))]
    second = loader(320)
    second.load_state_dict(first.state_dict(), allow={"packer"})
    assert_as_processor(documents_of([*batches, *second]), given)


def test_lanes_are_chosen_by_the_bytes_of_images_that_wait() -> None:
    given = [{"text": PLACE + "z" * 4000, "images": [png(drawn(0, 20, 20))]}] * 9000
    texts = [one["text"] for one in given]
    window = WindowConfig(rows=64, memory_limit=16 << 20)
    settings = {"window": window, "seq_len": 4096, "batch_size": 1}
    with_images = dataset(Images(given, text="text"), **settings).plan.config.lanes
    settings |= {"processor": None, "tokenizer": qwen_processor().tokenizer}
    assert with_images < PackedDataset(texts, topology=Topology(), **settings).plan.config.lanes


def test_worker_that_is_killed_costs_no_pixel() -> None:
    given = records(120, seed=5)

    def loader(**settings: Any) -> PackedLoader:
        made = dataset(Images(given, text="text"), lanes=4, seq_len=128, batch_size=1)
        return PackedLoader(made, **settings)

    def of(batch: PackedBatch) -> Any:
        return *identity(batch), batch.media["pixel_values"].numpy().tobytes()

    whole = [of(batch) for batch in loader()]
    killed = loader(num_workers=2, prefetch_factor=1)
    batches = iter(killed)
    found = [of(next(batches)) for _ in range(3)]
    before = len(found)
    for child in child_processes():
        os.kill(child, signal.SIGKILL)
    with pytest.raises(WorkerError):
        found.extend(map(of, batches))
    assert before <= len(found) < len(whole)
    assert [*found, *map(of, killed)] == whole


def test_documents_taken_out_take_their_pixels_along() -> None:
    given = [{**record, "key": f"k{i}"} for i, record in enumerate(records(60, seed=3))]
    out = [f"k{i}" for i in range(0, 60, 4)]

    def loader(**settings: Any) -> PackedLoader:
        return PackedLoader(dataset(Images(given, text="text"), lanes=2, **settings))

    whole = documents_of(loader())
    kept = {name: each for name, each in whole.items() if f"k{name}" not in out}
    assert documents_of(loader(exclude={"key": out})) == kept
    for steps in (1, 4):
        run = loader()
        before = documents_of(islice(run, steps))
        state = json.loads(json.dumps(run.state_dict()))
        later = loader(exclude={"key": out})
        later.load_state_dict(state)
        after = documents_of(later)
        assert not before.keys() & after.keys()
        assert kept.items() <= {**before, **after}.items() <= whole.items()
        assert after.keys() <= kept.keys()
        assert later.metrics().excluded == len(out) - len(before.keys() - kept.keys())


def test_limits_of_pixels_that_were_set_on_the_processor_hold() -> None:
    processor = qwen_processor()
    processor.image_processor.max_pixels = (8 * PATCH) ** 2
    given = [{"text": f"0:{PLACE}", "images": [png(drawn(0, 60, 60))]}]
    (batch,) = dataset(Images(given, text="text"), processor, batch_size=1)
    made = processor(text=[given[0]["text"]], images=[drawn(0, 60, 60)], return_tensors="pt")
    assert torch.equal(batch.media["pixel_values"], made["pixel_values"])
    assert batch.input_ids[batch.document_ids == 0].tolist() == made["input_ids"][0].tolist()
