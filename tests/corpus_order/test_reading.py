"""Shards in order are read so that related documents stay together, shuffled or not."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

from streampack import PackedDataset, PackedLoader, TokenRules, sources
from streampack.corpus_order import run_job
from streampack.packing import Concat
from tests.support.ordered_corpora import documents_of, make_job, write_topics


def test_shuffled_by_shards_the_documents_of_each_stay_in_order(tmp_path: Path) -> None:
    source = write_topics(tmp_path / "in")
    summary = run_job(make_job(source, tmp_path / "out"), workers=0)
    assert summary.shards > 8
    shards = {
        tuple(map(tuple, pq.read_table(file)["tokens"].to_pylist()))
        for file in (tmp_path / "out").glob("*.parquet")
    }
    reading = sources.ReadOptions(open_shards=1, shuffle_blocks=False, block_documents=7)
    (lane,) = sources.open(str(tmp_path / "out"), reading=reading).lanes(
        1, seed=1, epoch=0, shuffle=True
    )
    from streampack.sources.error_policy import ErrorPolicy

    found = []
    for block, _ in lane.read(None, ErrorPolicy()):
        found += [tuple(block.document(i).tolist()) for i in range(len(block))]
    assert found != documents_of(tmp_path / "out")
    begins = {shard[0]: shard for shard in shards}
    at = 0
    while at < len(found):
        shard = begins[found[at]]
        assert tuple(found[at : at + len(shard)]) == shard
        at += len(shard)


def test_the_dataset_reads_it_by_the_page_and_resumes(tmp_path: Path) -> None:
    source = write_topics(tmp_path / "in")
    summary = run_job(make_job(source, tmp_path / "out"), workers=0)

    def loader(seed: int) -> PackedLoader:
        reading = sources.ReadOptions(open_shards=1, shuffle_blocks=False)
        return PackedLoader(
            PackedDataset(
                sources.open(str(tmp_path / "out"), reading=reading),
                packer=Concat(seq_len=512),
                token_rules=TokenRules(eos="as-is", eos_id=0),
                attention="row",
                seed=seed,
            )
        )

    batches = list(loader(1))
    assert sum(batch.num_tokens for batch in batches) == summary.units - summary.duplicate_units
    first = loader(1)
    iterator = iter(first)
    next(iterator)
    state = first.state_dict()
    rest = loader(1)
    rest.load_state_dict(state)
    expected = [batch.input_ids.tolist() for batch in batches[1:]]
    assert [batch.input_ids.tolist() for batch in rest] == expected
    described = sources.ReadOptions().describe()
    assert "shuffle_blocks" not in described  # states of runs without it stay as they are
