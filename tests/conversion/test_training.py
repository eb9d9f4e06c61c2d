"""Training on the shards of a conversion gives the batches that training on the text gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

import streampack
from streampack import PackedDataset, PackedLoader, TokenRules
from tests.support.vocabularies import trained


def test_batches_of_the_shards_are_the_batches_of_the_text(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    words = np.array(["alpha", "beta", "gamma", "é", "人", "x = 1\n", "<tool>"])
    texts = [" ".join(words[rng.integers(0, 7, n)]) for n in rng.integers(1, 80, 300)]
    source, out = tmp_path / "a.jsonl", tmp_path / "out"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    tokenizer = trained(None)

    def batches(data: Any) -> list[tuple[Any, ...]]:
        dataset = PackedDataset(
            str(data), seq_len=128, batch_size=2, lanes=1, shuffle=False, epochs=2,
            tokenizer=tokenizer, token_rules=TokenRules(eos_id=0),
        )  # fmt: skip
        return [
            (batch.input_ids.tolist(), batch.labels.tolist(), batch.cu_seqlens.tolist())
            for batch in PackedLoader(dataset)
        ]

    streampack.convert(
        str(source), str(out), tokenizer=tokenizer, eos_id=0,
        part_bytes=9_000, shard_bytes=2_000, workers=1,
    )  # fmt: skip
    assert len([*out.glob("*.parquet")]) > 10
    found = batches(out)
    assert len(found) > 50
    assert found == batches(source)
