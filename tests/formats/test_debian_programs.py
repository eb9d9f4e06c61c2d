"""Shards as programs of Debian write them: many gzip members, bzip2 streams and zstd frames."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from streampack import sources
from tests.support.source_contract import read_all

pytestmark = pytest.mark.debian
COMPRESSORS = {
    "pigz": ("gz", ["pigz", "--stdout", "--independent"]),
    "bgzip": ("gz", ["bgzip", "--stdout"]),
    "pbzip2": ("bz2", ["pbzip2", "--stdout", "-b1"]),
    "zstd": ("zst", ["zstd", "--stdout", "--long=27"]),
    "pzstd": ("zst", ["pzstd", "--stdout", "--processes", "4"]),
}


def compressed(path: Path, program: str) -> str:
    """Compress a file with a program; return the compressed file, which lies beside it."""
    ending, command = COMPRESSORS[program]
    out = path.with_name(f"{path.name}.{ending}")
    with out.open("wb") as file:
        subprocess.run([*command, str(path)], stdout=file, check=True)
    assert out.stat().st_size < path.stat().st_size
    return str(out)


@pytest.mark.parametrize("program", COMPRESSORS)
def test_every_line_that_a_compressor_wrote_in_parts_is_read(program: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    words = ["rows", "of", "many", "lengths", "ä", "\u2028", "ok"]
    texts = [" ".join(rng.choice(words, n)) for n in rng.integers(1, 400, 5000)]
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    assert path.stat().st_size > 4 << 20  # more than one part of each program's
    source = sources.JSONL(compressed(path, program))
    assert read_all(source) == texts


@pytest.mark.parametrize("program", [None, *COMPRESSORS])
@pytest.mark.parametrize("format_name", ["gnu", "oldgnu", "pax", "ustar", "v7"])
def test_every_file_in_an_archive_of_gnu_tar_is_a_document(
    format_name: str, program: str | None, tmp_path: Path
) -> None:
    rng = np.random.default_rng(1)
    documents = [rng.integers(0, 500, n).astype(np.uint16) for n in rng.integers(1, 3000, 200)]
    # Above 100 characters a name needs a header more, or two fields; v7 has neither.
    part = "x" * (10 if format_name == "v7" else 60)
    folder = tmp_path / "long" / part / part
    folder.mkdir(parents=True)
    for number, tokens in enumerate(documents):
        np.save(folder / f"{number:06d}.npy", tokens)
    path = tmp_path / "shard.tar"
    command = ["tar", "--create", f"--format={format_name}", "--sort=name", f"--file={path}"]
    subprocess.run([*command, f"--directory={tmp_path}", "long"], check=True)
    shard = str(path) if program is None else compressed(path, program)
    source = sources.WebDataset(shard, tokens="npy")
    assert read_all(source) == [tuple(tokens.tolist()) for tokens in documents]
