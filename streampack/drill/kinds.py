"""Faults of resuming, each with its consequence and its remedy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Kind(NamedTuple):
    """A kind of fault.

    Attributes:
        consequence: effect on training, in one line.
        remedy: change of the script, in one line.
        place: call to change, "write" of a checkpoint or "read"; empty if it is another one.
    """

    consequence: str
    remedy: str
    place: str = ""


#: Kinds of faults by name.
KINDS = {
    "cannot-continue": Kind(
        "The restarted command does not train: no checkpoint can be loaded.",
        "Write a checkpoint under another name and rename it when all of its files are whole; keep "
        "the last one until then, and load the last whole one.",
        "write",
    ),
    "starts-again": Kind(
        "The restarted command begins with fresh weights, and all steps are lost.",
        "Load the newest checkpoint at the start, or pass --resume with the arguments that do so.",
        "read",
    ),
    "torn-checkpoint-taken": Kind(
        "The run continues from a checkpoint that is not whole, with a part of its state.",
        "Rename a checkpoint into its place when all of its files are whole, and skip folders "
        "without the last file.",
        "read",
    ),
    "weights-differ": Kind(
        "The restarted run has weights that it never had before.",
        "Save the weights between two steps, and in the precision in which they are trained.",
        "write",
    ),
    "loader-forgotten": Kind(
        "The restarted run trains again on the first batches, and may never see the last ones.",
        "Save the loader's position with the checkpoint, and load it before the first batch.",
        "write",
    ),
    "workers-state-lost": Kind(
        "The loader's workers begin again: their copies of the dataset know no position.",
        "Save the state that workers send with their batches: PackedLoader or torchdata's "
        "StatefulDataLoader, whose state_dict has it.",
        "write",
    ),
    "batches-skipped": Kind(
        "Batches are never trained on: the saved position is ahead of the training loop.",
        "Save the position behind the batch trained on last, not behind the last one fetched; "
        "PackedLoader: state_dict(after=batch), or state_dict(before=batch) for a batch in hand.",
        "write",
    ),
    "batches-repeated": Kind(
        "Batches are trained on twice: the saved position is behind the training loop.",
        "Save the loader's position in the same step as the weights.",
        "write",
    ),
    "order-differs": Kind(
        "After a restart the same data come in another order, so some come twice and some never.",
        "Save the epoch and the seed of the shuffle: call sampler.set_epoch(epoch) on a restart, "
        "before the loader is iterated.",
        "read",
    ),
    "batches-differ": Kind(
        "After a restart the batches are others than in a run without a stop.",
        "Save all that the loader draws from: its position, its seed and its generators.",
        "write",
    ),
    "rank-state-lost": Kind(
        "Some ranks have other batches after a restart, though others have the right ones.",
        "Save and load the loader's state of every rank, in a file for each.",
        "write",
    ),
    "rows-repeated": Kind(
        "On another number of ranks, data of earlier steps are trained on again.",
        "Divide the data that is left among the new ranks; a position of each old rank is not "
        "enough.",
        "read",
    ),
    "rows-skipped": Kind(
        "On another number of ranks, data are never trained on.",
        "Divide the data that is left among the new ranks; a position of each old rank is not "
        "enough.",
        "read",
    ),
    "optimizer-forgotten": Kind(
        "The optimizer begins with other moments than it had, so the loss jumps.",
        "Save and load optimizer.state_dict().",
        "write",
    ),
    "scheduler-forgotten": Kind(
        "The learning rate after a restart is not the one of that step.",
        "Save and load scheduler.state_dict(), or the step that the rate is computed from.",
        "write",
    ),
    "scaler-forgotten": Kind(
        "The gradient scaler begins with another scale, and may skip the first steps.",
        "Save and load scaler.state_dict().",
        "write",
    ),
    "random-states-forgotten": Kind(
        "Random numbers after a restart are others, so the run cannot be repeated.",
        "Save and load the states of the generators that are named, on every rank.",
        "write",
    ),
    "losses-differ": Kind(
        "Losses after a restart are others, though weights and batches are the same.",
        "Save the rest of the state, such as buffers, averages and counters of the loss.",
        "write",
    ),
    "ends-elsewhere": Kind(
        "The restarted run ends at another step than a run without a stop.",
        "Count steps from the checkpoint on, not from the start of the process.",
        "read",
    ),
    "data-left-out": Kind(
        "Batches are others after requests for data failed: the loader went on without the data.",
        "Repeat requests that fail, after the seconds of Retry-After where a store names them, and "
        "stop with an error in the end. Handlers that skip a shard, such as warn_and_continue, "
        "hide it.",
    ),
    "fails-later": Kind(
        "The restarted command trains and then ends with an error.",
        "Read its last lines below, and the whole output in the log.",
    ),
    "hangs": Kind(
        "Processes that live wait for one that does not, until a limit of many minutes.",
        "Start ranks by torchrun, which ends the others, and set timeouts of process groups and "
        "loaders.",
    ),
    "not-reproducible": Kind(
        "Two runs without a stop have other batches, so a restart cannot be judged.",
        "Seed the loader's order, and its workers, by a fixed number.",
    ),
}


@dataclass(frozen=True)
class Fault:
    """A fault of a drill.

    Attributes:
        kind: name of the kind, as in `KINDS`.
        detail: figures of the drill.
    """

    kind: str
    detail: str = ""
