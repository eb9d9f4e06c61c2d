from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from streampack import PackedDataset, PackedLoader, Topology, sources
from streampack.documents.blocks import ORIGIN, Documents
from streampack.errors import ConfigError, StateError
from streampack.hooks.stages import Hook, apply_filter, apply_map, document_seeds
from streampack.packing.rng import derive_seed


def block(lengths: list[int], dtype: Any = np.uint16) -> Documents:
    rng = np.random.default_rng(0)
    return Documents.from_arrays([rng.integers(1, 99, n).astype(dtype) for n in lengths])


def origins(n: int) -> NDArray[np.void]:
    origin = np.zeros(n, dtype=ORIGIN)
    origin["source"] = np.arange(n) % 3 - 1
    origin["shard"] = np.arange(n) % 7 - 1
    origin["index"] = np.arange(n) * 1_000_003
    return origin


def run_map(function: Callable[..., Any], documents: Documents, vocab: int | None = 100) -> Any:
    seeds = document_seeds(0, 0, documents.origin)
    return apply_map(Hook("m", function), documents, seeds, vocab)


@given(st.integers(0, 2**64 - 1), st.integers(0, 5), st.lists(st.integers(0, 40), max_size=4))
def test_seeds_do_not_depend_on_how_documents_are_grouped(
    seed: int, epoch: int, cuts: list[int]
) -> None:
    origin = origins(40)
    whole = document_seeds(seed, epoch, origin)
    pieces = np.split(origin, sorted(cuts))
    parts = [document_seeds(seed, epoch, piece) for piece in pieces]
    assert whole.dtype == np.uint64
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_every_part_of_an_origin_and_the_epoch_change_the_seed() -> None:
    origin = np.zeros(1, dtype=ORIGIN)
    seen = {int(document_seeds(1, 0, origin)[0]), int(document_seeds(1, 1, origin)[0])}
    seen.add(int(document_seeds(2, 0, origin)[0]))
    for field in ORIGIN.names or ():
        other = origin.copy()
        other[field] = 1
        seen.add(int(document_seeds(1, 0, other)[0]))
    assert len(seen) == 6
    assert len(np.unique(document_seeds(1, 0, origins(1000)))) == 1000


def test_seeds_never_change_between_releases() -> None:
    seeds = document_seeds(7, 2, origins(3))
    base = derive_seed(7, 2)
    mask = (1 << 64) - 1
    for seed, (source, shard, index) in zip(seeds.tolist(), origins(3).tolist(), strict=True):
        place = ((source << 32) & mask) | (shard & 0xFFFFFFFF)
        inner = derive_seed(base, place)
        assert seed == derive_seed(base, inner ^ index)


def test_a_map_may_change_tokens_and_lengths() -> None:
    documents = block([3, 0, 5])

    def halve(given: Documents, seeds: NDArray[np.uint64]) -> Documents:
        assert seeds.shape == (3,)
        arrays = [given.document(i)[: (len(given.document(i)) + 1) // 2] for i in range(len(given))]
        return Documents.from_arrays(arrays, given.origin)

    result = run_map(halve, documents)
    assert result.lengths.tolist() == [2, 0, 3]
    np.testing.assert_array_equal(result.document(0), documents.document(0)[:2])


def test_a_filter_keeps_the_documents_of_its_mask() -> None:
    documents = block([3, 0, 5, 1])
    seeds = document_seeds(0, 0, documents.origin)
    long = Hook("long", lambda given, _: given.lengths >= 3)
    kept = apply_filter(long, documents, seeds)
    assert kept.lengths.tolist() == [3, 5]
    assert kept.origin["index"].tolist() == [0, 2]
    everything = Hook("all", lambda given, _: given.lengths >= 0)
    assert apply_filter(everything, documents, seeds) is documents


def lines(folder: Path) -> str:
    path = folder / "a.jsonl"
    path.write_text("".join(f'{{"tokens": {list(range(1, n + 1))}}}\n' for n in range(1, 60)))
    return str(path)


def loads(folder: Path, **options: Any) -> PackedLoader:
    source = sources.JSONL(lines(folder), tokens="tokens")
    return PackedLoader(
        PackedDataset(source, seq_len=64, topology=Topology(), lanes=2, shuffle=False, **options)
    )


def even(documents: Documents, seeds: NDArray[np.uint64]) -> Any:
    return documents.lengths % 2 == 0


def odd(documents: Documents, seeds: NDArray[np.uint64]) -> Any:
    return documents.lengths % 2 == 1


def mirrored(documents: Documents, seeds: NDArray[np.uint64]) -> Any:
    return replace(documents, tokens=100 - documents.tokens)


def test_plain_functions_filter_and_map_and_a_state_knows_them_by_module_and_name(
    tmp_path: Path,
) -> None:
    loader = loads(tmp_path, filter=even, map=mirrored)
    batches = iter(loader)
    first, state = next(batches), loader.state_dict()
    kept = np.concatenate([first.input_ids.numpy(), *(b.input_ids.numpy() for b in batches)])
    assert (kept == 99).sum() == 29  # the first tokens of documents of 2, 4, ... and 58 tokens
    assert np.count_nonzero(kept) == sum(range(2, 60, 2))
    named = Hook(f"{__name__}.even", even), Hook(f"{__name__}.mirrored", mirrored)
    loads(tmp_path, filter=named[0], map=named[1]).load_state_dict(state)
    for others in ({"filter": odd, "map": mirrored}, {"filter": even}):
        with pytest.raises(StateError):
            loads(tmp_path, **others).load_state_dict(state)


class _Callable:
    def __call__(self, documents: Documents, seeds: NDArray[np.uint64]) -> Any:
        return documents


@pytest.mark.parametrize("setting", ["filter", "map"])
@pytest.mark.parametrize(
    "nameless", [lambda documents, seeds: documents, partial(odd), _Callable(), "even"]
)
def test_a_hook_without_a_name_is_refused_and_hook_names_it(
    tmp_path: Path, setting: str, nameless: Any
) -> None:
    with pytest.raises(ConfigError) as caught:
        loads(tmp_path, **{setting: nameless})
    assert caught.value.setting == setting
    assert f'{setting}=Hook("a-name", function)' in caught.value.remedy
    hook = Hook("a-name", nameless if callable(nameless) else odd)
    loads(tmp_path, **{setting: hook})


def fails_at_forty(documents: Documents, seeds: NDArray[np.uint64]) -> Any:
    if (documents.lengths == 40).any():
        raise KeyError("forty")
    return documents


@pytest.mark.parametrize("kind", ["map", "filter"])
def test_a_hook_that_raises_is_named_with_its_document(tmp_path: Path, kind: str) -> None:
    def keeps(documents: Documents, seeds: NDArray[np.uint64]) -> Any:
        return np.ones(len(fails_at_forty(documents, seeds)), dtype=np.bool_)

    hook = Hook("unlucky", fails_at_forty if kind == "map" else keeps)
    content = Path(lines(tmp_path)).read_bytes()
    byte = len(b"".join(content.splitlines(keepends=True)[:39]))
    pattern = rf'{kind} "unlucky" raised KeyError: .forty. \(at the line at byte {byte} of .*a\.js'
    with pytest.raises(ConfigError, match=pattern) as raised:
        list(loads(tmp_path, **{kind: hook}))  # type: ignore[arg-type]
    assert isinstance(raised.value.__cause__, KeyError)
    # The remedy: a filter leaves the document out before the map.
    without = Hook("without", lambda documents, _: documents.lengths != 40)
    if kind == "map":
        assert list(loads(tmp_path, filter=without, map=hook))


def test_a_hook_that_returns_something_else_is_named_with_its_block(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='"m"') as caught:
        list(loads(tmp_path, map=Hook("m", lambda documents, _: None)))
    assert str(tmp_path) in str(caught.value.document)


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("epochs", [1, None])
def test_hooks_that_drop_every_document_are_an_error_with_their_names(
    tmp_path: Path, num_workers: int, epochs: int | None
) -> None:
    nothing = Hook("nothing", lambda documents, _: documents.lengths > 1000)
    source = sources.JSONL(lines(tmp_path), tokens="tokens")
    dataset = PackedDataset(
        source, seq_len=64, topology=Topology(), lanes=2, epochs=epochs, filter=nothing
    )
    context = "fork" if num_workers else None
    with pytest.raises(ConfigError, match="nothing"):
        list(PackedLoader(dataset, num_workers=num_workers, multiprocessing_context=context))
