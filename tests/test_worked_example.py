"""The example of eight documents in docs/design.md."""

from __future__ import annotations

import re
from pathlib import Path

from streampack import PackedDataset, PackedLoader
from streampack.documents import Documents
from streampack.lane.fill import Fill
from streampack.lane.round import Round
from streampack.sources.error_policy import ErrorPolicy

PAGE = Path(__file__).parent.parent / "docs" / "design.md"


def dataset_of_page() -> PackedDataset:
    (snippet,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    names = {"PackedDataset": PackedDataset}
    exec(compile(snippet, "design.md", "exec"), names)
    dataset = names["dataset"]
    assert isinstance(dataset, PackedDataset)
    return dataset


def test_the_batches_of_eight_documents_match_the_page() -> None:
    batches = [*dataset_of_page()]
    assert [batch.input_ids.tolist() for batch in batches] == [
        [[40, 41, 42, 43, 44, 45, 30, 31], [20, 21, 22, 23, 24, 10, 11, 12]],
        [[70, 71, 72, 73, 74, 75, 76, 77], [60, 61, 62, 63, 78, 79, 80, 81]],
        [[50, 0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0, 0]],
    ]
    first = batches[0]
    assert first.cu_seqlens.tolist() == [0, 6, 8, 13, 16]
    assert first.position_ids[0].tolist() == [0, 1, 2, 3, 4, 5, 0, 1]
    assert first.labels[0].tolist() == [-100, 41, 42, 43, 44, 45, -100, 31]


def test_the_source_yields_the_block_of_the_page() -> None:
    source = dataset_of_page()._config.source
    (reader,) = source.lanes(1, seed=0, epoch=0, shuffle=False)
    ((block, _),) = reader.read(None, ErrorPolicy("raise"))
    assert isinstance(block, Documents)
    assert (block.tokens.shape, block.tokens.dtype) == ((33,), "uint32")
    assert block.offsets.tolist() == [0, 3, 8, 10, 16, 17, 21, 31, 33]


def test_windows_and_plans_of_both_rounds_match_the_page() -> None:
    fill = Fill(dataset_of_page()._config, 0)
    rounds = []
    for step in (0, 1):
        starved = fill.read(step)
        entries = fill.window.entries
        made = Round(fill, step, starved)
        plan = made.planned.plan
        rounds.append(
            {
                "target": fill.window.target_tokens,
                "documents": entries.serial.tolist(),
                "held": entries.held.tolist(),
                "row_offsets": plan.row_offsets.tolist(),
                "document": entries.serial[plan.document].tolist(),
                "final": made.final,
                "boundaries": [rows.boundaries.tolist() for rows in made.batches],
            }
        )
        fill.window.advance(made.planned, starved=starved)
    assert rounds == [
        {
            "target": 16,
            "documents": [0, 1, 2, 3],
            "held": [3, 5, 2, 6],
            "row_offsets": [0, 2, 4],
            "document": [3, 2, 1, 0],
            "final": False,
            "boundaries": [[0, 6, 8, 13, 16]],
        },
        {
            "target": 32,
            "documents": [4, 5, 6, 7],
            "held": [1, 4, 10, 2],
            "row_offsets": [0, 1, 4, 5],
            "document": [6, 5, 6, 7, 4],
            "final": True,
            "boundaries": [[0, 8, 12, 14, 16], [0, 1, 8, 16]],
        },
    ]


def test_the_state_after_the_first_batch_matches_the_page() -> None:
    loader = PackedLoader(dataset_of_page())
    next(iter(loader))
    lane = loader.state_dict()["lanes"]["0"]
    assert lane["cursor"]["at"] is None
    assert (lane["documents"], lane["emitted"]) == (4, 1)
    assert lane["digest"]
