"""Hostile values in records, fields and settings: delivered, skipped and counted, or refused."""

from __future__ import annotations

import copy
import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from streampack import PackedDataset, PackedLoader, TokenRules, Topology, WindowConfig, sources
from streampack.packing import BestFitDecreasing, Pad
from tests.campaign.attack import Attack, FoundError
from tests.campaign.hostile import hostile
from tests.support.chats import CHATML, messages, with_template
from tests.support.corpora import byte_tokenizer

__all__ = ["attack_chats", "attack_fields", "attack_groups"]

COUNT = 24  # records of a case
TALKS: list[Callable[[int], dict[str, Any]]] = [
    lambda i: {"messages": messages(f"ask {i}", f"say {i}")},
    lambda i: {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]},
    lambda i: {"instruction": f"do {i}", "input": "x", "output": f"done {i}", "system": "s"},
    lambda i: {"prompt": f"{i} is", "completion": f" {i}"},
    lambda i: {"prompt": messages(f"q {i}"), "completion": [{"role": "assistant", "content": "a"}]},
    lambda i: {"input_ids": [i, i + 1, 200], "labels": [-100, i + 1, 200]},
    lambda i: {"input_ids": [i, i + 1, 200], "loss_mask": [0, 1, 1]},
    lambda i: {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": f"p {i}"}]},
            {"role": "assistant", "content": None, "tool_calls": [
                {"type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]},
            {"role": "tool", "content": "4"},
            {"role": "assistant", "content": "four", "weight": 1, "train": True},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
    },
]  # fmt: skip


def _places(value: Any) -> list[tuple[Any, Any]]:
    keys = list(value) if isinstance(value, dict) else range(len(value))
    found = [(value, key) for key in keys]
    for key in keys:
        if isinstance(value[key], (dict, list)):
            found += _places(value[key])
    return found


def _harmed(rng: random.Random, record: dict[str, Any], **options: Any) -> Any:
    """A record with something wrong in it."""
    kind = rng.choice(["value", "value", "value", "drop", "add", "whole"])
    if kind == "whole":
        return hostile(rng, **options)
    holder, key = rng.choice(_places(record))
    if kind == "drop":
        del holder[key]
    elif kind == "add" and isinstance(holder, dict):
        names = [
            "tools",
            "system",
            "history",
            "loss_mask",
            "labels",
            "weight",
            "name",
            "\0",
            "chosen",
        ]
        holder[rng.choice(names)] = hostile(rng, **options)
    else:
        holder[key] = hostile(rng, **options)
    return record


def _accounted(dataset: PackedDataset, count: int, *, per_record: int = 1) -> PackedLoader:
    """Run to the end; `FoundError` unless every record is a document or counted as lost."""
    loader = PackedLoader(dataset)
    for batch in loader:
        if (batch.input_ids < 0).any() or (batch.labels < -100).any():
            raise FoundError("a batch holds what is no token id")
    told = loader.metrics()
    found = told.composition.documents + told.composition.documents_lost + told.empty_documents
    least, most = count - told.skipped, (count - told.skipped) * per_record
    if not least <= found <= most:
        raise FoundError(f"{found} documents and {told.skipped} skipped of {count} records")
    return loader


def attack_chats(folder: Path) -> Attack:
    """Conversations in memory and in files, of which some hold what none should hold."""
    import datasets

    tokenizer = with_template(byte_tokenizer(), CHATML)
    _table([TALKS[0](0)], datasets.Dataset)  # Arrow claims a share of its memory before the limit

    def attack(rng: random.Random) -> str:
        shape = rng.choice(TALKS)
        form = rng.choice(["list", "factory", "lines", "table", "datasets", "iterable"])
        # Arrow nests to 64, and takes gigabytes to find out.
        deepest = 40 if form in ("table", "datasets") else 900
        limits = {"json_only": form == "lines", "deepest": deepest}
        records: list[Any] = [shape(i) for i in range(COUNT)]
        for i in rng.sample(range(COUNT), rng.randint(1, 4)):
            records[i] = _harmed(rng, copy.deepcopy(records[i]), **limits)
        data: Any = records
        if form == "lines":
            data = folder / "a.jsonl"
            data.write_text("".join(json.dumps(record) + "\n" for record in records))
            data = str(data)
        elif form == "table":
            data = _table(records)
        elif form == "datasets":
            data = _table(records, datasets.Dataset)
        elif form == "factory":
            data = lambda lane, lanes: iter(records[lane::lanes])  # noqa: E731
        elif form == "iterable":
            data = (record for record in records)
        options: dict[str, Any] = {}
        if rng.random() < 0.2:
            options["template_kwargs"] = {rng.choice(["a", "messages", "strftime_now", "", "x y"]):
                                          hostile(rng)}  # fmt: skip
        if rng.random() < 0.3:
            options["turns"] = "each"
        if rng.random() < 0.2:
            options["thoughts"] = rng.choice(["mask", "keep", "strip-history"])
        source = sources.Chat(data, template=CHATML if rng.random() < 0.3 else None, **options)
        dataset = PackedDataset(
            source, packer=BestFitDecreasing(seq_len=256, overflow=rng.choice(["split", "drop"])),
            batch_size=2, window=WindowConfig(rows=6), tokenizer=tokenizer, lanes=None,
            token_rules=TokenRules(vocab_size=257), on_error="skip", topology=Topology(),
        )  # fmt: skip
        _accounted(dataset, COUNT, per_record=4 if "turns" in options else 1)
        return form

    return attack


def _table(records: list[Any], make: Callable[[pa.Table], Any] = lambda table: table) -> Any:
    try:
        return make(pa.Table.from_pylist(records))
    except Exception:  # no table holds it
        return make(pa.table({"messages": [messages("a", "b")] * COUNT}))


def attack_fields(folder: Path) -> Attack:
    """Fields of tokens and documents, and labels, of which some values are wrong."""

    def attack(rng: random.Random) -> str:
        token, document = (rng.choice(["float32", "float16", "int8", "bool", "uint8", "float64"])
                           for _ in range(2))  # fmt: skip
        labelled = rng.random() < 0.4
        records: list[Any] = []
        for i in range(COUNT):
            n = rng.randint(1, 12)
            record = {"ids": [i] * n, "adv": [i % 2] * n, "score": i % 2}
            if labelled:
                record["labels"] = [i] * n
            records.append(record)
        harmed = rng.sample(range(COUNT), rng.randint(1, 4))
        form = rng.choice(["list", "lines", "table"])
        for i in harmed:
            records[i][rng.choice(["adv", "score", "ids", *["labels"] * labelled])] = hostile(
                rng, json_only=form != "list"
            )
        names: dict[str, Any] = {"tokens": "ids"}
        if labelled:
            names["loss_mask"] = "labels"
        if form == "lines":
            path = folder / "f.jsonl"
            path.write_text("".join(json.dumps(record) + "\n" for record in records))
            source: Any = sources.JSONL(path, **names)
        elif form == "table":
            try:
                table = pa.Table.from_pylist(records)
            except Exception:
                return "no table"
            source = sources.Table(table, **names)
        else:
            source = sources.Iterable(records, **names)
        dataset = PackedDataset(
            source, packer=Pad(seq_len=16), batch_size=2, window=WindowConfig(rows=6), lanes=1,
            token_fields={"adv": token}, document_fields={"score": document}, on_error="skip",
            token_rules=TokenRules(pad_id=0, eos_id=299, vocab_size=300), topology=Topology(),
        )  # fmt: skip
        loader = PackedLoader(dataset)
        seen: Counter[int] = Counter()
        for batch in loader:
            for number in range(batch.num_documents):
                own = batch.document_ids == number
                ids = batch.input_ids[own]
                first = int(ids[0])
                if not (ids == first).all():
                    continue  # ids that were harmed, and may begin as another's do
                seen[first] += 1
                values = batch.fields["adv"][own].double().numpy()
                if first not in harmed and not (values == first % 2).all():
                    raise FoundError(f"document {first} has another's values in a field")
                if (
                    first not in harmed
                    and float(batch.document_fields["score"][number]) != first % 2
                ):
                    raise FoundError(f"document {first} has another's score")
                if np.isnan(values).any():
                    raise FoundError("a field is NaN")
        missing = [i for i in range(COUNT) if i not in harmed and not seen[i]]
        if missing:
            raise FoundError(f"documents {missing} are missing")
        _count(loader, COUNT)
        return form

    return attack


def _count(loader: PackedLoader, count: int) -> None:
    told = loader.metrics()
    found = told.composition.documents + told.composition.documents_lost + told.empty_documents
    if found + told.skipped != count:
        raise FoundError(f"{found} documents and {told.skipped} skipped of {count}")


def attack_groups(folder: Path) -> Attack:
    """Groups alone and in a mixture: each in one row, whole, or dropped whole."""

    def attack(rng: random.Random) -> str:
        group_of: dict[int, Any] = {}
        parts: dict[str, Any] = {}
        first = 0
        harmed = False
        for name in "ab"[: rng.randint(1, 2)]:
            records: list[Any] = []
            for number in range(rng.randint(4, 16)):
                ids: list[Any] = []
                for _ in range(rng.randint(1, 5)):
                    group_of[first] = (name, number)
                    ids.append([first] * rng.randint(1, 9))
                    first += 1
                records.append({"ids": ids, "g": number})
            if rng.random() < 0.3:
                rng.choice(records)["g"] = hostile(rng, json_only=True)
                harmed = True
            path = folder / f"{name}.jsonl"
            path.write_text("".join(json.dumps(record) + "\n" for record in records))
            parts[name] = sources.JSONL(path, tokens="ids", reading=sources.Reading(
                block_documents=rng.randint(1, 9), open_shards=rng.randint(1, 3)))  # fmt: skip
        source = (
            parts["a"]
            if len(parts) == 1
            else sources.Mixture(parts, weights=dict.fromkeys(parts, 1))
        )
        dataset = PackedDataset(
            source, packer=BestFitDecreasing(seq_len=32, overflow="drop"), batch_size=2,
            window=WindowConfig(rows=6), lanes=rng.randint(1, 3),
            document_fields={"g": "int64"}, token_rules=TokenRules(pad_id=0), topology=Topology(),
            seed=rng.randrange(9),
        )  # fmt: skip
        loader = PackedLoader(dataset)
        row_of: dict[Any, set[Any]] = {}
        seen: Counter[int] = Counter()
        for k, batch in enumerate(loader):
            for number in range(batch.num_documents):
                own = batch.document_ids == number
                name = int(batch.input_ids[own][0])
                seen[name] += 1
                row_of.setdefault(group_of[name], set()).add((k, int(own.any(dim=1).nonzero()[0])))
        told = loader.metrics()
        if max(seen.values(), default=1) > 1:
            raise FoundError("a document came twice")
        if not harmed and any(len(rows) > 1 for rows in row_of.values()):
            raise FoundError("a group lies in several rows")
        lost = told.composition.documents_lost
        whole = sum(seen.values())
        if not told.skipped and lost == 0 and whole != first:
            raise FoundError(f"{first - whole} of {first} documents are missing")
        return "skipped" if told.skipped else "whole"

    return attack
