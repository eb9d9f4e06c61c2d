"""Values that no record, state or setting should have."""

from __future__ import annotations

import random
from datetime import datetime
from decimal import Decimal
from typing import Any

import numpy as np

__all__ = ["hostile"]


def _deep(depth: int, of: type) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value] if of is list else {"a": value}
    return value


def hostile(rng: random.Random, *, json_only: bool = False, deepest: int = 900) -> Any:
    """A value of any type and size, nested as deeply; with `json_only`, one that JSON can hold."""
    plain = [
        None, True, False, 0, -1, 1, 2**31, 2**53 + 1, 2**63, 2**64, -(2**63) - 1, 10**30, 10**400,
        1.5, -0.0, 1e308, 5e-324, float("nan"), float("inf"), -float("inf"),
        "", "\0", "\ud800", "a\udfffb", "x" * 70_000, "é" * 1000, "0", "None", "\n\n\n", "{{ 1 }}",
        "<|endoftext|>", "<|im_end|>", [], {}, [[]], [{}], [None], [1, "a"], {"": 1}, [0] * 5000,
        [-100], [2**40], [1.5], [float("nan")], ["\0"], {"role": "assistant"}, "{" * 3000,
    ]  # fmt: skip
    if rng.random() < 0.1:
        depth = rng.choice([40, 90, 101, 150] if json_only else [40, 101, 600, 900])
        return _deep(min(depth, deepest), rng.choice([list, dict]))
    if json_only or rng.random() < 0.7:
        return rng.choice(plain)
    strange: list[Any] = [
        b"\xff\0", (1, 2), {1: 2}, {None: 1}, {"a", "b"}, object(), int, len, 1j, Decimal("NaN"),
        datetime(1, 1, 1), np.float32("nan"), np.int64(-5), np.array([]), np.array([[1, 2]]),
        np.array(["a"]), np.array([1.5, np.inf]), np.array([None, {}]), range(3), iter([1]),
        np.array([2**63], dtype=np.uint64), np.zeros(3, dtype=[("a", int)]),
    ]  # fmt: skip
    return rng.choice(strange)
