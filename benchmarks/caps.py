"""Tokens that caps leave unused: ``python -m benchmarks.caps``.

In 60 shards of 500 documents, 244 tokens long on average, three tenths of the documents have the
value "web": drawn for each document, or for whole shards. Twelve lanes pack them with a cap on
"web". It prints the share of the tokens that the cap allows which are delivered.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.report import print_table
from streampack import PackedDataset, PackedLoader, TokenRules, Topology, sources
from streampack.accounts.lengths import KeptLengths
from streampack.accounts.totals import totals_of

DOCUMENTS = 500
SHARES = (0.25, 0.5, 0.9, 1.1)


def write(folder: Path, shards: int, *, by_shard: bool) -> int:
    """Write the corpus; return the tokens of "web"."""
    rng, tokens = np.random.default_rng(0), 0
    for shard in range(shards):
        lengths = np.clip(np.exp(rng.normal(5.0, 1.0, DOCUMENTS)), 1, 4000).astype(np.int64)
        web = rng.random(DOCUMENTS) < 0.3
        if by_shard:
            web[:] = shard % 10 < 3
        tokens += int(lengths[web].sum())
        offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32))
        ids = pa.array(np.ones(int(lengths.sum()), np.uint16))
        domains = np.where(web, "web", "other")
        table = pa.table({"ids": pa.ListArray.from_arrays(offsets, ids), "domain": domains})
        pq.write_table(table, folder / f"{shard:03}.parquet")
    return tokens


def delivered(folder: Path, cap: int) -> int:
    """Tokens of "web" that a run with a cap delivers."""
    dataset = PackedDataset(
        sources.open(str(folder), tokens="ids"), seq_len=1024, lanes=12, topology=Topology(),
        token_rules=TokenRules(pad_id=0), document_fields={"domain": "text"},
        ledger={"domain": {"web": cap}},
    )  # fmt: skip
    config = dataset._config
    kept = [each for each in config.wrappers if not isinstance(each, KeptLengths)]
    object.__setattr__(config, "wrappers", tuple(kept))  # no files in the cache folder
    loader = PackedLoader(dataset)
    for _ in loader:
        pass
    tokens: int = totals_of(loader.state_dict())["fields"]["domain"]["web"][0]
    return tokens


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=60)
    shards = parser.parse_args().shards
    rows = []
    for name, by_shard in (("values of documents", False), ("values of whole shards", True)):
        with tempfile.TemporaryDirectory() as temporary:
            tokens = write(Path(temporary), shards, by_shard=by_shard)
            caps = [int(share * tokens) for share in SHARES]
            used = [delivered(Path(temporary), cap) / min(cap, tokens) for cap in caps]
            rows.append([name, *(f"{share:.1%}" for share in used)])
    heads = [f"cap {share:.0%} of the tokens" for share in SHARES]
    print_table("", ["corpus", *heads], rows)


if __name__ == "__main__":
    main()
