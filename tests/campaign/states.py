"""Damaged and swapped states: refused, or followed by the same batches; and grown mixtures."""

from __future__ import annotations

import copy
import io
import json
import random
from collections import Counter
from contextlib import redirect_stdout
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from streampack import PackedDataset, PackedLoader, Topology, WindowConfig, sources
from streampack.cli.replay import replay
from streampack.packing import BestFitDecreasing
from tests.campaign.attack import Attack, FoundError
from tests.campaign.hostile import hostile
from tests.support.every_source import MIXTURES, PACKERS, SOURCES
from tests.support.memory_source import MemorySource
from tests.support.restoring import maker
from tests.support.runs import identity

__all__ = ["attack_growth", "attack_states"]

EVERY = {**SOURCES, **{f"mixture-{name}": make for name, make in MIXTURES.items()}}


def attack_states(folder: Path) -> Attack:
    """States of runs over several sources with several packers, damaged in one or two places."""
    runs = []
    for number, (name, packer, options) in enumerate(
        [
            ("mds-tokens", PACKERS[0], {}),
            ("jsonl-gz", PACKERS[5], {}),
            ("chat", PACKERS[0], {}),
            ("mixture-columns", PACKERS[2], {}),
            ("mixture-streams", PACKERS[0], {"attention": "row"}),
            ("parquet-tokens", PACKERS[4], {}),
            ("tar", PACKERS[5], {}),
        ]
    ):
        place = folder / str(number)
        place.mkdir()
        make = maker(EVERY[name](place), packer, **options)
        loader = PackedLoader(make())
        batches, states = [], [loader.state_dict()]
        for batch in loader:
            batches.append(identity(batch))
            states.append(loader.state_dict())
        runs.append((make, json.loads(json.dumps(states)), batches))

    def attack(rng: random.Random) -> str:
        make, states, batches = rng.choice(runs)
        at = rng.randrange(len(states) - 1)
        state = _damaged_state(rng, states, at)
        if rng.random() < 0.2:
            path = folder / "state.json"
            path.write_text(json.dumps(state))
            with redirect_stdout(io.StringIO()):
                replay([path])
        loader = PackedLoader(make())
        allow = {"source", "packer"} if rng.random() < 0.2 else set()
        loader.load_state_dict(state, allow=allow)
        found = [identity(batch) for batch in loader]
        if found != batches[at:]:
            raise FoundError(f"a state after {at} batches gives others: {json.dumps(state)[:300]}")
        return "accepted"

    return attack


def _damaged_state(rng: random.Random, states: list[dict[str, Any]], at: int) -> dict[str, Any]:
    state = copy.deepcopy(states[at])
    other = states[rng.randrange(len(states))]
    for _ in range(rng.randint(1, 2)):
        places = list(_places(state))
        holder, key = rng.choice(places)
        kind = rng.choice(["drop", "replace", "flip", "cut", "other", "swap", "nudge", "repeat"])
        old = holder[key]
        if kind == "drop":
            del holder[key]
        elif kind in ("flip", "cut") and isinstance(old, str) and old:
            i = rng.randrange(len(old))
            holder[key] = old[:i] + (rng.choice("Aa0=+\0") + old[i + 1 :] if kind == "flip" else "")
        elif kind == "nudge" and isinstance(old, int):
            holder[key] = old + rng.choice([-1, 1, -(1 << 62), 1 << 63])
        elif kind == "other":  # what another state has in the same place
            holder[key] = copy.deepcopy(rng.choice([v for h, k in _places(other) if k == key
                                                    for v in [h[k]]] or [None]))  # fmt: skip
        elif kind == "swap":
            there, name = rng.choice(places)
            if name in there and key in holder if isinstance(there, dict) else False:
                holder[key], there[name] = copy.deepcopy(there[name]), copy.deepcopy(old)
        elif kind == "repeat" and isinstance(holder, list):
            holder.insert(key, copy.deepcopy(old))
        else:
            holder[key] = hostile(rng, json_only=True)
    return state


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every (holder, key) in a tree of JSON."""
    keys = list(value) if isinstance(value, dict) else range(len(value))
    found = []
    for key in keys:
        found.append((value, key))
        if isinstance(value[key], (dict, list)):
            found += _places(value[key])
    return found


def attack_growth(folder: Path) -> Attack:
    """A mixture that gets another source on its way: every token once, whenever that is."""

    def attack(rng: random.Random) -> str:
        generator = np.random.default_rng(rng.randrange(1 << 30))
        first, parts = 0, {}
        for name in "abc":
            lengths = generator.integers(1, 80, rng.randint(30, 120))
            ids = [np.arange(n, dtype=np.uint32) for n in lengths]
            for document in ids:
                document += first
                first += len(document)
            parts[name] = ids
        weights = {name: rng.randint(1, 4) for name in parts}
        options: dict[str, Any] = {
            "packer": BestFitDecreasing(seq_len=32),
            "batch_size": 2,
            "window": WindowConfig(rows=6),
            "lanes": rng.randint(1, 5),
            "topology": Topology(),
            "seed": rng.randrange(100),
        }

        def dataset(names: str) -> PackedDataset:
            of = {n: MemorySource([parts[n]], block_documents=7) for n in names}
            mixed = sources.Mixture(of, weights={n: weights[n] for n in names},
                                    quantum_documents=4)  # fmt: skip
            return PackedDataset(mixed, **options)

        seen: Counter[int] = Counter()
        state = None
        grown = rng.choice([["a", "ab", "abc"], ["ab", "abc"], ["ab", "ab", "abc"]])
        for names in grown:
            loader = PackedLoader(dataset(names))
            if state is not None:
                loader.load_state_dict(json.loads(json.dumps(state)), allow={"source"})
            count = None if names == grown[-1] else rng.randint(0, 12)
            for batch in islice(loader, count):
                seen.update(batch.input_ids[batch.document_ids >= 0].tolist())
            state = loader.state_dict()
        if set(seen.values()) - {1}:
            raise FoundError("a token came twice after a source was added")
        if len(seen) != first:
            raise FoundError(f"{first - len(seen)} tokens are missing after sources were added")
        return "grown"

    return attack
