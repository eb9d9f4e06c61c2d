"""What a user does first with an installed streampack: `python as_user.py README.md`.

The README's first lines, a loop with two spawned workers, and a resume. It fails where a result is
not the expected one.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from importlib.metadata import version
from itertools import islice
from pathlib import Path

import streampack

assert "torch" not in sys.modules, "import streampack loads torch"


def first_lines(page: str) -> None:
    """Run the README's first snippet and compare what it prints."""
    snippet, printed = (
        re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)[0]
        for language in ("python", "text")
    )
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(compile(snippet, "README.md", "exec"), {})
    assert output.getvalue() == printed, output.getvalue()


def new_loader(num_workers: int) -> streampack.PackedLoader:
    """A loader of a small corpus in several lanes."""
    documents = [[n % 251] * (n % 97 + 1) for n in range(3000)]
    dataset = streampack.PackedDataset(documents, seq_len=128, batch_size=4, lanes=4, seed=1)
    context = "spawn" if num_workers else None
    return streampack.PackedLoader(
        dataset, num_workers=num_workers, multiprocessing_context=context
    )


def main() -> None:
    """See the module."""
    assert streampack.__version__ == version("streampack"), "two versions"
    first_lines(Path(sys.argv[1]).read_text(encoding="utf-8"))
    expected = [batch.input_ids.tolist() for batch in new_loader(0)]
    loader = new_loader(2)
    batches = (batch.input_ids.tolist() for batch in loader)
    assert list(islice(batches, 7)) == expected[:7], "spawned workers give other batches"
    state = json.loads(json.dumps(loader.state_dict()))
    resumed = new_loader(0)
    resumed.load_state_dict(state)
    assert [batch.input_ids.tolist() for batch in resumed] == expected[7:], "a resume differs"
    assert list(batches) == expected[7:], "spawned workers give other batches"
    used = (f"{name} {version(name)}" for name in ("torch", "numpy", "numba", "pyarrow"))
    print(f"Python {sys.version.split()[0]}, {', '.join(used)}: all as expected")


if __name__ == "__main__":
    main()
