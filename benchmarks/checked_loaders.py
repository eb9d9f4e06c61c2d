"""Loaders of public projects under `streampack.check`, each that is installed.

    python -m benchmarks.checked_loaders [--only NAME ...] [--nanochat FOLDER]

prints a row per loader: the version, the kinds of faults, padding, and the tokens of marked
documents that were never delivered and never learnt. Loaders of packages that are missing are
left out. nanochat's needs a checkout.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

import streampack
from benchmarks.report import PRINTED, markdown_table
from streampack import CheckReport, marked_documents
from streampack.checking.marked import MarkedDocuments

ROW, EOS, BOS, PAD = 256, 2, 1, 0
#: Package with the version, and function that makes the loader, by name.
LOADERS: dict[str, tuple[str, Callable[..., Any], dict[str, Any]]] = {}


def loader(name: str, package: str, **documents: Any) -> Callable[[Any], Any]:
    """Register a function that makes a loader from marked documents of these options."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        LOADERS[name] = (package, function, documents)
        return function

    return register


def tokenizer_of(documents: MarkedDocuments, **special: int) -> Any:
    """Return a tokenizer of transformers for the texts of the documents."""
    from transformers import PreTrainedTokenizerFast

    names = {f"{name}_token": f"<{token}>" for name, token in special.items()}
    return PreTrainedTokenizerFast(tokenizer_object=documents.tokenizer(), **names)


def rows_of(documents: MarkedDocuments, *columns: str) -> Any:
    """Return the documents as a data set of the datasets library."""
    from datasets import Dataset

    return Dataset.from_list(list(documents.records(*columns)))


@loader("DataCollatorWithFlattening", "transformers", answers=True)
def flattening(documents: MarkedDocuments) -> Any:
    """Return whole documents in one row, without padding."""
    from transformers import DataCollatorWithFlattening

    collate = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)
    records = list(documents.records("input_ids", "labels"))
    return DataLoader(records, batch_size=8, collate_fn=collate)


@loader("DataCollatorForSeq2Seq", "transformers", answers=True)
def padding(documents: MarkedDocuments) -> Any:
    """Return a document per row, padded to the longest."""
    from transformers import DataCollatorForSeq2Seq

    records = list(documents.records("input_ids", "labels", "attention_mask"))
    collate = DataCollatorForSeq2Seq(tokenizer_of(documents, pad=PAD))
    return DataLoader(records, batch_size=8, collate_fn=collate)


@loader("DataCollatorForLanguageModeling, pad = eos", "transformers", eos_id=EOS, pad_id=EOS)
def language_modeling(documents: MarkedDocuments) -> Any:
    """Return padded documents with labels derived from ids, as for models without a pad token."""
    from transformers import DataCollatorForLanguageModeling

    collate = DataCollatorForLanguageModeling(tokenizer_of(documents, pad=EOS), mlm=False)
    records = list(documents.records("input_ids", "attention_mask"))
    return DataLoader(records, batch_size=8, collate_fn=collate)


@loader("group_texts of run_clm", "datasets", eos_id=EOS)
def group_texts(documents: MarkedDocuments) -> Any:
    """Return blocks of concatenated documents, as the language modelling example makes them."""
    from transformers import default_data_collator

    def group(examples: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
        joined = [token for ids in examples["input_ids"] for token in ids]
        blocks = [joined[n : n + ROW] for n in range(0, len(joined) // ROW * ROW, ROW)]
        return {"input_ids": blocks, "labels": blocks}

    blocks = rows_of(documents, "input_ids").map(group, batched=True)
    return DataLoader(blocks, batch_size=4, collate_fn=default_data_collator)


@loader("streaming with a shuffle buffer", "datasets")
def streaming(documents: MarkedDocuments) -> Any:
    """Return documents of a shuffled stream under torchdata's stateful loader."""
    from torchdata.stateful_dataloader import StatefulDataLoader
    from transformers import DataCollatorForSeq2Seq

    stream = rows_of(documents, "input_ids", "labels", "attention_mask").to_iterable_dataset()
    collate = DataCollatorForSeq2Seq(tokenizer_of(documents, pad=PAD))
    shuffled = stream.shuffle(seed=0, buffer_size=64)
    return StatefulDataLoader(shuffled, batch_size=8, collate_fn=collate)


def packed_by_trl(documents: MarkedDocuments, strategy: str, padding_free: bool) -> Any:
    """Return rows that TRL packs, under its own collator."""
    from trl import pack_dataset
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    rows = pack_dataset(rows_of(documents, "input_ids", "labels"), ROW, strategy=strategy)
    records = list(rows)
    if strategy == "wrapped":
        records = [{k: v for k, v in row.items() if k != "seq_lengths"} for row in records]
    collate = DataCollatorForLanguageModeling(pad_token_id=PAD, padding_free=padding_free)
    return DataLoader(records, batch_size=4, collate_fn=collate)  # type: ignore[arg-type]


loader("packing bfd, padding_free", "trl", answers=True)(
    partial(packed_by_trl, strategy="bfd", padding_free=True)
)
loader("packing bfd, no padding_free", "trl", answers=True)(
    partial(packed_by_trl, strategy="bfd", padding_free=False)
)
loader("packing wrapped", "trl")(partial(packed_by_trl, strategy="wrapped", padding_free=False))


def packed_by_torchtune(documents: MarkedDocuments) -> Any:
    """Return rows of greedy packing with masks of blocks."""
    from torchtune.data import padded_collate_packed
    from torchtune.datasets import PackedDataset

    records = [
        {"tokens": record["input_ids"], "labels": record["labels"]}
        for record in documents.records("input_ids", "labels")
    ]
    return DataLoader(
        PackedDataset(records, max_seq_len=ROW, padding_idx=PAD),  # type: ignore[arg-type]
        batch_size=4,
        collate_fn=padded_collate_packed,
    )


loader("PackedDataset of answers", "torchtune", answers=True)(packed_by_torchtune)
loader("PackedDataset of texts", "torchtune")(packed_by_torchtune)


@loader("SFT collate", "litgpt", answers=True)
def litgpt(documents: MarkedDocuments) -> Any:
    """Return padded documents, as litgpt finetunes on them."""
    from litgpt.data.base import get_sft_collate_fn

    records = [
        {
            **{name: torch.tensor(record[name]) for name in ("input_ids", "labels")},
            "token_counts": {"raw": 0, "raw_plus_prompt_template": 0},
        }
        for record in documents.records("input_ids", "labels")
    ]
    collate = get_sft_collate_fn(max_seq_length=ROW, pad_id=PAD)
    return DataLoader(records, batch_size=8, collate_fn=collate)  # type: ignore[arg-type]


class FromIds:
    """Yields the ids of a document, for litdata's `optimize`."""

    def __init__(self, documents: list[list[int]]) -> None:
        self.documents = documents

    def __call__(self, number: int) -> Iterator[torch.Tensor]:
        """Yield the ids of a document."""
        yield torch.tensor(self.documents[number], dtype=torch.int32)


@cache
def shards_of(documents: MarkedDocuments) -> str:
    """Write the documents as shards of litdata, once, and return their folder."""
    from litdata import TokensLoader, optimize

    folder = Path(tempfile.mkdtemp()) / "shards"
    optimize(
        FromIds(list(documents)),
        list(range(len(documents))),
        str(folder),
        num_workers=1,
        chunk_bytes="50MB",
        item_loader=TokensLoader(block_size=ROW + 1),
        verbose=False,
    )
    return str(folder)


@loader("TokensLoader, as litgpt pretrains", "litdata", eos_id=EOS)
def litdata(documents: MarkedDocuments) -> Any:
    """Return blocks of concatenated documents from shards, inputs and targets in one row."""
    from litdata import StreamingDataLoader, StreamingDataset, TokensLoader

    blocks = TokensLoader(block_size=ROW + 1)
    dataset = StreamingDataset(shards_of(documents), item_loader=blocks, shuffle=True)
    return StreamingDataLoader(dataset, batch_size=4, drop_last=False)


@loader("HuggingFaceTextDataset", "torchtitan")
def torchtitan(documents: MarkedDocuments) -> Any:
    """Return rows of documents that are shifted one by one, with positions."""
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchtitan.hf_datasets import DatasetConfig, text_datasets

    class Tokenizer:
        def encode(self, text: str, *, add_bos: bool, add_eos: bool) -> list[int]:
            ids = [int(word[1:-1]) for word in text.split()]
            return [BOS] * add_bos + ids + [EOS] * add_eos

    text_datasets.DATASETS["marked"] = DatasetConfig(
        path="",
        loader=lambda _: rows_of(documents, "text"),
        sample_processor=lambda row: row["text"],
    )
    dataset = text_datasets.HuggingFaceTextDataset("marked", None, Tokenizer(), ROW, infinite=True)
    return StatefulDataLoader(dataset, batch_size=4)


def read_by_megatron(documents: MarkedDocuments, isolated: bool) -> Any:
    """Return rows of the concatenated documents, without or with the resets at their ends."""
    import numpy as np
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder
    from megatron.core.datasets.utils import Split

    class Tokenizer:
        vocab_size, eod, pad = 1 << 16, EOS, PAD
        unique_identifiers = ("marked",)

    prefix = str(Path(tempfile.mkdtemp()) / "marked")
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.int32)
    for document in documents:
        builder.add_document(torch.tensor(document), [len(document)])
    builder.finalize(f"{prefix}.idx")
    config = GPTDatasetConfig(
        random_seed=0,
        sequence_length=ROW,
        blend=([prefix], None),
        split="1",
        tokenizer=Tokenizer(),
        reset_position_ids=isolated,
        reset_attention_mask=isolated,
        eod_mask_loss=isolated,
    )
    indexed = IndexedDataset(prefix)
    of_all = np.arange(len(documents), dtype=np.int32)
    dataset = GPTDataset(indexed, prefix, of_all, None, Split.train, config)
    return DataLoader(dataset, batch_size=4)


loader("GPTDataset", "megatron-core", eos_id=EOS)(partial(read_by_megatron, isolated=False))
loader("GPTDataset with resets and eod_mask_loss", "megatron-core", eos_id=EOS)(
    partial(read_by_megatron, isolated=True)
)


def packed_by_grain(documents: MarkedDocuments, name: str) -> Any:
    """Return rows that grain packs, with the numbers of documents and positions."""
    import grain
    import numpy as np

    def pair(ids: list[int]) -> dict[str, Any]:
        return {"inputs": np.array(ids[:-1]), "targets": np.array(ids[1:])}

    pairs = grain.MapDataset.source(list(documents)).map(pair).to_iter_dataset()
    pack = getattr(grain.experimental, name)
    rows = pack(pairs, length_struct={"inputs": ROW, "targets": ROW}, num_packing_bins=8)

    def named(row: dict[str, Any]) -> dict[str, Any]:
        targets = {"targets_segmentation": row["targets_segment_ids"]}
        return {"inputs_segmentation": row["inputs_segment_ids"], **row, **targets}

    return rows.map(named).batch(4)


for bins in ("FirstFitPackIterDataset", "BestFitPackIterDataset"):
    loader(bins, "grain", eos_id=EOS)(partial(packed_by_grain, name=bins))


class Nanochat:
    """nanochat's loader with the state that its training script saves."""

    folder: Path | None = None

    def __init__(self, documents: MarkedDocuments) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if str(self.folder) not in sys.path:
            sys.path.insert(0, str(self.folder))
        self.module = importlib.import_module("nanochat.dataloader")
        texts = pa.table({"text": [record["text"] for record in documents.records("text")]})
        folder = Path(tempfile.mkdtemp())
        paths = [str(folder / name) for name in ("a.parquet", "b.parquet")]
        for path in paths:  # the last one is for validation
            pq.write_table(texts, path, row_group_size=32)
        self.module.list_parquet_files = lambda **_: paths
        self.state: Any = None

    def get_bos_token_id(self) -> int:
        """Return the token at the beginning of documents, as nanochat's tokenizer does."""
        return BOS

    def encode(self, texts: list[str], prepend: int, num_threads: int) -> list[list[int]]:
        """Return the ids of texts, as nanochat's tokenizer does."""
        return [[prepend, *(int(word[1:-1]) for word in text.split())] for text in texts]

    def __iter__(self) -> Iterator[Any]:
        make = self.module.tokenizing_distributed_data_loader_with_state_bos_bestfit
        batches = make(
            self, 4, ROW, "train", device="cpu", resume_state_dict=self.state, buffer_size=64
        )
        for inputs, targets, state in batches:
            self.state = dict(state)
            yield inputs, targets

    def state_dict(self) -> Any:
        """Return the state of the last batch."""
        return self.state

    def load_state_dict(self, state: Any) -> None:
        """Continue behind a state."""
        self.state = state


loader("tokenizing_..._bos_bestfit", "nanochat")(Nanochat)


HEAD = ["package", "loader", "faults", "padding", "never delivered", "never learnt", "resume"]
ROWS: list[list[str]] = []  # that were printed


def report_of(name: str) -> CheckReport:
    """Check a loader by name."""
    _, make, table = LOADERS[name]
    options = dict(table)
    documents = marked_documents(
        400, pad_id=options.pop("pad_id", PAD), reserved=[BOS, EOS], **options
    )
    return streampack.check(lambda documents: make(documents), documents=documents)


def print_row(source: str, name: str, report: CheckReport) -> None:
    """Print a line of the table of a report."""
    loss = report.loss
    assert loss is not None
    shares = (
        report.padding / report.slots,
        1 - loss.delivered / loss.tokens,
        None if report.learnt is None else 1 - loss.learnt / loss.learnable,
    )
    faults = ", ".join(report.kinds) or "none"
    resumed = "tried" if report.resumed else "no state"
    shown = ("no labels" if share is None else f"{share:.1%}" for share in shares)
    cells = (source, name, faults, *shown, resumed)
    print(f"| {' | '.join(cells)} |", flush=True)
    ROWS.append(list(cells))


def main() -> None:
    """Check the loaders that are installed, and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", help="packages")
    parser.add_argument("--nanochat", type=Path, help="folder of a checkout")
    parser.add_argument("--pages", action="store_true", help="print the whole reports")
    options = parser.parse_args()
    Nanochat.folder = options.nanochat
    print(markdown_table(HEAD, []))
    for name, (package, *_) in LOADERS.items():
        if options.only and package not in options.only:
            continue
        try:
            number = "a checkout" if package == "nanochat" else version(package)
            report = report_of(name)
        except (ImportError, RuntimeError) as error:  # TRL raises RuntimeError for its imports
            print(f"{package}: left out, {error}", file=sys.stderr)
            continue
        print_row(f"{package} {number}", name, report)
        if options.pages:
            print(report)
    PRINTED.append({"title": "", "head": HEAD, "rows": ROWS})


if __name__ == "__main__":
    main()
