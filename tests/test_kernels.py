"""Kernels: Python and compiled code give the same arrays, and only long calls compile."""

from __future__ import annotations

import copy
import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streampack import BestFitDecreasing, PackedDataset, PackedLoader, _jit, packing, sources
from streampack.corpus_order import duplicates, write
from streampack.exclusion import lookup
from streampack.files import json_ids
from streampack.groups import whole_groups
from streampack.limits import even_rows
from streampack.ordering import approximate, bm25, hashing
from streampack.packers import concat, crop, curriculum, microbatches
from streampack.packing import rng
from streampack.window import entries
from tests.run.test_golden_batches import GOLDEN, KINDS, Corpus, hashed

SNIPPET = """
import sys
from streampack import PackedDataset, PackedLoader, _jit
_jit._cache_files = lambda function: iter(())  # as where nothing has been compiled
documents = [[n] * n for n in (5, 3, 9, 2, 4, 6, 1, 8)]
print(len(list(PackedLoader(PackedDataset(documents, seq_len=8, batch_size=3)))))
print("numba" in sys.modules, "streampack._compiler" in sys.modules)
"""
DTYPES = ("uint8", "uint16", "uint32", "int32", "int64", "uint64")


def count_to(numbers: Any, limit: int) -> Any:
    total = np.uint64(0)
    for number in numbers:
        total += np.uint64(number) * np.uint64(0x9E3779B97F4A7C15)
    return total, np.int64(limit) + 1, limit > 3


def same(a: Any, b: Any) -> None:
    """Equal in types, and arrays in dtypes and values."""
    assert type(a) is type(b), (a, b)
    if isinstance(a, np.ndarray):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    elif isinstance(a, tuple):
        assert len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            same(one, other)
    else:
        assert a == b or a != a


def compare(kernel: Any, *arguments: Any) -> Any:
    """Call a kernel in both tiers on copies of its arguments, which it may change."""
    interpreted, compiled = copy.deepcopy(arguments), copy.deepcopy(arguments)
    first = kernel.run(*interpreted)
    with _jit.compiled_at_once():
        second = kernel.compiled.call(*compiled)
    same(first, second)
    same(interpreted, compiled)
    for given, changed in zip(arguments, compiled, strict=True):
        put_back(given, changed)
    return second


def put_back(given: Any, changed: Any) -> None:
    """Write changed arrays into the caller's."""
    if isinstance(given, np.ndarray):
        if given.flags.writeable:
            given[...] = changed
    elif isinstance(given, tuple):
        for one, other in zip(given, changed, strict=True):
            put_back(one, other)


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of kernels that were called, each call in both tiers."""
    names: set[str] = set()

    def call(kernel: Any, *arguments: Any) -> Any:
        names.add(f"{kernel.__module__}.{kernel.py_func.__qualname__}")
        return compare(kernel, *arguments)

    monkeypatch.setattr(_jit._Kernel, "__call__", call)
    return names


def test_eight_documents_import_no_compiler() -> None:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA")}
    command = [sys.executable, "-c", SNIPPET]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=variables)
    assert done.stdout == "2\nFalse False\n"


def test_python_runs_calls_within_its_budget_and_others_are_compiled_before_they_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_jit._Tier, "name", "both")
    monkeypatch.setattr(_jit, "BUDGET_S", 1.0)
    kernel: Any = _jit.kernel_of(lambda numbers, limit: limit)(count_to)
    monkeypatch.setattr(kernel, "run", runs := Recorded(kernel.run))
    monkeypatch.setattr(kernel, "_may_be_cached", False)  # by an earlier run of this test
    numbers = np.arange(9, dtype=np.uint16)
    short = kernel(numbers, 5)
    assert runs.calls == 1
    assert kernel(numbers, 10**12)[1:] == (10**12 + 1, True)
    assert runs.calls == 1
    same(kernel(numbers, 5), short)
    assert runs.calls == 1  # compiled code is for every call of these types
    same(kernel(numbers.astype(np.uint8), 5), short)
    assert runs.calls == 2  # other types have a budget of their own


class Recorded:
    """A function that counts its calls."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.calls = function, 0

    def __call__(self, *arguments: Any) -> Any:
        self.calls += 1
        return self.function(*arguments)


@pytest.mark.parametrize("dtype", DTYPES)
def test_both_tiers_return_the_same_python_numbers(dtype: str) -> None:
    kernel = _jit.kernel(count_to)
    for seed in range(5):
        high = np.iinfo(dtype).max
        numbers = np.random.default_rng(seed).integers(0, high, 7, dtype=dtype, endpoint=True)
        total, *_ = compare(kernel, numbers, seed)
        assert type(total) is int


def counts(random: np.random.Generator, size: int, most: int) -> Any:
    return random.integers(0, most, size, dtype=np.int64, endpoint=True)


def offsets_over(random: np.random.Generator, total: int, parts: int) -> Any:
    return np.concatenate(([0], np.sort(counts(random, parts - 1, total)), [total]))


def draw_calls(random: np.random.Generator) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Calls of the kernels that no kind of run in `KINDS` makes."""
    n, k = int(random.integers(1, 30)), int(random.integers(1, 5))
    sizes = counts(random, n, 40) + 1
    runs = np.append(np.unique(counts(random, k, n - 1)), n)
    yield write.cut_shards, (sizes, runs, int(random.integers(1, 90)))
    pairs = np.sort(counts(random, 2 * n, n - 1).reshape(n, 2))[:, ::-1].copy()
    yield duplicates._choose, (pairs, np.full(n, -1, np.int32))
    vectors = random.integers(-9, 9, (n, 6)).astype(np.float32)
    norms = (vectors.astype(np.float64) ** 2).sum(axis=1) + 1
    candidates = random.integers(-1, n, (n, k))
    cosines = np.full((n, k), -1.0)
    yield approximate.compute_cosines, (vectors, norms, candidates, cosines)
    whole = approximate.WholeVectors(np.arange(n), vectors.astype(np.int32), norms)
    found = approximate.Found(
        np.full(n, -1, np.int64), np.full((n, k), -1, np.int64), np.full((n, k), -np.inf)
    )
    yield approximate._choose, (candidates, random.random((n, k)), 0.6, whole, found)
    index, offsets = counts(random, 5 * n, 8), offsets_over(random, 5 * n, n)
    yield bm25._count, (index, offsets, 9)
    terms = random.integers(0, 2**64, 9, dtype=np.uint64)
    for kind in (np.uint16, np.int64, np.uint64):
        out = np.zeros((n, 4), np.float32)
        curve = (1.5, 0.75, 5.0)
        yield bm25._embed, (index, offsets, terms.astype(kind), random.random(9), curve, out)
    listed = random.choice(np.frombuffer(b"0123456789,,, ", np.uint8), 5 * n)
    listed[-1] = b"]-"[n % 2]
    yield json_ids.parse_ids, (listed, 0, np.zeros(len(listed), np.uint32))
    text = random.integers(0, 256, 5 * n).astype(np.uint8)
    words = np.zeros(5 * n, np.uint32), np.zeros(5 * n, np.int64), np.zeros(n + 1, np.int64)
    yield hashing._hash_words, (text, offsets, *words)
    for kind in DTYPES:
        tokens = random.integers(0, np.iinfo(kind).max, 5 * n, dtype=kind, endpoint=True)
        yield hashing._hash_ngrams, (tokens, offsets, 2, 256, np.zeros((n, 8), np.float32))
    yield concat.cut_and_restart, (sizes, random.random(n) < 0.5, int(random.integers(2, 50)))
    for keeps in (True, False):
        yield crop._crop, (sizes, 16, keeps, not keeps, np.zeros(n, np.int64))
    place, costs = np.zeros(n, np.int64), random.random(n)
    yield microbatches._spread, (np.argsort(-costs), sizes, costs, 4, 200, place)
    yield microbatches._even_out, (place, sizes, costs, 4, 10_000, 5_000)
    row, loss = counts(random, n - 1, k - 1), counts(random, n - 1, 20)
    seq_len = int(np.bincount(row, sizes[1:]).max()) + 3 if n > 1 else 9
    yield even_rows.exchange, (row, sizes[1:], loss, np.argsort(sizes[1:]), seq_len, k)
    members = offsets_over(random, n, k)
    lengths = np.add.reduceat(np.append(sizes, 0), members[:-1]) * (np.diff(members) > 0)
    placed = np.empty(k, np.int64), np.empty(n, np.int64)
    yield whole_groups._place, (sizes, members, lengths, np.argsort(-lengths), 30, 41, *placed)
    origin = [random.integers(0, 9, n).astype(kind) for kind in (np.int32, np.int32, np.int64)]
    yield entries._digest, (*origin, random.integers(0, 2**62, (8, n)))
    keys = [random.bytes(int(size)) for size in counts(random, n, 20)]
    texts = [*keys[::2], *(key + b"a" for key in keys[::3])]
    known, ends = lookup.Lookup(keys), np.cumsum([0, *map(len, texts)])
    tables = known._bitmap, known._begins, known._data, known._offsets
    sorted_keys = known._order, known._hashes
    data, ordinals = np.frombuffer(b"".join(texts), np.uint8), np.zeros(len(texts), np.int64)
    yield lookup._find, (data, ends, *tables, *sorted_keys, ordinals)
    shares = [tuple((1 + counts(random, 3, 9)).tolist()) for _ in range(2)]
    knots = curriculum.Curriculum([(0, shares[0]), (n, shares[1])], n + k if k % 2 else None)
    yield curriculum._take_turns, (200, knots.units(), np.uint64(n))
    yield rng.shuffle, (np.arange(n), np.uint64(random.integers(0, 2**64, dtype=np.uint64)))


@pytest.mark.slow
def test_kernels_of_orders_and_rare_packers_are_the_same_in_both_tiers() -> None:
    for seed in range(12):
        for kernel, arguments in draw_calls(np.random.default_rng(seed)):
            compare(kernel, *arguments)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_documents_of_every_dtype_are_packed_the_same_in_both_tiers(
    compared: set[str], dtype: str
) -> None:
    for seed in range(3):
        random = np.random.default_rng(seed)
        high = min(np.iinfo(dtype).max, 2**31 - 1)
        documents = [
            random.integers(0, high, size, dtype=dtype) for size in random.integers(1, 60, 40)
        ]
        rules: dict[str, Any] = {"seed": seed, "provenance": True, "lanes": 2}
        for packer in (BestFitDecreasing(seq_len=32), packing.Concat(seq_len=32)):
            for _ in PackedLoader(PackedDataset(sources.Items(documents), packer=packer, **rules)):
                pass
    assert len(compared) > 8


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_run_is_the_same_in_both_tiers(
    compared: set[str], tmp_path: Path, kind: str
) -> None:
    assert hashed(PackedLoader(KINDS[kind](Corpus(tmp_path)))) == GOLDEN[kind]
    assert compared


@pytest.mark.slow
def test_every_kernel_that_python_calls_is_compared(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compared = {kernel for kernel, _ in draw_calls(np.random.default_rng(0))}

    def call(kernel: Any, *arguments: Any) -> Any:
        compared.add(kernel)
        return kernel.run(*arguments)

    monkeypatch.setattr(_jit._Kernel, "__call__", call)
    corpus = Corpus(tmp_path)
    for kind in KINDS.values():
        hashed(PackedLoader(kind(corpus)))
    package = Path(_jit.__file__).parent
    files = [file for file in package.rglob("*.py") if "_jit import" in file.read_text()]
    names = [".".join(file.relative_to(package.parent).with_suffix("").parts) for file in files]
    modules = [vars(importlib.import_module(name)) for name in names]
    kernels = {v for module in modules for v in module.values() if isinstance(v, _jit._Kernel)}
    inner = {
        called
        for kernel in kernels
        for name in kernel.py_func.__code__.co_names
        if isinstance(called := kernel.py_func.__globals__.get(name), _jit._Kernel)
    }
    assert not [kernel.py_func.__qualname__ for kernel in kernels - compared - inner]
