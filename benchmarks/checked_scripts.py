"""Loaders of training scripts under `streampack.check`, as they stand in checkouts.

    python -m benchmarks.checked_scripts FOLDER [--only NAME ...] [--pages]

FOLDER has the checkouts by name: modded-nanogpt, llm.c, TinyLlama, lingua, picotron, nanotron,
OLMo-core, open-instruct, axolotl, LLaMA-Factory, llm-foundry. Classes and functions are taken from
their files one by one, so that a script needs no GPU, and no package that only its other parts
import.

Missing checkouts are named.
"""

from __future__ import annotations

import argparse
import ast
import glob
import importlib
import json
import math
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, SequentialSampler
from transformers import DataCollatorForSeq2Seq

import benchmarks.checked_loaders as known
import streampack
from benchmarks.checked_loaders import BOS, EOS, PAD, ROW, rows_of, tokenizer_of
from benchmarks.report import PRINTED
from streampack import marked_documents
from streampack.checking.marked import MarkedDocuments

ROWS = 4
FOLDER = Path()
#: By name of the checkout and the loader: the function that makes it, and options of the documents.
LOADERS: dict[tuple[str, str], tuple[Callable[..., Any], dict[str, Any]]] = {}


def loader(checkout: str, name: str, **documents: Any) -> Callable[[Any], Any]:
    """Register a function that makes a loader from marked documents of these options."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        LOADERS[checkout, name] = (function, documents)
        return function

    return register


def taken(path: str, *names: str, without: tuple[tuple[str, str], ...] = (), **known: Any) -> Any:
    """Return an object with the functions, classes and constants of a file that have these names.

    Args:
        path: the file, below the folder of checkouts.
        names: names at the top of the file, which are run in the order of the file.
        without: parts of its text to replace, such as devices.
        known: what the file imports.
    """
    text = (FOLDER / path).read_text()
    for part, other in without:
        assert part in text, part
        text = text.replace(part, other)
    space: dict[str, Any] = {"__name__": "taken", "torch": torch, "np": np, "Any": Any, **known}
    sys.modules["taken"] = ModuleType("taken")
    for node in ast.parse(text).body:
        targets = getattr(node, "targets", [])
        own = {getattr(node, "name", None), *(getattr(target, "id", None) for target in targets)}
        if own & {*names}:
            future = ast.ImportFrom("__future__", [ast.alias("annotations")], 0)
            module = ast.fix_missing_locations(ast.Module([future, node], []))
            exec(compile(module, path, "exec"), space)
    return SimpleNamespace(**space)


def module_of(folder: str, name: str) -> Any:
    """Import a module of a checkout."""
    if str(FOLDER / folder) not in sys.path:
        sys.path.insert(0, str(FOLDER / folder))
    return importlib.import_module(name)


def stood_in(name: str, **values: Any) -> None:
    """Put a module in the place of one that is not installed."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        sys.modules.setdefault(".".join(parts[:end]), ModuleType(".".join(parts[:end])))
    vars(sys.modules[name]).update(values)


def new_folder() -> Path:
    """Return an empty folder."""
    return Path(tempfile.mkdtemp())


def bin_files(documents: MarkedDocuments, magic: int, count: int) -> str:
    """Write the documents as shards of llm.c, each behind a begin token; return their pattern."""
    folder = new_folder()
    for part in range(count):
        ids = [token for ids in documents[part::count] for token in (BOS, *ids)]
        header = np.zeros(256, dtype=np.int32)
        header[:3] = magic, 1, len(ids)
        with (folder / f"train_{part:03}.bin").open("wb") as file:
            file.write(header.tobytes() + np.array(ids, dtype=np.uint16).tobytes())
    return str(folder / "train_*.bin")


@loader("modded-nanogpt", "distributed_data_generator")
def modded_nanogpt(documents: MarkedDocuments, aligned: bool = True) -> Any:
    """Return rows of truncated documents, with cumulative lengths."""
    script = taken(
        "modded-nanogpt/train_gpt.py",
        *("_load_data_shard", "TRAIN_MAX_NUM_DOCS", "Shard", "get_bigram_hash"),
        *("distributed_data_generator", "next_multiple_of_n"),
        without=((", pin_memory=True", ""), ('device="cuda"', 'device="cpu"')),
        Path=Path,
        Tensor=torch.Tensor,
        threading=threading,
        glob=glob,
        dist=dist,
        math=math,
        BOS_ID=BOS,
        args=SimpleNamespace(bigram_vocab_size=1000),
    )
    pattern = bin_files(documents, 20240520, 2)
    return script.distributed_data_generator(pattern, ROW * ROWS, 96, align_to_bos=aligned)


loader("modded-nanogpt", "distributed_data_generator, validation")(
    partial(modded_nanogpt, aligned=False)
)


@loader("llm.c", "DistributedDataLoader")
def llm_c(documents: MarkedDocuments) -> Iterator[Any]:
    """Return batches as the loop of train_gpt2.py asks for them."""
    script = taken(
        "llm.c/train_gpt2.py",
        *("_peek_data_shard", "_load_data_shard", "DistributedDataLoader"),
        glob=glob,
        print0=lambda *_: None,
    )
    batches = script.DistributedDataLoader(bin_files(documents, 20240520, 1), ROWS, ROW, 0, 1)
    while True:
        yield batches.next_batch()


@loader("TinyLlama", "PackedDataset", eos_id=EOS)
def tiny_llama(documents: MarkedDocuments) -> Any:
    """Return blocks of shards, under the loader of pretrain/tinyllama.py."""
    module = module_of("TinyLlama/lit_gpt", "packed_dataset")
    folder = new_folder()
    block = ROW + 1
    builder = module.PackedDatasetBuilder(str(folder), "train", block * 16, EOS, np.int32)
    for ids in documents:
        builder.add_array(np.array(ids))
    builder.write_reminder()
    dataset = module.PackedDataset(builder.filenames, len(builder.filenames), block, shuffle=True)
    combined = module.CombinedDataset(datasets=[dataset], weights=[1.0], seed=42)
    return DataLoader(combined, batch_size=ROWS, shuffle=False, pin_memory=False)


@loader("lingua", "build_dataloader")
def lingua(documents: MarkedDocuments) -> Iterator[Any]:
    """Return batches and states of the loader, as apps/main/train.py reads them."""
    sys.modules["lingua.tokenizer"] = ModuleType("lingua.tokenizer")
    vars(sys.modules["lingua.tokenizer"]).update(build_tokenizer=None, TokenizerArgs=dict)
    module = module_of("lingua", "lingua.data")

    class Tokenizer:
        def encode(self, text: str, add_bos: bool, add_eos: bool) -> list[int]:
            return [BOS] * add_bos + [int(word[1:-1]) for word in text.split()] + [EOS] * add_eos

    module.build_tokenizer = lambda **_: Tokenizer()
    folder = new_folder()
    (folder / "marked").mkdir()
    lines = [json.dumps(record) for record in documents.records("text")]
    (folder / "marked" / "marked.chunk.00.jsonl").write_text("\n".join(lines) + "\n")
    state = module.init_state(
        root_dir=str(folder),
        sources={"marked": 1.0},
        batch_size=ROWS,
        prefetch_size=8,
        seq_len=ROW,
        n_views=2,
        seed=0,
        rank=0,
        world_size=1,
        add_bos=True,
        add_eos=True,
        tokenizer_name="marked",
        file_pattern="*.chunk.*.jsonl",
    )
    with module.build_dataloader(state) as batches:
        yield from batches


@loader("picotron", "MicroBatchDataLoader", eos_id=EOS)
def picotron(documents: MarkedDocuments) -> Any:
    """Return the loader of train.py with the marked tokenizer and data set."""
    groups = {f"{kind}_rank": 0 for kind in ("dp", "cp", "global")}
    groups |= {"dp_world_size": 1, "cp_world_size": 1}
    module = module_of("picotron", "picotron.data")
    module.pgm.process_group_manager = SimpleNamespace(**groups)
    module.load_dataset = lambda *_, **__: rows_of(documents, "text")
    module.dist = SimpleNamespace(broadcast_object_list=lambda *_, **__: None)
    tokenizer = tokenizer_of(documents, pad=PAD, eos=EOS)
    module.AutoTokenizer = SimpleNamespace(from_pretrained=lambda _: tokenizer)
    return module.MicroBatchDataLoader(
        ROWS, ROW, "marked", "marked", 0, 1, 1, "cpu", pin_memory=False
    )


@loader("nanotron", "DataCollatorForCLMWithPositionIds", eos_id=EOS)
def nanotron(documents: MarkedDocuments, masked: bool = True) -> Any:
    """Return rows of the collator over concatenated ids with positions of documents."""
    names = ("DataCollatorForCLMWithPositionIds", "DataCollatorForCLM")
    group = SimpleNamespace(context_parallel_size=1, pp_pg=None, cp_pg=None)
    script = taken(
        "nanotron/src/nanotron/data/clm_collator.py",
        *names,
        dataclasses=__import__("dataclasses"),
        dist=SimpleNamespace(get_rank=lambda _: 0),
        TensorPointer=SimpleNamespace,
    )
    pairs = [pair for ids in documents for pair in zip(ids, range(len(ids)), strict=True)]
    rows = np.array(pairs[: len(pairs) // (ROW + 1) * (ROW + 1)]).reshape(-1, ROW + 1, 2)
    records = [{"input_ids": row[:, 0], "positions": row[:, 1]} for row in rows]
    if not masked:
        records = [{"input_ids": row["input_ids"]} for row in records]
    collate = getattr(script, names[not masked])(ROW, 0, 0, group)
    return DataLoader(records, batch_size=ROWS, collate_fn=collate)  # type: ignore[arg-type]


loader("nanotron", "DataCollatorForCLM", eos_id=EOS)(partial(nanotron, masked=False))


def olmo(documents: MarkedDocuments, kind: str, **options: Any) -> Any:
    """Return the loader of the trainer over arrays of ids, in its first epoch."""
    module_of("OLMo-core/src", "olmo_core")
    data = importlib.import_module("olmo_core.data")
    folder = new_folder()
    path = folder / "part-0.npy"
    np.array([token for ids in documents for token in ids], dtype=np.uint16).tofile(path)
    dataset = getattr(importlib.import_module("olmo_core.data.numpy_dataset"), kind)(
        str(path),
        sequence_length=ROW,
        pad_token_id=PAD,
        eos_token_id=EOS,
        vocab_size=documents.vocab_size,
        dtype=np.uint16,
        **options,
    )
    dataset.work_dir = folder
    dataset.prepare()
    batches = importlib.import_module("olmo_core.data.data_loader").NumpyFSLDataLoader(
        dataset,
        collator=data.DataCollator(pad_token_id=PAD),
        global_batch_size=ROW * ROWS,
        work_dir=folder,
        seed=0,
    )
    batches.reshuffle(1)
    return batches


for kind in ("NumpyFSLDataset", "NumpyPackedFSLDataset", "NumpyPaddedFSLDataset"):
    lengths = {"generate_doc_lengths": True} if "Padded" not in kind else {}
    loader("OLMo-core", kind, eos_id=EOS)(partial(olmo, kind=kind, **lengths))


@loader("open-instruct", "TensorDataCollatorWithFlattening", answers=True)
def open_instruct(documents: MarkedDocuments) -> Any:
    """Return whole documents in one row, as finetune.py with packing makes them."""
    from transformers import DefaultDataCollator

    script = taken(
        "open-instruct/open_instruct/padding_free_collator.py",
        *("TensorDataCollatorWithFlattening", "_collect_flattened_features"),
        dataclass=dataclass,
        DefaultDataCollator=DefaultDataCollator,
    )
    records = [
        {name: torch.tensor(ids) for name, ids in record.items()}
        for record in documents.records("input_ids", "labels", "attention_mask")
    ]
    collate = script.TensorDataCollatorWithFlattening()
    return DataLoader(records, batch_size=8, collate_fn=collate)  # type: ignore[arg-type]


def axolotl(documents: MarkedDocuments, name: str) -> Any:
    """Return rows that the multipack sampler fills, under its collator."""

    from transformers import PreTrainedTokenizerBase
    from transformers.utils import PaddingStrategy

    stood_in("axolotl.utils.distributed", reduce_and_broadcast=lambda make, _: make())
    stood_in("axolotl.utils.logging", get_logger=__import__("logging").getLogger)
    text = FOLDER / "axolotl/src/axolotl/utils/samplers/multipack.py"
    sampler = importlib.util.spec_from_file_location("multipack", text)  # type: ignore[attr-defined]
    multipack = importlib.util.module_from_spec(sampler)  # type: ignore[attr-defined]
    sampler.loader.exec_module(multipack)
    script = taken(
        "axolotl/src/axolotl/utils/collators/batching.py",
        *("DataCollatorForSeq2Seq", name),
        dataclass=dataclass,
        PreTrainedTokenizerBase=PreTrainedTokenizerBase,
        PaddingStrategy=PaddingStrategy,
        List=list,
    )
    columns = ("input_ids", "labels", "attention_mask")
    records = [
        {**record, "position_ids": list(range(len(record["input_ids"])))}
        for record in documents.records(*columns)
    ]
    batches = multipack.MultipackBatchSampler(
        SequentialSampler(records),
        batch_size=ROWS,
        batch_max_len=ROW,
        lengths=np.array([len(record["input_ids"]) for record in records]),
        bin_size=100,
        num_processes=1,
        drop_last=False,
    )

    class Records(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return len(records)

        def __getitem__(self, rows: Any) -> Any:
            if isinstance(rows, list):
                return [self[row] for row in rows]
            return records[rows]

        def __getitems__(self, rows: Any) -> Any:
            return [self[row] for row in rows]

    collate = getattr(script, name)(tokenizer_of(documents, pad=PAD))
    return DataLoader(Records(), batch_sampler=batches, collate_fn=collate)


for name in ("V2BatchSamplerDataCollatorForSeq2Seq", "BatchSamplerDataCollatorForSeq2Seq"):
    loader("axolotl", name, answers=True)(partial(axolotl, name=name))


def llama_factory(documents: MarkedDocuments, neat: bool) -> Any:
    """Return rows of the packing of SFT, with the mask that SDPA gets."""
    processors = "LLaMA-Factory/src/llamafactory/data/processor"
    knapsack = taken(
        f"{processors}/processor_utils.py",
        *("search_for_fit", "greedy_knapsack"),
        bisect=__import__("bisect"),
    )
    script = taken(
        f"{processors}/supervised.py",
        *("PackingParams", "MAX_SU_SEQ_IDX", "PackedSupervisedDatasetProcessor"),
        dataclass=dataclass,
        asdict=asdict,
        defaultdict=defaultdict,
        Optional=__import__("typing").Optional,
        SupervisedDatasetProcessor=object,
        IGNORE_INDEX=-100,
        greedy_knapsack=knapsack.greedy_knapsack,
    )
    mask = taken("LLaMA-Factory/src/llamafactory/data/collator.py", "prepare_4d_attention_mask")
    packer = script.PackedSupervisedDatasetProcessor()
    packer.data_args = SimpleNamespace(neat_packing=neat, cutoff_len=ROW - 1)
    packer.tokenizer = tokenizer_of(documents, pad=PAD)
    packer._encode_data_example = lambda prompt, **_: prompt[0]
    records = list(documents.records("input_ids", "labels"))
    count = len(records)
    examples = {name: [None] * count for name in ("_system", "_tools")}
    examples |= {name: [[]] * count for name in ("_images", "_videos", "_audios")}
    examples["_response"] = [[None]] * count
    examples["_prompt"] = [[(row["input_ids"], row["labels"])] for row in records]
    packed = packer.preprocess_dataset(examples)
    names = ("input_ids", "labels", "attention_mask", "position_ids")

    def collate(rows: list[dict[str, Any]]) -> dict[str, Any]:
        batch = {name: torch.tensor([row[name] for row in rows]) for name in names}
        if neat:
            batch["attention_mask"] = mask.prepare_4d_attention_mask(
                batch["attention_mask"], torch.float32
            )
        return batch

    columns = zip(*(packed[name] for name in names), strict=True)
    rows = [dict(zip(names, row, strict=True)) for row in columns]
    return DataLoader(rows, batch_size=ROWS, collate_fn=collate)  # type: ignore[arg-type]


loader("LLaMA-Factory", "packing", answers=True)(partial(llama_factory, neat=False))
loader("LLaMA-Factory", "neat_packing", answers=True)(partial(llama_factory, neat=True))


@loader("llm-foundry", "BinPackCollator", answers=True)
def llm_foundry(documents: MarkedDocuments) -> Any:
    """Return rows of first fit over padded batches, with the numbers of documents."""
    script = taken(
        "llm-foundry/llmfoundry/data/packing.py",
        *("BinPackCollator", "_combine_in_place", "_pad_tensor"),
        CROSS_ENTROPY_IGNORE_INDEX=-100,
    )
    tokenizer = tokenizer_of(documents, pad=PAD)
    plain = DataCollatorForSeq2Seq(tokenizer)
    collate = script.BinPackCollator(plain, ROWS, ROW, PAD, "right")
    records = list(documents.records("input_ids", "labels", "attention_mask"))
    return DataLoader(records, batch_size=20, collate_fn=collate)  # type: ignore[arg-type]


def main() -> None:
    """Check the loaders of the checkouts that are there, and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", help="checkouts")
    parser.add_argument("--pages", action="store_true", help="print the whole reports")
    options = parser.parse_args()
    globals()["FOLDER"] = options.folder.absolute()
    for (checkout, name), (make, table) in LOADERS.items():
        if options.only and checkout not in options.only:
            continue
        if not (FOLDER / checkout).is_dir():
            print(f"{checkout}, {name}: no checkout in {FOLDER}")
            continue
        documents = marked_documents(400, pad_id=PAD, reserved=[BOS, EOS], **table)
        try:
            report = streampack.check(partial(make), documents=documents)
        except ImportError as error:
            print(f"{checkout}: left out, {error}", file=sys.stderr)
            continue
        known.print_row(checkout, name, report)
        if options.pages:
            print(report, flush=True)
    PRINTED.append({"title": "", "head": known.HEAD, "rows": known.ROWS})


if __name__ == "__main__":
    main()
