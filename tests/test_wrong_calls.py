"""Calls that cannot work: the class of the error, and the setting or name that it is about."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import streampack
from streampack import (
    BestFitDecreasing,
    Buckets,
    Concat,
    PackedDataset,
    PackedLoader,
    Pad,
    SimilarityOrder,
    TokenRules,
    Topology,
    WindowConfig,
    merge_states,
    pack,
    packing,
    sources,
)
from streampack.errors import ConfigError, ContentError, PlanError, StateError
from streampack.ordering import BM25
from streampack.packing import Balance, Capacity
from tests.support.corpora import byte_tokenizer, write_mds, write_tar

IDS = [[1, 2, 3]] * 20
TEXTS = ["one text", "another text"]
EVEN = {"web": 1, "books": 1}


def dataset(source: Any = IDS, **options: Any) -> PackedDataset:
    rows = {} if {"packer", "seq_len"} & {*options} else {"seq_len": 16}
    return PackedDataset(source, topology=Topology(), **{**rows, **options})


def loader(**options: Any) -> PackedLoader:
    return PackedLoader(dataset(lanes=1), **options)


def batch() -> Any:
    return next(iter(PackedLoader(dataset(batch_size=4))))


def each(make: Callable[..., Any], **wrong: list[Any]) -> dict[str, tuple[Any, str]]:
    """A call for every wrong value of every setting."""
    return {
        f"{make.__name__} {name}={getattr(value, '__name__', repr(value))}": (
            lambda n=name, v=value: make(**{n: v}),
            name,
        )
        for name, values in wrong.items()
        for value in values
    }


def rules(**options: Any) -> TokenRules:
    return TokenRules(**options)


def evaluation(**options: Any) -> PackedDataset:
    return PackedDataset.evaluation(IDS, **{"seq_len": 16, "topology": Topology(), **options})


def mixture(**options: Any) -> sources.Mixture:
    return sources.Mixture({"web": [[1]], "books": [[2]]}, **options)


def decreasing(**options: Any) -> Any:
    return BestFitDecreasing(**{"seq_len": 16, **options})


def concatenated(**options: Any) -> Any:
    return Concat(seq_len=16, **options)


def bucketed(**options: Any) -> Any:
    return Buckets(**{"seq_lens": (8, 16), **options})


#: Calls that raise a ConfigError, and the setting that the error names.
SETTINGS: dict[str, tuple[Callable[[], Any], str]] = {
    **each(
        dataset,
        seq_len=[1, True, 16.0],
        batch_size=[0, 1.5, 1 << 28],
        lanes=[2.5, True, -1],
        seed=["x", 0.5],
        epochs=[1.5, 0],
        window=[3],
        packer=[3, "bfd", Pad],
        attention=["diagonal"],
        token_rules=[{"eos_id": 1}, TokenRules(eos="append")],
        shuffle=["no", 0, None],
        provenance=["no", 1],
        token_fields=[["reward"], "reward"],
        document_fields=[("reward",), {"reward": "string"}, {"": "int8"}],
        order=["similar"],
        filter=["short", lambda documents, seeds: documents.lengths > 1],
        map=[3, lambda documents, seeds: documents],
    ),
    **each(
        loader,
        num_workers=[1.5, 2.0, True, "2", -1, None],
        prefetch_factor=[1.5, True, "2", 0],
        rank_timeout_s=[0, -1, float("nan"), float("inf"), "60", None],
    ),
    **each(
        WindowConfig,
        min_fill=["x", 1.5, float("nan")],
        carry=[None, 0.99],
        rows=[4.5, 0],
        documents=[1000.5, None],
        max_carries=[2.5, True, -1],
        memory_limit=[0, 1.5, None],
    ),
    **each(
        sources.ReadOptions,
        block_documents=["x", 0],
        block_bytes=[-1],
        open_shards=[1.5],
        max_document_bytes=[True],
    ),
    **each(
        sources.Storage,
        cache_limit_bytes=["x", 0],
        cache_blocks=["no", 0, None],
        retries=[1.5, -1],
        timeout_s=[None, 0],
        read_ahead_bytes=[0.5, -1],
    ),
    **each(
        rules,
        pad_id=[-1, 1 << 32],
        eos_id=[1.5],
        vocab_size=[0],
        eos=["sometimes"],
        special_tokens_in_text=["no", True, 1],
    ),
    **each(evaluation, lanes=[True, 1.5, 0, "x"], epochs=[None, 0], batch_size=[0]),
    **each(
        decreasing,
        seq_len=[1, "x"],
        overflow=["cut"],
        align=[3],
        extra_capacity=[-1, 16, 2.5],
    ),
    **each(
        SimilarityOrder,
        k=[0, 1.5],
        duplicate_threshold=[0, 1.1, "x"],
        max_similarity=[0, 1.1, None],
        row_tokens=[0, 0.5],
        embedder=["bm25", 3],
    ),
    **each(BM25, dimension=[0, 1 << 17], k1=[-1, float("inf")], b=[1.1, "x", float("nan")]),
    **each(concatenated, atom=[True, 3]),
    **each(packing.Capacity, most=[{"patches": 0}, {"patches": "9"}, {1: 9}, 9]),
    **each(
        decreasing,
        limits=[Capacity({"patches": 9}), [9], [Capacity({"a": 1}), Capacity({"b": 1})]],
        choice=["attention", Balance],
    ),
    **each(
        bucketed,
        seq_lens=[(), (8, 8)],
        padding_threshold=[-1],
        shares=[(1, 2, 3), ("a", 1)],
        batch_tokens=[20, 0, 1.5],
    ),
    **each(
        packing.Curriculum,
        knots=[((0, (1, 0)), (place, (0, 1))) for place in (0.5, 10.7, float("nan"), "x", True)],
    ),
    "a warm-up of half a rotation": (
        lambda: packing.Curriculum.warm_up((1, 1, 1), 10.5),  # type: ignore[arg-type]
        "rotations",
    ),
    "a size of batches in tokens and in rows": (
        lambda: dataset(packer=bucketed(batch_tokens=32), batch_size=2),
        "batch_size",
    ),
    "an unknown balance": (lambda: Balance("tokens"), "kind"),
    "a balance of patches where documents have no images": (
        lambda: dataset(packer=decreasing(choice=Balance("patches"), overflow="drop")),
        "choice",
    ),
    "a balance of patches of rows that cannot": (
        lambda: dataset(packer=Concat(seq_len=16, choice=Balance("patches"))),
        "overflow",
    ),
    "a capacity of a field that is not there": (
        lambda: dataset(packer=decreasing(limits=[Capacity({"frames": 9})], overflow="drop")),
        "limits",
    ),
    "a capacity of a field of fractions": (
        lambda: dataset(
            packer=decreasing(limits=[Capacity({"frames": 9})], overflow="drop"),
            document_fields={"frames": "float32"},
        ),
        "limits",
    ),
    "a capacity for documents that are cut": (
        lambda: decreasing(limits=[Capacity({"frames": 9})]),
        "overflow",
    ),
    "a balance of what costs the same": (
        lambda: dataset(packer=decreasing(choice=Balance("attention")), attention="row"),
        "choice",
    ),
    "a document that has a field twice": (
        lambda: dataset(token_fields={"w": "int8"}, document_fields={"w": "int8"}),
        "document_fields",
    ),
    **each(
        mixture,
        weights=[
            *[{"web": 1, "boks": 2}, {"web": 1}, {"web": 0, "books": 0}, 5, [(1, {"web": 1})]],
            *[[(0, EVEN), (place, EVEN)] for place in (0.5, 1e9 + 0.5, float("inf"), "9", True)],
        ],
        temperature=[0],
        epochs=[{"other": 1}, {"web": 0}, 2],
        at_end=["repeat"],
        transition=["jump"],
        quantum_documents=[0],
    ),
    "weights and a temperature": (
        lambda: mixture(weights=EVEN, temperature=2),
        "temperature",
    ),
    "no source": (lambda: sources.Mixture({}), "sources"),
    "a number for a name": (lambda: sources.Mixture({0: [[1]], 1: [[2]]}), "sources"),  # type: ignore[dict-item]
    "a mixture in a mixture": (lambda: sources.Mixture({"a": mixture()}), "sources"),
    "an eos outside of the vocabulary": (lambda: rules(eos_id=51, vocab_size=50), "eos_id"),
    "a pad outside of the vocabulary": (lambda: rules(pad_id=50, vocab_size=50), "pad_id"),
    "a topology of numbers": (
        lambda: PackedDataset(IDS, seq_len=8, topology=(0, 1)).plan,
        "topology",
    ),
    "another policy for errors": (lambda: list(dataset(on_error="ignore")), "on_error"),
    "a place that is none": (lambda: Topology(1, 1), "rank"),
    "a place of floats": (lambda: Topology(0, 1.5), "world_size"),  # type: ignore[arg-type]
    "rows without a packer's length": (lambda: Buckets(seq_lens=(64, 256), shares=(1,)), "shares"),
    "Pad without an end": (lambda: list(dataset(packer=Pad(seq_len=16))), "token_rules"),
    "a group of no batches": (lambda: loader().accumulate(0), "batches"),
    "a skip of half a batch": (lambda: loader().skip(1.5), "batches"),  # type: ignore[arg-type]
    "text and tokens": (lambda: sources.JSONL("x.jsonl", text="a", tokens="b"), "tokens"),
    "a mask of a text": (
        lambda: sources.Parquet("x.parquet", text="a", loss_mask="m"),
        "loss_mask",
    ),
    "no column": (lambda: sources.Iterable([{"a": 1, "b": 2}]), "text"),
    "a reading that is none": (lambda: sources.MDS("a", reading=8), "reading"),  # type: ignore[arg-type]
    "a column of MDS": (lambda: sources.MDS("mds", tokens="other").prepare(), "tokens"),
    "a hash of MDS": (lambda: sources.MDS("mds", validate_hash="rot13").prepare(), "validate_hash"),
    "a dtype of MDS": (lambda: sources.MDS("mds", dtype="uint32").prepare(), "dtype"),
    "a key of a tar": (lambda: sources.WebDataset("a.tar", tokens="pkl"), "tokens"),
    "a text of a tar as ids": (lambda: sources.WebDataset("a.tar", tokens="txt"), "tokens"),
    "no field of npz": (lambda: sources.WebDataset("a.tar", tokens="npz"), "tokens"),
    "a pipe": (lambda: sources.WebDataset("pipe:cat a.tar", tokens="npy"), "allow_pipe"),
    "no end token": (lambda: sources.Tokens("a.npy").prepare(), "eos_id"),
    "no dtype": (lambda: sources.Tokens("a.bin", eos_id=7).prepare(), "dtype"),
    "an argument of another format": (lambda: sources.open("web.jsonl", eos_id=3), "eos_id"),
    "a list of weights for the loss": (
        lambda: batch().loss(torch.zeros(4, 16, 9), weights=2.0),
        "weights",
    ),
    "logits of another shape": (lambda: batch().loss(torch.zeros(8, 8, 9)), "logits"),
    "logits of too few ids": (lambda: batch().loss(torch.zeros(4, 16, 3)), "logits"),
    "a dict of logits": (lambda: batch().loss({"loss": 1}), "logits"),
}

#: Arguments that are not a corpus. The paths lie in `folder`.
CORPORA: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "a number": lambda: 5,
    "a module": lambda: sys,
    "a text": lambda: "a text by itself\nof two lines",
    "an empty text": lambda: "",
    "a missing path": lambda: "nowhere/a.jsonl",
    "a pattern that nothing matches": lambda: "nowhere-*.jsonl",
    "a name on the Hub": lambda: "someone/fineweb",
    "a path as bytes": lambda: b"web.jsonl",
    "a file of another kind": lambda: "table.csv",
    "an empty folder": lambda: Path("empty"),
    "a file without a document": lambda: "none.jsonl",
    "a folder of two kinds": lambda: "both",
    "a missing path in a list": lambda: ["web.jsonl", "nowhere.jsonl"],
    "a path among texts": lambda: ["web.jsonl", "a text of words"],
    "a file that is named twice": lambda: ["web.jsonl", "web.jsonl"],
    "sources in a list": lambda: [sources.JSONL("web.jsonl")],
    "a dict of paths": lambda: {"web": "web.jsonl"},
    "a record": lambda: {"text": "one"},
    "an Arrow column": lambda: pa.chunked_array([TEXTS]),
    "a table of texts and ids": lambda: pa.table({"text": TEXTS, "tokens": [[1], [2]]}),
    "a table of neither": lambda: pa.table({"url": TEXTS, "body": TEXTS}),
    "a table of numbers": lambda: pa.table({"text": [1.5, 2.5]}),
    "ids of one document": lambda: [1, 2, 3],
    "an array of one document": lambda: np.arange(5),
    "an array of floats": lambda: np.ones((2, 2)),
    "an array of three axes": lambda: np.ones((2, 2, 2), dtype=np.int64),
    "negative ids": lambda: [[-1, 2]],
    "texts as bytes": lambda: [b"one", b"two"],
    "words": lambda: [["one", "text"], ["two"]],
    "no documents": list,
    "documents that are None": lambda: [None, None],
    "a set": lambda: set(TEXTS),
    "bytes in memory": lambda: io.BytesIO(b"x"),
    "a class": lambda: list,
    "a function of a path": lambda: lambda path: TEXTS,
    "a function without a result": lambda: lambda lane, lanes: None,
    "a loader": lambda: loader(),
    "a tokenizer": byte_tokenizer,
    "conversations": lambda: [{"messages": [{"role": "user", "content": "x"}]}],
    "a tokenizer that is not there": lambda: PackedDataset(TEXTS, seq_len=8, tokenizer="gone.json"),
    "texts without a tokenizer": lambda: PackedDataset(TEXTS, seq_len=8, topology=Topology()),
}

WITHOUT_NAMES: dict[str, tuple[Callable[[], Any], type[Exception]]] = {
    "one state as several": (lambda: merge_states(loader().state_dict()), StateError),
    "no state": (lambda: loader().load_state_dict({}), StateError),
    "an unknown change": (
        lambda: loader().load_state_dict(loader().state_dict(), allow=["nothing"]),
        StateError,
    ),
    "a path as a dataset": (lambda: PackedLoader("texts.jsonl"), ConfigError),  # type: ignore[arg-type]
    "a negative id": (lambda: list(dataset([[1], [1, -7]])), ContentError),
    "lengths that are none": (lambda: pack([3.7], seq_len=8), PlanError),
    "a document longer than a row": (lambda: pack([9], seq_len=8), PlanError),
    "a cost that is none": (lambda: pack([3], seq_len=8, cost=5), ConfigError),  # type: ignore[arg-type]
    "groups of no documents": (lambda: pack([3], seq_len=8, groups=[0, 1]), ConfigError),
    "other documents than planned": (
        lambda: list(pack([3], seq_len=8).batches([[1, 2]])),
        ConfigError,
    ),
    "an unknown argument of a dataset": (lambda: dataset(max_lenght=8), TypeError),
    "an unknown argument of an evaluation": (lambda: evaluation(max_lenght=8), TypeError),
    "an item of a dataset": (lambda: dataset()[0], TypeError),
    "an unknown argument of a loader": (lambda: loader(max_lenght=8), TypeError),
    "an unknown argument of a source": (lambda: sources.JSONL("a.jsonl", x=8), TypeError),  # type: ignore[call-arg]
    "an unknown argument of pack": (lambda: pack([3], seq_len=8, x=8), TypeError),
    "seq_len by position": (lambda: Concat(8), TypeError),  # type: ignore[misc]
    "a source without its paths": (lambda: sources.TextFiles(), TypeError),  # type: ignore[call-arg]
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of several kinds, and folders."""
    folder = tmp_path_factory.mktemp("files")
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "both").mkdir()
    (folder / "empty").mkdir()
    for name in ("web.jsonl", "both/a.jsonl"):
        (folder / name).write_text('{"text": "a"}\n')
    for name in ("none.jsonl", "both/b.txt"):
        (folder / name).write_text("")
    (folder / "table.csv").write_text("text\nx\n")
    pq.write_table(pa.table({"url": TEXTS}), folder / "other.parquet")
    write_mds(folder, [np.arange(5, dtype=np.uint16)])
    write_tar(folder / "a.tar", [np.arange(5, dtype=np.uint16)])
    np.save(folder / "a.npy", np.arange(5, dtype=np.uint16))
    np.arange(5, dtype=np.uint16).tofile(folder / "a.bin")
    return folder


@pytest.fixture
def _folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


@pytest.mark.usefixtures("_folder")
@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_that_cannot_work_is_refused_by_its_name(name: str) -> None:
    call, setting = SETTINGS[name]
    with pytest.raises(ConfigError) as caught:
        call()
    assert setting == caught.value.setting


@pytest.mark.usefixtures("_folder")
@pytest.mark.parametrize("name", CORPORA)
def test_objects_other_than_a_corpus_are_refused_before_the_first_batch(name: str) -> None:
    def made() -> Any:
        return PackedDataset(
            CORPORA[name](), seq_len=8, tokenizer="tokenizer.json", topology=Topology()
        ).plan

    with pytest.raises(ConfigError) as caught:
        made()
    assert caught.value.setting or caught.value.path is not None


@pytest.mark.usefixtures("_folder")
@pytest.mark.parametrize("name", WITHOUT_NAMES)
def test_a_call_that_cannot_work_raises_the_class_that_is_documented(name: str) -> None:
    call, kind = WITHOUT_NAMES[name]
    with pytest.raises(kind) as caught:
        call()
    if isinstance(caught.value, ConfigError):
        assert caught.value.setting or caught.value.document


@pytest.mark.parametrize(
    "make",
    [
        lambda i, f: BestFitDecreasing(seq_len=i(16), align=i(1), extra_capacity=i(0)),
        lambda i, f: Concat(seq_len=i(16), atom=i(4)),
        lambda i, f: packing.Seamless(seq_len=i(16), extra_capacity=i(2)),
        lambda i, f: Buckets(seq_lens=(i(16),), align=i(2), warm_up=i(1), padding_threshold=f(0.5)),
        lambda i, f: packing.Curriculum(knots=((0, (1.0,)), (2, (2.0,))), repeat=i(4)),
        lambda i, f: SimilarityOrder(
            k=i(3), duplicate_threshold=f(0.5), embedder=BM25(k1=f(0.5), b=i(1))
        ),
    ],
)
def test_numbers_of_numpy_are_saved_as_plain_ones(make: Any) -> None:
    assert json.dumps(make(np.int64, np.float32).describe()) == json.dumps(
        make(int, float).describe()
    )


@pytest.mark.parametrize("make", [dataset, evaluation])
@pytest.mark.parametrize(
    ("argument", "place"),
    [({"overflow": "drop"}, "packer"), ({"rows": 40}, "window"), ({"eos_id": 1}, "token_rules")],
)
def test_an_argument_of_a_setting_is_named_with_the_setting(
    make: Callable[..., Any], argument: dict[str, Any], place: str
) -> None:
    with pytest.raises(TypeError) as caught:
        make(**argument)
    kinds = {"BestFitDecreasing": BestFitDecreasing, "WindowConfig": WindowConfig}
    written = str(caught.value).partition("pass ")[2].rstrip(".")
    ((key, value),) = argument.items()
    call = written.replace("seq_len=...", "seq_len=16").replace(f"{key}=...", f"{key}={value!r}")
    options = eval(f"dict({call})", {**kinds, "TokenRules": TokenRules})
    assert list(options) == [place]
    made = make(**({"seq_len": None} if place == "packer" else {}), **options)
    assert isinstance(made, PackedDataset)


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("Mixture", "from streampack.sources import Mixture"),
        ("Parquet", "from streampack.sources import Parquet"),
        ("JSONL", "from streampack.sources import JSONL"),
        ("Chat", "from streampack.sources import Chat"),
        ("Seamless", "from streampack.packing import Seamless"),
        ("GroupBy", "from streampack.ordering import GroupBy"),
        ("PackedDataLoader", "from streampack import PackedLoader"),
    ],
)
def test_a_name_of_another_module_is_answered_with_its_import(name: str, written: str) -> None:
    with pytest.raises(ImportError) as refused:
        exec(f"from streampack import {name}")
    assert written in str(refused.value)
    with pytest.raises(AttributeError) as missed:
        getattr(streampack, name)
    assert str(missed.value) == str(refused.value)
    assert not hasattr(streampack, name)
    exec(written)  # the advice works
