"""Calls that users of other libraries make first: each error gives the call to write."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, random_split

from streampack import PackedDataset, PackedLoader, Topology, sources
from streampack.errors import ConfigError

IDS = [[1, 2, 3]] * 20


def dataset(source: Any = IDS, **options: Any) -> PackedDataset:
    return PackedDataset(source, topology=Topology(), **{"seq_len": 16, **options})


def loader(**options: Any) -> PackedLoader:
    return PackedLoader(dataset(), **options)


def batch() -> Any:
    return next(iter(loader()))


#: Arguments of a dataset, and a part of the call to write.
OF_DATASETS = {
    **dict.fromkeys(("max_length", "block_size", "max_seq_length", "sequence_len"), "seq_len=16"),
    **dict.fromkeys(("num_workers", "prefetch_factor", "device"), "PackedLoader(dataset, "),
    **dict.fromkeys(("collate_fn", "data_collator"), "transform="),
    **dict.fromkeys(("text_field", "dataset_text_field", "text_column"), "text="),
    **dict.fromkeys(("streams", "proportion", "weights"), "sources.Mixture("),
    **dict.fromkeys(("template", "turns", "learn"), "sources.Chat("),
    **dict.fromkeys(("dtype", "storage", "reading"), "sources.open("),
    **dict.fromkeys(("cache_dir", "local", "cache_limit_bytes"), "sources.Storage("),
    **dict.fromkeys(("eos_token_id", "eos_id", "pad_token_id"), "TokenRules("),
    **dict.fromkeys(("truncation", "overflow"), "BestFitDecreasing("),
    **dict.fromkeys(("rank", "world_size", "num_replicas"), "Topology("),
    **dict.fromkeys(("formatting_func", "preprocess", "records"), "records=function"),
    "packing": "leave it out",
    "seq_lens": "Buckets(",
    "restart": "Concat(",
    "drop_last": 'end="stop"',
    "seqlen": "seq_len=",
    "per_device_train_batch_size": "batch_siz",
    "num_epochs": "epochs=16",
    "data_files": "first",
    "shuffle_seed": "seed=16",
    "resampled": "epochs=None",
    "sampler": "leave it out",
    "chat_template": "template=16",
    "max_steps": "islice",
    "buffer_size": "shuffle=True",
    "split": "files of the split",
}
#: Arguments of a loader.
OF_LOADERS = {
    **dict.fromkeys(("batch_size", "shuffle", "seed", "tokenizer"), "PackedDataset(source, "),
    **dict.fromkeys(("max_length", "seq_length"), "seq_len=16"),
    "collate_fn": "transform=",
    "drop_last": 'end="stop"',
    "sampler": "leave it out",
    "persistent_workers": "leave it out",
    "workers": "num_workers=16",
    "topology": "Topology(",
}
#: Attributes and methods, and a part of the call to write.
ATTRIBUTES: dict[str, tuple[Callable[[], Any], dict[str, str]]] = {
    "dataset": (
        dataset,
        {
            **dict.fromkeys(("map", "with_transform"), "records=function"),
            **dict.fromkeys(("set_epoch", "repeat"), "epochs=n"),
            "filter": "filter=function",
            "shuffle": "shuffle=True",
            "take": "next(iter(",
            "shard": "without a sampler",
            "state_dict": "loader.state_dict()",
            "plann": "plan",
            "train_test_split": "evaluation(",
            "column_names": "text=",
            "num_rows": "estimate_",
        },
    ),
    "loader": (
        loader,
        {
            "set_epoch": "epochs=n",
            "next_batch": "iter(loader)",
            "save": "state_dict()",
            "num_batches": "estimate_steps()",
            "map": "transform=",
            "to": "device=",
            "load": "load_state_dict(state)",
            "plan": "loader.dataset.plan",
        },
    ),
    "batch": (
        batch,
        {
            **dict.fromkeys(
                ("attention_mask", "items", "token_type_ids"), "**batch.hf(model=model)"
            ),
            "batch_size": "batch.rows",
            "cuda": 'batch.to("cuda")',
            "cpu": 'batch.to("cpu")',
            "targets": "batch.labels",
            "x": "batch.input_ids",
            "shape": "batch.input_ids",
            "seq_lens": "cu_seqlens.diff()",
            "doc_ids": "document_ids",
            "bfloat16": "batch.to(",
            "loss_mask": "labels != -100",
            "cu_seqlens_q": "batch.varlen()",
        },
    ),
}
#: Other calls.
CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "len(dataset)": (lambda: len(dataset()), "estimate_steps()"),
    "len(loader)": (lambda: len(loader()), "estimate_steps()"),
    "len(batch)": (lambda: len(batch()), "batch.rows"),
    "next(dataset)": (lambda: next(dataset()), "next(iter("),  # type: ignore[call-overload]
    "next(loader)": (lambda: next(loader()), "iter(loader)"),  # type: ignore[call-overload]
    "dataset[0]": (lambda: dataset()[0], "next(iter("),
    "loader[0]": (lambda: loader()[0], "next(iter("),  # type: ignore[index]
    "batch['input_ids']": (lambda: batch()["input_ids"], "batch.input_ids"),
    "**batch": (lambda: dict(**batch()), "**batch.hf(model=model)"),
    "a sampler": (lambda: DistributedSampler(dataset(), 2, 0), "PackedLoader(dataset)"),
    "a split": (lambda: random_split(dataset(), [0.5, 0.5]), "PackedLoader(dataset)"),
    "to(dtype)": (lambda: batch().to(torch.bfloat16), "batch.to(device)"),
    "to(dtype=)": (lambda: batch().to(dtype=torch.bfloat16), "batch.to(device)"),
    "to(device, dtype)": (lambda: batch().to("cpu", torch.bfloat16), "batch.to(device)"),
    "a batch size by position": (lambda: PackedLoader(dataset(), 8), "batch_size="),  # type: ignore[misc]
    "a row length by position": (lambda: PackedDataset(IDS, 8), "seq_len=8"),  # type: ignore[misc]
    "a column of Chat": (lambda: sources.Chat("a.jsonl", chat_template="x"), "template='x'"),  # type: ignore[call-arg]
}


@pytest.mark.parametrize("argument", OF_DATASETS)
def test_an_argument_of_another_library_names_the_call_to_write(argument: str) -> None:
    for make in (dataset, PackedDataset.evaluation):
        with pytest.raises(TypeError, match=argument) as caught:
            make(IDS, **{argument: 16})
        assert OF_DATASETS[argument] in str(caught.value)


@pytest.mark.parametrize("argument", OF_LOADERS)
def test_an_argument_of_torchs_loader_names_the_call_to_write(argument: str) -> None:
    with pytest.raises(TypeError, match=argument) as caught:
        loader(**{argument: 16})
    assert OF_LOADERS[argument] in str(caught.value)


@pytest.mark.parametrize("kind", ATTRIBUTES)
def test_an_attribute_of_another_library_is_missing_and_its_error_names_the_call(kind: str) -> None:
    make, attributes = ATTRIBUTES[kind]
    owner = make()
    for name, words in attributes.items():
        assert not hasattr(owner, name)
        with pytest.raises(AttributeError) as caught:
            getattr(owner, name)
        assert words in str(caught.value), name


@pytest.mark.parametrize("name", CALLS)
def test_a_call_of_another_library_names_the_call_to_write(name: str) -> None:
    call, words = CALLS[name]
    with pytest.raises(TypeError) as caught:
        call()
    assert words in str(caught.value)


@pytest.mark.parametrize("make", [dataset, loader, batch])
def test_an_object_without_length_is_true_and_can_be_copied(make: Callable[[], Any]) -> None:
    owner = make()
    assert bool(owner)
    for name in ("__len__", "__next__", "__getitem__", "_private", "__deepcopy__"):
        assert not hasattr(owner, name)
    assert repr(copy.copy(owner)) == repr(owner)
    if make is not loader:
        assert repr(pickle.loads(pickle.dumps(owner))) == repr(owner)
    assert not hasattr(object.__new__(type(owner)), "anything")  # as while it is unpickled


def test_the_error_of_a_property_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise AttributeError("of a tokenizer")

    monkeypatch.setattr("streampack.dataset.plan_run", fail)
    with pytest.raises(AttributeError, match="of a tokenizer"):
        _ = dataset().plan


def test_a_plan_is_printed_as_a_summary() -> None:
    assert "8 rows of 16 tokens" in str(dataset().plan)
    assert len(str(dataset().plan).splitlines()) < 12


def test_a_dataset_in_torchs_loader_has_no_length_either() -> None:
    torchs = DataLoader(dataset(), batch_size=None)
    with pytest.raises(TypeError):
        len(torchs)
    assert len(list(torchs)) == len(list(loader()))


def test_columns_beside_a_source_with_its_own_are_refused() -> None:
    rows = sources.Items([{"a": "x", "b": "y"}], text="a")
    mixture = sources.Mixture({"a": rows})
    for source in (rows, mixture):
        with pytest.raises(ConfigError) as caught:
            dataset(source, text="b")
        assert caught.value.setting == "text"
        assert "sources." in caught.value.remedy
