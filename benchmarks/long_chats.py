"""Learnt tokens that long chats lose, by overflow: ``python -m benchmarks.long_chats``.

3,000 made chats: one to five questions (median 40 tokens) with answers
(median 170 tokens), a third with a system prompt. A word is a token, and the template is ChatML.
Each cell is the share of the loss tokens that no row holds, in %: with "truncate" and "drop" of
`BestFitDecreasing`, and with ``sources.Chat(overflow="turns")``. "split" loses no loss token, but
later pieces lack the text before them. The last columns are the tokens that the documents of
"turns" have, over the tokens of the chats, and the share of their tokens before a turn that no row
holds.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from benchmarks.report import print_table
from streampack import PackedDataset, PackedLoader, TokenRules, sources
from streampack.metrics import Metrics
from streampack.packing import BestFitDecreasing

TEMPLATE = (
    "{% for m in messages %}<|im_start|> {{ m.role }} {% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }} <|im_end|>{% endgeneration %}{% else %}{{ m.content }} "
    "<|im_end|>{% endif %} {% endfor %}"
)
WORDS = [f"w{i}" for i in range(1000)]
RULES = TokenRules(eos="as-is")


def tokenizer() -> Tokenizer:
    """Return a tokenizer with one token for each word."""
    texts = ["<|im_start|>", "<|im_end|>", "system", "user", "assistant", "?", *WORDS]
    engine = Tokenizer(WordLevel({text: i for i, text in enumerate(texts)}, unk_token="?"))
    engine.pre_tokenizer = WhitespaceSplit()
    engine.add_special_tokens(texts[:2])
    return engine


def chats(count: int) -> list[dict[str, Any]]:
    """Make chats with one to five questions and answers."""
    rng = np.random.default_rng(0)

    def said(role: str, median: float, spread: float) -> dict[str, str]:
        number = int(np.clip(rng.lognormal(np.log(median), spread), 3, 1500))
        return {"role": role, "content": " ".join(rng.choice(WORDS, number))}

    made = []
    for _ in range(count):
        messages = [said("system", 40, 0.5)] if rng.random() < 1 / 3 else []
        for _ in range(int(rng.integers(1, 6))):
            messages += [said("user", 40, 1.0), said("assistant", 170, 0.7)]
        made.append({"messages": messages})
    return made


def metrics_of(records: list[dict[str, Any]], engine: Tokenizer, seq_len: int, way: Any) -> Metrics:
    """Return the figures of a run over the chats."""
    turns = way == "turns"
    source = sources.Chat(records, template=TEMPLATE, overflow="turns" if turns else None)
    given: dict[str, Any] = {"seq_len": seq_len}
    if not turns:
        given = {"packer": BestFitDecreasing(seq_len=seq_len, overflow=way)}
    loader = PackedLoader(
        PackedDataset(source, tokenizer=engine, token_rules=RULES, lanes=1, **given)
    )
    for _ in loader:
        pass
    return loader.metrics()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--chats", type=int, default=3000)
    parser.add_argument("--seq-lens", type=int, nargs="+", default=[256, 512, 1024, 2048])
    options = parser.parse_args()
    records, engine, table = chats(options.chats), tokenizer(), []
    whole = metrics_of(records, engine, 16_384, "split").tokens
    for seq_len in options.seq_lens:
        runs = {
            way: metrics_of(records, engine, seq_len, way) for way in ("truncate", "drop", "turns")
        }
        lost = [f"{100 * run.loss_dropped_ratio:.1f}" for run in runs.values()]
        turns = runs["turns"]
        cut = 100 * turns.context_dropped / (turns.tokens + turns.context_dropped)
        table.append([f"{seq_len:,}", *lost, f"{turns.tokens / whole:.2f}", f"{cut:.1f}"])
    print_table(
        "Loss tokens that no row holds, in %",
        ["row", "truncate", "drop", "turns", "turns: tokens", "turns: history cut, %"], table,
    )  # fmt: skip


if __name__ == "__main__":
    main()
