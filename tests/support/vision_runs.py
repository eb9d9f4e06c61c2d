"""Runs with images, compared with the processor's own results for their documents."""

from __future__ import annotations

from typing import Any

import numpy as np

from streampack import PackedDataset, TokenRules, Topology
from streampack.forms.image_columns import images_of
from streampack.images.images import decoded, size_of
from tests.support.vision import qwen_processor


def dataset(source: Any, processor: Any = None, **settings: Any) -> PackedDataset:
    given = {"seq_len": 160, "batch_size": 3, "shuffle": False, "topology": Topology()}
    given |= {"token_rules": TokenRules(eos="as-is"), "processor": processor or qwen_processor()}
    return PackedDataset(source, **{**given, **settings})


def documents_of(batches: Any) -> dict[str, tuple[list[int], list[int], bytes]]:
    """Return ids, their loss mask and pixels of documents by first words."""
    processor = qwen_processor()
    found = {}
    for batch in batches:
        rows = np.append(0, np.cumsum(images_of(batch).entries))
        for number in range(batch.num_documents):
            at = batch.document_ids == number
            ids = batch.input_ids[at].tolist()
            own = np.flatnonzero(images_of(batch).pieces == number)
            pixels = [batch.media["pixel_values"][rows[i] : rows[i + 1]].numpy() for i in own]
            name = processor.tokenizer.decode(ids).partition(":")[0]
            learnt = (batch.labels[at] != -100).tolist()
            found[name] = ids, learnt, b"".join(each.tobytes() for each in pixels)
    return found


def assert_as_processor(found: dict[str, Any], given: list[dict[str, Any]]) -> None:
    processor = qwen_processor()
    assert len(found) == len(given)
    for i, record in enumerate(given):
        ids, learnt, pixels = found[str(i)]
        images = [decoded(each, size_of(each)) for each in record["images"]]
        made = processor(text=[record["text"]], images=images or None, return_tensors="np")
        assert ids == made["input_ids"][0].tolist()
        assert pixels == (made["pixel_values"].tobytes() if images else b"")
        image = processor.image_token_id
        assert learnt == [i > 0 and token != image for i, token in enumerate(ids)]
