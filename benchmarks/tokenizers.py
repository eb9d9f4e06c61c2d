"""Engines of texts: equal ids over many texts, and rates on one and two cores.

    python -m benchmarks.tokenizers [--only NAME ...] [--texts 100000] [--docs]

For each of `benchmarks.vocabularies`. Texts are random, of many scripts and of runs anywhere in
Unicode, with special tokens; besides, 17,375 have every character of Unicode. Where "auto" takes
gigatoken, its ids for them, with all its exceptions, are compared with the ids of tokenizers, and
of tiktoken for an encoding of it. Rates are of source files and processor time; on two cores two
processes run at once, and their rates are added. ``--docs`` keeps the figures in docs/benchmarks/,
beside the figures of other vocabularies, and writes the page of records.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer as Engine

from benchmarks.records import write_page
from benchmarks.report import machine, markdown_table
from benchmarks.vocabularies import VOCABULARIES, Made
from demo.corpus import gather
from streampack.documents.blocks import Texts, make_origin
from streampack.sources.error_policy import ErrorPolicy
from streampack.tokenization import Tokenizer
from tests.support.vocabularies import random_texts

DOCS = Path(__file__).parent.parent / "docs"
BLOCK = 256  # texts
SEED_TEXTS = 10_000  # of one seed
OTHERS = ("other ids than tokenizers", "other ids than tiktoken")


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])  # type: ignore[union-attr]
    parser.add_argument("--only", nargs="*", default=[*VOCABULARIES], choices=[*VOCABULARIES])
    parser.add_argument("--texts", type=int, default=100_000)
    parser.add_argument("--megabytes", type=float, default=8, help="of source, for the rates")
    parser.add_argument("--docs", action="store_true", help="keep figures and table in docs/")
    options = parser.parse_args()
    file = DOCS / "benchmarks" / "tokenizers.json"
    found: dict[str, Any] = json.loads(file.read_text()) if options.docs and file.exists() else {}
    for name in options.only:
        try:
            made = VOCABULARIES[name]()
        except ModuleNotFoundError as error:
            print(f"{name}: {error}", flush=True)
            continue
        figures = measured(made, options.texts, options.megabytes)
        found[name] = {**figures, "machine": machine()}
        print(f"{name}: {found[name]}", flush=True)
        if options.docs:
            file.write_text(json.dumps(found, indent=1) + "\n")
    text = table(found)
    print(text)
    if options.docs:
        write_page()


def measured(made: Made, count: int, megabytes: float) -> dict[str, Any]:
    """Return the engine that "auto" takes, the number of texts with other ids, and the rates."""
    fast = Tokenizer(made.engine, eos="as-is", bos=False)._fast
    texts = differing = differing_tiktoken = 0
    special = [token.content for token in made.engine.get_added_tokens_decoder().values()]
    seeds = range(-(-count // SEED_TEXTS))
    parts = (random_texts(n, min(SEED_TEXTS, count), special[:8] or ["x"]) for n in seeds)
    for some in chain(parts, every_character()) if fast is not None else ():
        texts += len(some)
        flat, counts = fast._encode(some)  # type: ignore[union-attr]
        ids = [each.tolist() for each in np.split(flat, counts.cumsum())[:-1]]
        differing += _differing(ids, _by_tokenizers(made.engine, some))
        if made.encoding is not None:
            exact = [made.encoding.encode(text, allowed_special="all") for text in some]
            differing_tiktoken += _differing(ids, exact)
    source = made.engine.to_str()
    return {
        "auto": "tokenizers" if fast is None else "gigatoken",
        **({} if fast is None else {"texts": texts, OTHERS[0]: differing}),
        **({} if made.encoding is None or fast is None else {OTHERS[1]: differing_tiktoken}),
        "rates": {
            f"{kind}, {cores}": rate(source, kind, cores, megabytes)
            for cores in (1, 2)
            for kind in ("tokenizers", *(["auto"] if fast is not None else []))
        },
    }


def every_character() -> Iterator[list[str]]:
    """Texts that have each character of Unicode beside a letter, a digit and white space."""
    characters = [chr(n) for n in range(0x110000) if not 0xD800 <= n < 0xE000]
    one = [f"a{character}1{character} {character}\n{character}" for character in characters]
    texts = ["".join(one[first : first + 64]) for first in range(0, len(one), 64)]
    yield texts[: len(texts) // 2]
    yield texts[len(texts) // 2 :]


def _by_tokenizers(engine: Engine, texts: list[str]) -> list[list[int]]:
    return [e.ids for e in engine.encode_batch_fast(texts, add_special_tokens=False)]


def _differing(some: list[list[int]], others: list[list[int]]) -> int:
    return sum(a != b for a, b in zip(some, others, strict=True))


def rate(source: str, kind: str, processes: int, megabytes: float) -> float:
    """MB/s of processor time of an engine, together of so many processes at once."""
    context = multiprocessing.get_context("spawn")
    barrier, out = context.Barrier(processes), context.Queue()
    arguments = (source, kind, megabytes, barrier, out)
    children = [context.Process(target=_encode_all, args=arguments) for _ in range(processes)]
    for child in children:
        child.start()
    rates = [out.get(timeout=500) for _ in children]
    for child in children:
        child.join()
    return round(sum(rates), 2)


def _encode_all(source: str, kind: Any, megabytes: float, barrier: Any, out: Any) -> None:
    tokenizer = Tokenizer(Engine.from_str(source), eos="as-is", bos=False, engine=kind)
    texts = gather(int(megabytes * 1e6))
    for part in (texts[:50], texts):  # the first warms up
        barrier.wait(timeout=400)
        began = time.process_time()
        for start in range(0, len(part), BLOCK):
            some = part[start : start + BLOCK]
            tokenizer.encode(Texts(some, make_origin(0, np.arange(len(some)))), ErrorPolicy())
        took = time.process_time() - began
    out.put(sum(len(text.encode()) for text in texts) / 1e6 / took)


def table(found: dict[str, Any]) -> str:
    """A row per vocabulary, in the order of `VOCABULARIES`."""
    rows = []
    for name in filter(found.__contains__, VOCABULARIES):
        figures = found[name]
        rows.append(
            [
                name,
                figures["auto"],
                *(_number(figures.get(key)) for key in ("texts", *OTHERS)),
                *(_rates(figures["rates"], cores) for cores in (1, 2)),
            ]
        )
    heads = ["vocabulary", "auto takes", "texts", "other ids", "than tiktoken"]
    heads += [f"MB/s of {cores}" for cores in ("one core", "two cores")]
    machines = {figures["machine"] for figures in found.values()}
    return f"{markdown_table(heads, rows)}\n\n{'; '.join(sorted(machines))}."


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _rates(rates: dict[str, float], cores: int) -> str:
    before, now = rates[f"tokenizers, {cores}"], rates.get(f"auto, {cores}")
    return f"{before:.1f}" if now is None else f"{before:.1f} → {now:.1f}"


if __name__ == "__main__":
    main()
