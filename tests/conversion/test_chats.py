"""Conversations become shards of ids with loss masks, as training renders them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streampack
from streampack import PackedDataset, PackedLoader, sources
from streampack.errors import ConfigError
from tests.support.corpora import byte_tokenizer
from tests.support.program import output_of

TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {% if message.role == 'assistant' %}"
    "{% generation %}{{ message.content }}{{ eos_token }}{% endgeneration %}"
    "{% else %}{{ message.content }}\n{% endif %}{% endfor %}"
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    config = {"chat_template": TEMPLATE, "eos_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("chats") / "a.jsonl"
    rows = [
        {"messages": [
            {"role": "user", "content": f"What is {n} + {n}?"},
            {"role": "assistant", "content": f"It is {2 * n}." * (1 + n % 4)},
        ]}
        for n in range(1, 150)
    ]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def batches(source: Any, tokenizer: Path) -> list[tuple[Any, Any]]:
    dataset = PackedDataset(
        source, seq_len=128, batch_size=2, shuffle=False, lanes=1, epochs=1, tokenizer=tokenizer
    )
    loader = PackedLoader(dataset)
    return [(b.input_ids.numpy().copy(), b.labels.numpy().copy()) for b in loader]


def test_converted_chats_train_as_the_chats_do(
    chats: Path, tokenizer: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    output_of(
        *("convert", chats, out, "--chat", "--tokenizer", tokenizer),
        *("--part-size", "5kB", "--shard-size", "4kB", "--workers", 1),
    )
    assert len([*out.glob("*.parquet")]) > 4
    wanted = batches(sources.Chat(str(chats)), tokenizer)
    found = batches(str(out), tokenizer)
    assert len(wanted) == len(found) > 20
    for (ids, labels), (other_ids, other_labels) in zip(wanted, found, strict=True):
        assert np.array_equal(ids, other_ids)
        assert np.array_equal(labels, other_labels)
    manifest = json.loads((out / "_conversion.json").read_text())
    assert 0 < manifest["loss_tokens"] < manifest["tokens"]


def test_the_template_is_a_setting_of_the_conversion(
    chats: Path, tokenizer: Path, tmp_path: Path
) -> None:
    def stop(progress: Any) -> None:
        if progress.parts == 2:
            raise KeyError

    def convert(source: Any, **options: Any) -> Any:
        return streampack.convert(
            source, str(tmp_path / "out"), tokenizer=tokenizer, part_bytes=5_000, workers=1,
            **options,
        )  # fmt: skip

    with pytest.raises(KeyError):
        convert(sources.Chat(str(chats)), report=stop)
    with pytest.raises(ConfigError) as caught:
        convert(sources.Chat(str(chats), template=TEMPLATE.replace(": ", ">")))
    assert caught.value.setting in ("source", "tokenizer")
    assert convert(sources.Chat(str(chats))).documents == 149


def test_pairs_and_chats_without_a_tokenizer_are_refused(
    chats: Path, tokenizer: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        streampack.convert(str(chats), str(tmp_path / "out"), chat=True)
    assert caught.value.setting == "tokenizer"
    pair = tmp_path / "pairs.jsonl"
    pair.write_text(json.dumps({"prompt": "a", "chosen": "b", "rejected": "c"}) + "\n")
    with pytest.raises(ConfigError) as caught:
        streampack.convert(str(pair), str(tmp_path / "out"), chat=True, tokenizer=tokenizer)
    assert caught.value.setting == "source"
    with pytest.raises(ConfigError) as caught:
        streampack.convert(
            str(chats), str(tmp_path / "out"), chat=True, text="x", tokenizer=tokenizer
        )
    assert caught.value.setting == "chat"
