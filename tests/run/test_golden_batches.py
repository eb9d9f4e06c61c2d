"""Golden batches: a hash of all batches of each kind of run.

A hash that changes means that saved states no longer continue the run which saved them. Whoever
changes one on purpose raises the revision that belongs to it (CONTRIBUTING.md).
`python -m tests.run.test_golden_batches` prints today's.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

import streampack as sp
from streampack import PackedDataset, PackedLoader, packing, sources
from streampack.documents.blocks import Documents
from tests.support.corpora import byte_tokenizer, write_mds, write_tar
from tests.support.deleted_leaves import process_of_runs
from tests.support.flat_files import write_megatron

SEQ_LEN, LANES = 128, 3
CHAT = (
    "{% for m in messages %}{{ m['role'] }}:{% if m['role'] == 'assistant' %}{% generation %}"
    "{{ m['content'] }}{% endgeneration %}{% else %}{{ m['content'] }}{% endif %}\n{% endfor %}"
)


class Corpus:
    """Files of the same 240 documents, with random numbers that no version changes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        rng = random.Random(7)
        lengths = [
            1 + int(60 * rng.random() ** 2 * (8 if rng.random() < 0.1 else 1)) for _ in range(240)
        ]
        self.ids = [np.array([1 + rng.randrange(250) for _ in range(n)], "u2") for n in lengths]
        self.texts = ["".join(chr(97 + i % 26) for i in ids.tolist()) for ids in self.ids]
        self.learnt = [ids % 3 != 0 for ids in self.ids]
        self.score = [len(ids) // 2 for ids in self.ids]

    def path(self, name: str) -> str:
        """The path of a file, written when it is asked for."""
        file = self.folder / name
        if not file.exists():
            getattr(self, "_" + name.replace(".", "_"))(file)
        return str(file)

    def _ids_parquet(self, file: Path) -> None:
        table = {"input_ids": self.ids, "loss_mask": self.learnt, "score": self.score}
        table["repository"] = [i // 7 for i in range(len(self.ids))]
        table["reward"] = [ids.astype("f4") for ids in self.ids]
        write_parquet(pa.table(table), file, row_group_size=50)

    def _text_parquet(self, file: Path) -> None:
        write_parquet(pa.table({"text": self.texts}), file, row_group_size=80)

    def _ids_feather(self, file: Path) -> None:
        feather.write_feather(pa.table({"input_ids": self.ids}), file, chunksize=60)

    def _text_jsonl(self, file: Path) -> None:
        file.write_text("".join(json.dumps({"text": text}) + "\n" for text in self.texts))

    def _text_jsonl_gz(self, file: Path) -> None:
        lines = "".join(json.dumps({"text": text}) + "\n" for text in self.texts)
        file.write_bytes(gzip.compress(lines.encode(), mtime=0))

    def _groups_jsonl(self, file: Path) -> None:
        records = (
            {"input_ids": [self.ids[i][:20].tolist() + [n] * (n + 3) for n in range(3)]}
            for i in range(100)
        )
        file.write_text("".join(json.dumps(record) + "\n" for record in records))

    def _chat_jsonl(self, file: Path) -> None:
        pairs = zip(self.texts[::2], self.texts[1::2], strict=True)
        talks = (
            [{"role": "user", "content": q[:40]}, {"role": "assistant", "content": a[:60]}]
            for q, a in pairs
        )
        file.write_text("".join(json.dumps({"messages": talk}) + "\n" for talk in talks))

    def _long_jsonl(self, file: Path) -> None:
        talks = (
            [
                {"role": ("user", "assistant")[k % 2], "content": text[:25]}
                for k, text in enumerate(self.texts[i : i + 2 + i // 12])
            ]
            for i in range(0, 240, 12)
        )
        file.write_text("".join(json.dumps({"messages": talk}) + "\n" for talk in talks))

    def _ids_tar(self, file: Path) -> None:
        write_tar(file, self.ids)

    def _ids_tar_gz(self, file: Path) -> None:
        write_tar(file, self.ids)

    def _mds(self, file: Path) -> None:
        write_mds(file.parent, self.ids)

    def _ids_idx(self, file: Path) -> None:
        write_megatron(file.with_suffix(""), [[ids] for ids in self.ids], "uint16")


def write_parquet(table: pa.Table, file: Path, row_group_size: int) -> None:
    """Write a file of as many bytes as its columns have before compression.

    Lanes are dealt parts by stored bytes, which would depend on the writer's version.
    """
    pq.write_table(table, file, row_group_size=row_group_size, compression="zstd")
    metadata = pq.read_metadata(file)
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    size = sum(group.total_byte_size for group in groups)
    data, footer = file.read_bytes(), metadata.serialized_size + 8  # its length and a mark
    file.write_bytes(data[:-footer] + bytes(size - len(data)) + data[-footer:])


def longer(documents: Documents, seeds: Any) -> Any:
    """A filter."""
    return documents.lengths >= 8


def text_options() -> dict[str, Any]:
    """The options of a run over texts."""
    return {"tokenizer": byte_tokenizer(), "token_rules": sp.TokenRules(eos_id=256, pad_id=0)}


def routed(documents: Documents, seeds: Any) -> Documents:
    """A map that adds eight numbers to each token."""
    experts = documents.tokens[:, None, None] * 3 + np.arange(8, dtype=np.int16).reshape(4, 2)
    return replace(documents, token_fields={**documents.token_fields, "experts": experts})


def packed(corpus: Corpus, name: str, **options: Any) -> PackedDataset:
    """A run over a file of the corpus."""
    options.setdefault("lanes", LANES)
    if "packer" not in options:
        options = {"seq_len": SEQ_LEN, "batch_size": 4, **options}
    return PackedDataset(corpus.path(name), **options)


KINDS: dict[str, Callable[[Corpus], PackedDataset]] = {
    "list": lambda c: PackedDataset(c.ids, seq_len=SEQ_LEN, batch_size=4, lanes=LANES),
    "list, provenance": lambda c: PackedDataset(
        c.ids, seq_len=SEQ_LEN, batch_size=4, lanes=LANES, provenance=True
    ),
    "parquet": lambda c: packed(c, "ids.parquet"),
    "fields": lambda c: packed(
        c, "ids.parquet", token_fields={"reward": "float32"}, document_fields={"score": "float32"}
    ),
    "fields of several numbers": lambda c: packed(
        c,
        "ids.parquet",
        map=sp.Hook("routed", routed),
        token_fields={"experts": ("int16", (4, 2)), "reward": "float32"},
    ),
    "filter": lambda c: packed(c, "ids.parquet", filter=sp.Hook("longer", longer)),
    "eos": lambda c: packed(
        c, "ids.parquet", token_rules=sp.TokenRules(eos="append", eos_id=255, pad_id=0)
    ),
    "loss mask, two epochs": lambda c: PackedDataset(
        sources.Parquet(c.path("ids.parquet"), loss_mask="loss_mask"),
        seq_len=SEQ_LEN,
        batch_size=4,
        lanes=LANES,
        epochs=2,
    ),
    "arrow": lambda c: packed(c, "ids.feather"),
    "mds": lambda c: PackedDataset(
        sources.MDS(c.path("mds"), tokens="t"), seq_len=SEQ_LEN, batch_size=4, lanes=LANES
    ),
    "tar": lambda c: packed(c, "ids.tar"),
    "tar.gz": lambda c: packed(c, "ids.tar.gz"),
    "megatron": lambda c: packed(c, "ids.idx"),
    "text, parquet": lambda c: packed(c, "text.parquet", **text_options()),
    "text, lines": lambda c: packed(c, "text.jsonl", **text_options()),
    "text, compressed lines": lambda c: packed(c, "text.jsonl.gz", **text_options()),
    "groups": lambda c: PackedDataset(
        sources.JSONL(c.path("groups.jsonl"), tokens="input_ids"),
        seq_len=SEQ_LEN,
        batch_size=4,
        lanes=LANES,
    ),
    "trees": lambda c: PackedDataset(
        sources.JSONL(c.path("groups.jsonl"), tokens="input_ids"),
        seq_len=SEQ_LEN,
        batch_size=4,
        lanes=LANES,
        layout="tree",
    ),
    "mixture": lambda c: PackedDataset(
        sources.Mixture(
            {"a": c.path("ids.parquet"), "b": sources.open(c.path("ids.tar"))},
            weights={"a": 1, "b": 2},
        ),
        seq_len=SEQ_LEN,
        batch_size=4,
        lanes=LANES,
    ),
    "buckets": lambda c: packed(
        c, "ids.parquet", packer=sp.Buckets(seq_lens=(64, 128, 256), batch_tokens=512)
    ),
    "buckets, context parallelism": lambda c: packed(
        c, "ids.parquet", packer=sp.Buckets(seq_lens=(64, 128), cp=(1, 2), batch_tokens=256)
    ),
    "balance": lambda c: packed(
        c,
        "ids.parquet",
        packer=sp.BestFitDecreasing(seq_len=SEQ_LEN, choice=packing.Balance("attention")),
        batch_size=4,
    ),
    "capacity": lambda c: packed(
        c,
        "ids.parquet",
        packer=sp.BestFitDecreasing(
            seq_len=SEQ_LEN, overflow="drop", limits=[packing.Capacity({"score": 40})]
        ),
        document_fields={"score": "int32"},
        batch_size=4,
    ),
    "seamless": lambda c: packed(
        c, "ids.parquet", packer=packing.Seamless(seq_len=SEQ_LEN), batch_size=4
    ),
    "concat, attention over rows": lambda c: packed(
        c, "ids.parquet", packer=sp.Concat(seq_len=SEQ_LEN), attention="row", batch_size=4
    ),
    "order by similarity": lambda c: packed(c, "ids.parquet", order=sp.ordering.SimilarityOrder()),
    "order by a field": lambda c: packed(
        c,
        "ids.parquet",
        order=sp.ordering.GroupBy("repository"),
        document_fields={"repository": "int32"},
    ),
    "ledger": lambda c: packed(
        c, "ids.parquet", document_fields={"repository": "int32"}, ledger=["repository"]
    ),
    "chat": lambda c: PackedDataset(
        sources.Chat(c.path("chat.jsonl"), template=CHAT),
        seq_len=SEQ_LEN,
        batch_size=4,
        lanes=LANES,
        **text_options(),
    ),
    "long chats": lambda c: PackedDataset(
        sources.Chat(c.path("long.jsonl"), template=CHAT, overflow="turns"),
        seq_len=SEQ_LEN,
        batch_size=4,
        lanes=LANES,
        **text_options(),
    ),
}


def hashed(batches: Iterable[Any]) -> str:
    """A hash of all tensors of the batches."""
    digest = hashlib.blake2b(digest_size=8)
    for batch in batches:
        names = ["input_ids", "source_ids"]
        if not hasattr(type(batch), "tout"):
            names += ["labels", "position_ids", "document_ids", "cu_seqlens"]
        for name in names:
            digest.update(getattr(batch, name).numpy().tobytes())
        for fields in (batch.fields, batch.document_fields):
            for name in sorted(fields):
                digest.update(name.encode() + fields[name].numpy().tobytes())
        if batch.provenance is not None:
            digest.update(batch.provenance.tobytes())
    return digest.hexdigest()


GOLDEN = {
    "list": "4c9705019fc7f80d",
    "list, provenance": "eb8262bb7294789d",
    "parquet": "cf317dae588aec9b",
    "fields": "27406157e64da07c",
    "fields of several numbers": "e0b4a7eb357c0b4b",
    "filter": "3bd1df8b8ad81290",
    "eos": "f14e01278c17ff73",
    "loss mask, two epochs": "e9d12aab1bbdd3ce",
    "arrow": "3a8c8cc727f11fd6",
    "mds": "554eec27e6a4d4c5",
    "tar": "954246691ba5a058",
    "tar.gz": "3de998e8284204d1",
    "megatron": "2ea601d36ac2ecfe",
    "text, parquet": "ccd5436e91cb8b85",
    "text, lines": "45897de0205508be",
    "text, compressed lines": "708ce48bcaf6874f",
    "groups": "96002d261eaac932",
    "trees": "df9f004594a3b0d0",
    "mixture": "722859d9d2764f4a",
    "buckets": "d29f3ad34ee3e0b1",
    "buckets, context parallelism": "49b2bf73bdaaf720",
    "balance": "a4dee20b36de4c54",
    "capacity": "48dd1c28bc5ba589",
    "seamless": "52402b48a9922871",
    "concat, attention over rows": "a71f3b085797388a",
    "order by similarity": "b6f9573381b7cf4c",
    "order by a field": "867600ce3298ff1a",
    "ledger": "f5d31fff3f4a9b55",
    "chat": "886967bbf6050ce3",
    "long chats": "4bb66238b6b8e37e",
}


FILES = ("extras", "files", "names", "remote", "storage")
ROWS = (*FILES, "formats.rows")
PARQUET = (*ROWS, "formats.parquet")
LINES = (*FILES, "formats.jsonl")
MEASURED = ("forecasts", "limits")

#: Leaves that a run of this kind uses; without all others it gives the same batches.
LEAVES: dict[str, tuple[str, ...]] = {
    "list": (),
    "list, provenance": ("forecasts",),
    "parquet": PARQUET,
    "fields": (*PARQUET, "fields"),
    "fields of several numbers": (*PARQUET, "fields", "hooks"),
    "filter": (*PARQUET, "hooks"),
    "eos": (*PARQUET, "tokenization"),
    "loss mask, two epochs": PARQUET,
    "arrow": (*ROWS, "formats.arrow"),
    "mds": (*FILES, "formats.mds"),
    "tar": (*FILES, "formats.tar"),
    "tar.gz": (*FILES, "formats.tar"),
    "megatron": (*FILES, "formats.megatron"),
    "text, parquet": (*PARQUET, "tokenization"),
    "text, lines": (*LINES, "tokenization"),
    "text, compressed lines": (*LINES, "tokenization"),
    "groups": (*LINES, "groups"),
    "trees": (*LINES, "forms", "groups", "trees"),
    "mixture": (*PARQUET, "formats.tar", "mixtures"),
    "buckets": (*PARQUET, *MEASURED, "packers"),
    "buckets, context parallelism": (*PARQUET, *MEASURED, "packers", "context_parallel"),
    "balance": (*PARQUET, *MEASURED),
    "capacity": (*PARQUET, "fields", "limits", "watching"),
    "seamless": (*PARQUET, "limits", "packers", "watching"),
    "concat, attention over rows": (*PARQUET, "limits", "packers"),
    "order by similarity": (*PARQUET, "ordering", "orders", "packers"),
    "order by a field": (*PARQUET, "fields", "ordering", "orders", "packers"),
    "ledger": (*PARQUET, "accounts", "fields", "mixtures"),
    "chat": (*LINES, "chats", "iterables", "tokenization"),
    "long chats": (*LINES, "chats", "iterables", "tokenization"),
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return Corpus(tmp_path_factory.mktemp("corpus"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_gives_the_batches_of_every_version(kind: str, corpus: Corpus) -> None:
    assert hashed(PackedLoader(KINDS[kind](corpus))) == GOLDEN[kind]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
def test_questions_about_a_run_change_no_batch(kind: str, corpus: Corpus) -> None:
    loader = PackedLoader(KINDS[kind](corpus))

    def ask() -> None:
        loader.estimate_steps()
        loader.dataset.explain(documents=300)
        loader.by_source()

    def asked() -> Iterator[Any]:
        for number, batch in enumerate(loader):
            if number in (0, 3):
                ask()
            yield batch

    ask()
    assert hashed(asked()) == GOLDEN[kind]


@pytest.mark.slow
def test_runs_of_one_process_give_the_same_batches_in_any_order(corpus: Corpus) -> None:
    order = random.sample(list(KINDS), len(KINDS))
    hashes = {kind: hashed(PackedLoader(KINDS[kind](corpus))) for kind in order}
    assert hashes == GOLDEN, order


@pytest.mark.slow
def test_a_run_with_its_leaves_alone_gives_the_batches_of_every_version() -> None:
    with process_of_runs() as run:
        assert {kind: run(kind, LEAVES[kind]) for kind in KINDS} == GOLDEN


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        files = Corpus(Path(temporary))
        for kind, make in KINDS.items():
            try:
                print(f'    "{kind}": "{hashed(PackedLoader(make(files)))}",', flush=True)
            except Exception as error:
                print(kind, type(error).__name__, error, file=sys.stderr)
