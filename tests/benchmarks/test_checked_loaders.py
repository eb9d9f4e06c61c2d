"""The loaders of other libraries have the faults that the page of records lists."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

import pytest

from benchmarks import checked_loaders

PAGE = (Path(__file__).parents[2] / "docs" / "benchmarks" / "records.md").read_text()


def check(name: str, row: str) -> None:
    """The kinds that are found are in the row of the page's table that begins with a name."""
    pytest.importorskip(checked_loaders.LOADERS[name][0].replace("-", "."))
    (line,) = (line for line in PAGE.splitlines() if line.startswith(f"| {row} |"))
    listed = set(re.findall(r"`([a-z-]+)`", line.split("|")[2]))
    assert set(checked_loaders.report_of(name).kinds) == listed


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("DataCollatorWithFlattening", "transformers, `DataCollatorWithFlattening`"),
        (
            "DataCollatorForLanguageModeling, pad = eos",
            "transformers, `DataCollatorForLanguageModeling`, pad = eos",
        ),
        ("group_texts of run_clm", "datasets, `group_texts` of `run_clm`"),
    ],
)
def test_a_loader_has_the_faults_of_the_page(name: str, row: str) -> None:
    check(name, row)


def test_a_shuffled_stream_has_the_fault_of_the_page_before_datasets_5() -> None:
    if int(version("datasets").partition(".")[0]) < 5:
        name = "streaming with a shuffle buffer"
        check(name, "datasets, a shuffled stream under `StatefulDataLoader`")
    else:
        assert checked_loaders.report_of("streaming with a shuffle buffer").kinds == ()


@pytest.mark.frameworks
@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("packing bfd, padding_free", "TRL, packing `bfd`, `padding_free`"),
        ("packing bfd, no padding_free", "TRL, packing `bfd` without `padding_free`"),
        ("packing wrapped", "TRL, packing `wrapped`"),
        ("HuggingFaceTextDataset", "torchtitan, `HuggingFaceTextDataset`"),
        ("SFT collate", "litgpt, SFT collate"),
        ("GPTDataset", "Megatron-LM, `GPTDataset`"),
        (
            "GPTDataset with resets and eod_mask_loss",
            "Megatron-LM, `GPTDataset` with resets and `eod_mask_loss`",
        ),
    ],
)
def test_a_loader_of_a_framework_has_the_faults_of_the_page(name: str, row: str) -> None:
    check(name, row)
