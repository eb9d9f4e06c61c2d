"""docs/migration.md: every snippet runs, and gives the documents that the other library gives."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.corpora import write_mds
from tests.support.flat_files import write_megatron
from tests.support.mosaic import streaming_module

pytestmark = pytest.mark.docs
PAGE = Path(__file__).parent.parent / "docs" / "migration.md"
EOS = 50256
rng = np.random.default_rng(0)
DOCUMENTS = [rng.integers(0, 50_000, n).astype(np.uint16) for n in rng.integers(1, 900, 60)]
Ids = list[tuple[int, ...]]


def as_ids(documents: Any) -> Ids:
    return sorted(tuple(map(int, ids)) for ids in documents)


def mosaic() -> Ids:
    for name in ("mds", "code"):
        Path(f"{name}-parent").mkdir()
        Path(write_mds(Path(f"{name}-parent"), DOCUMENTS, column="tokens")).rename(name)
    with streaming_module("base.dataset") as streaming:
        theirs = streaming.StreamingDataset(local="mds", shuffle=False, batch_size=1)
        return as_ids(sample["tokens"] for sample in theirs)


def webdataset() -> Ids:
    wds = pytest.importorskip("webdataset")
    Path("shards").mkdir()
    for number in range(4):
        with wds.TarWriter(f"shards/shard-{number:03d}.tar") as writer:
            for i, ids in enumerate(DOCUMENTS[number::4]):
                writer.write({"__key__": f"{i:06d}", "npy": ids})
    theirs = wds.WebDataset("shards/shard-{000..003}.tar", shardshuffle=False).decode()
    return as_ids(ids for (ids,) in theirs.to_tuple("npy"))


def tokenized() -> Ids:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"input_ids": [ids.tolist() for ids in DOCUMENTS]})
    rows.save_to_disk("tokenized")
    return as_ids(rows["input_ids"])


def nanogpt() -> Ids:
    Path("nanogpt").mkdir()
    tokens = np.concatenate([np.append(ids, np.uint16(EOS)) for ids in DOCUMENTS])
    for split in ("train", "val"):
        tokens.astype(np.uint16).tofile(f"nanogpt/{split}.bin")
    mapped = np.memmap("nanogpt/train.bin", dtype=np.uint16, mode="r")
    return as_ids(np.split(mapped, np.flatnonzero(mapped == EOS) + 1)[:-1])


def nanochat() -> Ids:
    tiktoken = pytest.importorskip("tiktoken")
    bos = 256
    encoding = tiktoken.Encoding(
        "bytes",
        pat_str=r"\s+|\S+",
        mergeable_ranks={bytes([n]): n for n in range(bos)},
        special_tokens={"<|bos|>": bos},
    )
    for name in ("tokenizer", "base_data"):
        Path(name).mkdir()
    Path("tokenizer/tokenizer.pkl").write_bytes(pickle.dumps(encoding))
    texts = ["".join(chr(97 + n % 26) for n in ids) for ids in DOCUMENTS]
    for number in range(3):
        held_out = number == 2
        table = pa.table({"text": ["held out"] if held_out else texts[number::2]})
        pq.write_table(table, f"base_data/shard_{number:05d}.parquet")
    return as_ids([bos, *text.encode()] for text in texts)


def megatron() -> Ids:
    Path("megatron").mkdir()
    write_megatron(Path("megatron/corpus_text_document"), [[ids] for ids in DOCUMENTS], "uint16")
    return as_ids(DOCUMENTS)


def axolotl() -> Ids:
    datasets = pytest.importorskip("datasets")
    ids = [ids.tolist() for ids in DOCUMENTS]
    labels = [[-100, *row[1:]] for row in ids]
    columns = {"input_ids": ids, "labels": labels, "attention_mask": [[1] * len(i) for i in ids]}
    datasets.Dataset.from_dict(columns).save_to_disk("last_run_prepared/4f2b")
    return as_ids(ids)


def energon() -> Ids:
    Path("energon/.nv-meta").mkdir(parents=True)
    Path("energon/.nv-meta/dataset.yaml").write_text("__class__: CrudeWebdataset\n")
    wds = pytest.importorskip("webdataset")
    with wds.TarWriter("energon/shard_000.tar") as writer:
        for i, ids in enumerate(DOCUMENTS):
            writer.write({"__key__": f"{i:06d}", "npy": ids})
    return as_ids(DOCUMENTS)


def grain() -> Ids:
    np.savez("documents.npz", *DOCUMENTS)
    return as_ids(DOCUMENTS)


def torchtitan() -> Ids:
    Path("c4").mkdir()
    pq.write_table(pa.table({"input_ids": [ids.tolist() for ids in DOCUMENTS]}), "c4/0.parquet")
    return as_ids(DOCUMENTS)


PEERS: dict[str, Callable[[], Ids]] = {
    "MosaicML Streaming": mosaic,
    "WebDataset": webdataset,
    "datasets and group_texts": tokenized,
    "Packing in TRL": tokenized,
    "Packing in axolotl": axolotl,
    "nanoGPT": nanogpt,
    "nanochat": nanochat,
    "Megatron-LM": megatron,
    "Megatron-Energon": energon,
    "Grain": grain,
    "torchtitan": torchtitan,
}


def sections() -> dict[str, str]:
    parts = re.split(r"^## (.+)$", PAGE.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def came_out(dataset: Any) -> Ids:
    """The documents of a run, all of which fit into a row."""
    found: Ids = []
    for batch in dataset:
        ids, numbers = batch.input_ids.flatten(), batch.document_ids.flatten()
        found += [tuple(ids[numbers == n].tolist()) for n in range(batch.num_documents)]
    return sorted(found)


def test_every_section_has_a_peer() -> None:
    coded = [name for name, text in sections().items() if "```python" in text]
    assert coded == list(PEERS)


@pytest.mark.parametrize("name", PEERS)
def test_the_same_documents_come_out(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    expected = PEERS[name]()
    names: dict[str, Any] = {}
    for snippet in re.findall(r"```python\n(.*?)```", sections()[name], flags=re.DOTALL):
        exec(compile(snippet, PAGE.name, "exec"), names)
    assert len(expected) == len(DOCUMENTS)
    if name == "nanochat":  # its metadata are JSON, and its log prints these
        json.dumps(names["meta_data"])
        assert {"epoch", "pq_idx", "rg_idx"} <= {*names["dataloader_state_dict"]}
    dataset = names["packed" if name == "nanoGPT" else "dataset"]
    assert came_out(dataset._alone(epochs=1)) == expected
