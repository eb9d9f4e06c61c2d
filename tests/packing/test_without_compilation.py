"""Under NUMBA_DISABLE_JIT=1, which debuggers need, kernels give the compiled results."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys

from streampack._jit import compiled_at_once

PLANS = """
import json
import numpy as np
from streampack import PackedDataset, PackedLoader, WindowConfig
from streampack.packing import BestFitDecreasing
from streampack.packing.rng import permutation

lengths = np.random.default_rng(1).integers(1, 900, 80)
plan = BestFitDecreasing(seq_len=512).plan(lengths, final=True, seed=3)
for values in (plan.row_offsets, plan.seq_len, plan.document, plan.start, plan.stop):
    print(values.tolist())
print(permutation(50, 2**63).tolist())

documents = [[n] * (n % 23 + 1) for n in range(30)] + [[7] * 400]
dataset = PackedDataset(documents, seq_len=16, batch_size=2, lanes=1, window=WindowConfig(rows=6))
loader = PackedLoader(dataset)
for batch in loader:
    print(batch.input_ids.tolist(), json.dumps(loader.state_dict()))
"""


def test_plans_batches_and_states_are_the_same_without_compilation() -> None:
    with contextlib.redirect_stdout(io.StringIO()) as compiled, compiled_at_once():
        exec(PLANS, {})
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PLANS],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
    )
    assert done.stdout == compiled.getvalue()
