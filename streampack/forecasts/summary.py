"""summary: a run as a tree, as ``print(dataset)`` and ``print(dataset.plan)`` show it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from hashlib import blake2b
from itertools import groupby
from operator import itemgetter
from typing import Any

from streampack.job.topology import Topology
from streampack.lane.config import LaneConfig
from streampack.packing import Packer

COLUMN = 11  # width of the names
MOST_SOURCES = 20  # lines of sources
#: Entries of the fingerprint that are other lines of the tree, or part of them.
_ELSEWHERE = (
    *("source", "packer", "attention", "window", "batch_tokens"),
    *("seed", "shuffle", "lanes", "layout", "grouped", "dealing"),
)


def summary(
    config: LaneConfig, topology: Topology, fingerprint: Mapping[str, Any] | None = None
) -> str:
    """Return a run's sources, stages, packer, lanes and fingerprint as a tree.

    Args:
        config: configuration of the run, complete or not.
        topology: the rank.
        fingerprint: fingerprint of the planned run; None before it is planned.
    """
    lines = [("sources", line) for line in _sources(config, fingerprint)]
    longest = config.packer.seq_lens[-1]
    rows = config.batch_tokens // longest
    apart = "within a row" if config.row_format.attention_by_row else "within a document"
    epochs = "endless" if config.epochs is None else f"{config.epochs:,} epoch"
    epochs += "s" if (config.epochs or 1) > 1 else ""
    lanes = f"{config.lanes:,}, " if fingerprint or config.lanes else "chosen by the plan, "
    if fingerprint:
        lines += [("stages", line) for line in _stages(fingerprint)]
    lines += [
        ("packer", _short(config.packer)),
        ("batch", f"{rows:,} row{'s'[rows == 1 :]} of {longest:,} tokens, attention {apart}"),
        ("lanes", f"{lanes}with windows of {config.window.rows:,} rows"),
        ("run", f"{epochs}, seed {config.seed}, {'' if config.shuffle else 'not '}shuffled"),
        ("rank", f"{topology.rank} of {topology.world_size:,}"),
        ("plan", _identity(fingerprint)),
    ]
    shown = ["PackedDataset"]
    for name, part in groupby(lines, itemgetter(0)):
        branch, stem = ("└── ", "    ") if name == "plan" else ("├── ", "│   ")
        shown += [
            f"{stem if n else branch}{'' if n else name:<{COLUMN}}{value}"
            for n, (_, value) in enumerate(part)
        ]
    return "\n".join(shown)


def _sources(config: LaneConfig, fingerprint: Mapping[str, Any] | None) -> list[str]:
    """Return a line for each source: its share of the tokens at the beginning, name and `repr`."""
    sources = config.source._parts
    described = fingerprint["source"] if fingerprint else {}
    if "sources" not in described and len(sources) == 1:
        return [repr(config.source)]
    names = list(sources)
    width = max(map(len, names))
    shares = [""] * len(names)
    if "shares" in described:
        _, first = described["shares"][0]
        shares = [f"{share / sum(first):>6.1%}  " for share in first]
        last = described["shares"][-1][1]
        if last != first:
            shares = [
                f"{share}to {end / sum(last):.1%}  "
                for share, end in zip(shares, last, strict=True)
            ]
    lines = [
        f"{share}{name:<{width}}  {source!r}"
        for share, (name, source) in zip(shares, sources.items(), strict=True)
    ]
    more = len(lines) - MOST_SOURCES
    return lines if more <= 0 else [*lines[:MOST_SOURCES], f"and {more:,} more"]


def _stages(fingerprint: Mapping[str, Any]) -> list[str]:
    """Return a line for each stage that the run has, with its identity in the fingerprint."""
    stages = {name: value for name, value in fingerprint.items() if name not in _ELSEWHERE}
    tokenizers = {
        part.get("tokenizer") for part in fingerprint["source"].get("sources", {}).values()
    } - {None}
    if tokenizers:
        stages["tokenizer"] = ", ".join(sorted(map(str, tokenizers)))
    return [f"{name} {_words(value)}" for name, value in stages.items() if value is not None]


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={part}" for name, part in value.items() if part is not None)
    if isinstance(value, (list, tuple)):
        return " ".join(str(part) for part in value if part is not None)
    return str(value)


def _short(packer: Packer) -> str:
    """Return a packer's `repr` without the arguments that have their defaults."""
    if not is_dataclass(packer):
        return repr(packer)
    shown = []
    for field in fields(packer):
        value = getattr(packer, field.name)
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if field.repr and (field.name == "overflow" or value != default):
            shown.append(f"{field.name}={value!r}")
    return f"{type(packer).__name__}({', '.join(shown)})"


def _identity(fingerprint: Mapping[str, Any] | None) -> str:
    if fingerprint is None:
        return "made at the first batch; print(dataset.plan) makes it now"
    text = json.dumps(fingerprint, sort_keys=True, default=str)
    return f"fingerprint {blake2b(text.encode(), digest_size=8).hexdigest()}"
