"""Rules of the stages by themselves: the index's size, where shards begin."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streampack.corpus_order.search import shape_of
from streampack.corpus_order.write import cut_shards


def test_the_rule_gives_the_papers_lists_for_its_corpus() -> None:
    shape = shape_of(235_266_464, 768)
    assert (shape.lists, shape.sample, shape.probes) == (32_768, 1_572_864, 64)
    small = shape_of(200_000, 1022)
    assert (small.lists, small.dimension, small.code_bytes) == (1024, 1024, 256)
    tiny = shape_of(3, 5)
    assert tiny.probes <= tiny.lists <= 3


@given(
    st.lists(st.tuples(st.integers(1, 60), st.booleans()), min_size=1, max_size=80),
    st.integers(1, 200),
)
def test_shards_fit_and_begin_where_runs_do_unless_a_run_is_larger(
    documents: list[tuple[int, bool]], limit: int
) -> None:
    sizes = np.array([size for size, _ in documents])
    begins = np.array([True, *[run for _, run in documents[1:]]])
    runs = np.append(np.flatnonzero(begins), len(sizes))
    starts = cut_shards(sizes, runs, limit)
    ends = [*starts[1:].tolist(), len(sizes)]
    assert starts[0] == 0
    assert (np.diff(starts) > 0).all()
    for start, end in zip(starts.tolist(), ends, strict=True):
        assert sizes[start:end].sum() <= limit or end == start + 1
        if not begins[start]:  # it goes on with a run that does not fit into a shard
            run = runs[np.searchsorted(runs, start) - 1]
            stop = runs[np.searchsorted(runs, start)]
            assert sizes[run:stop].sum() > limit
