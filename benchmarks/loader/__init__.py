"""Measures a loader over the user's own shards, and says in words what limits it.

    python -m benchmarks loader --source PATH [--tokenizer PATH] [--workers N] [--step-ms MS]

Under torchrun every rank measures at the same time; rank 0 prints the sum and the slowest.

Stages are measured one by one, each for `--seconds`:
  1. read: the lanes of this rank, one after the other, as their blocks come from storage;
  2. the same blocks again, prepared: what reading costs without storage, and the tokenizer;
  3. pack: batches made in this process, and the per-token fields of each;
  4. workers: the same by worker processes; copied to the device, if there is one;
  5. the loop: a pause of `--step-ms` per batch, and how long the loop waits beside it.
"""
