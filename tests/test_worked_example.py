"""The example of eight documents in docs/design.md."""

from __future__ import annotations

import re
from pathlib import Path

from streampack import PackedDataset

PAGE = Path(__file__).parent.parent / "docs" / "design.md"


def test_the_batches_of_eight_documents_are_those_of_the_page() -> None:
    (snippet,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    names = {"PackedDataset": PackedDataset}
    exec(compile(snippet, "design.md", "exec"), names)
    batches = [*names["dataset"]]  # type: ignore[call-overload]
    assert [batch.input_ids.tolist() for batch in batches] == [
        [[40, 41, 42, 43, 44, 45, 30, 31], [20, 21, 22, 23, 24, 10, 11, 12]],
        [[70, 71, 72, 73, 74, 75, 76, 77], [60, 61, 62, 63, 78, 79, 80, 81]],
        [[50, 0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0, 0]],
    ]
    first = batches[0]
    assert first.cu_seqlens.tolist() == [0, 6, 8, 13, 16]
    assert first.position_ids[0].tolist() == [0, 1, 2, 3, 4, 5, 0, 1]
    assert first.labels[0].tolist() == [-100, 41, 42, 43, 44, 45, -100, 31]
