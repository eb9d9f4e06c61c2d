"""Texts at which engines of texts disagree, and the comparison of their ids without a proof."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
from tokenizers import Tokenizer as Engine

from streampack.tokenization.fast import FastEngine, fast_engine
from tests.support.vocabularies import random_texts

#: Letters at which patterns, normalizers and added tokens disagree.
EDGES = (
    " \t\n\r\x0b\x85\xa0\u2003\u3000''aZsdtLl1/²²éǅʰªſİß你́̂.;(_-\x00\u200b\ufeff<|>x\U0001f642\u1885"
)


def hostile(seed: int, count: int) -> list[str]:
    """Short texts of letters that many rules treat apart."""
    rng = random.Random(seed)
    some = ["".join(rng.choices(EDGES, k=rng.randrange(1, 16))) for _ in range(count)]
    return [*some, *random_texts(seed, count // 8, ["<|end|>", "abc", " tok", "<x>"])]


def every_character(step: int, stop: int = 0x110000) -> Iterator[str]:
    """Texts with each character of Unicode (or one of `step`) beside letters and white space."""
    for n in range(0, stop, step):
        if not 0xD800 <= n < 0xE000:
            c = chr(n)
            yield f"a{c}1{c} {c}\n{c}b'{c}"


def unproved(engine: Engine) -> FastEngine | None:
    fast = fast_engine(engine, "auto")
    if fast is not None:
        fast._proved = True
    return fast


def differing(engine: Engine, fast: FastEngine, texts: list[str]) -> list[str]:
    found = fast.encode(texts)
    assert found is not None
    pieces = np.split(found[0], found[1].cumsum())
    exact = engine.encode_batch_fast(texts, add_special_tokens=False)
    return [t for t, ids, e in zip(texts, pieces, exact, strict=False) if ids.tolist() != e.ids]
