"""The arguments of packers before `limits` and `choice`, and the states of their runs.

`python -m tests.limits.test_earlier_arguments FILE` wrote `states_of_before.json` with the
streampack of then: for each run the state after some batches, and a hash of the batches that
followed, also with another packer. The hash of "buckets" with another packer is younger: such a
run lost the tokens of some documents then.
"""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streampack import (
    BestFitDecreasing,
    Buckets,
    Concat,
    PackedDataset,
    PackedLoader,
    TokenRules,
    Topology,
    WindowConfig,
    packing,
    sources,
)
from streampack.errors import ConfigError
from streampack.packing import Packer
from tests.run.test_golden_batches import hashed

FILE = Path(__file__).parent / "states_of_before.json"
GIVEN = 7  # batches before the state

#: The packers of the runs, written in the earlier form.
EARLIER: dict[str, tuple[Any, dict[str, Any]]] = {
    "capacity": (BestFitDecreasing, {"overflow": "drop", "capacity": {"frames": 30}}),
    "keys": (packing.FirstFitDecreasing, {"separate_by": "lora"}),
    "batches": (
        BestFitDecreasing,
        {
            "overflow": "drop",
            "capacity": {"frames": 30},
            "separate_by": "lora",
            "separate_batches": True,
        },
    ),
    "attention": (BestFitDecreasing, {"balance": "attention"}),
    "loss": (
        BestFitDecreasing,
        {"overflow": "truncate", "separate_by": "lora", "balance": "loss"},
    ),
    "concat": (Concat, {"balance": "attention"}),
    "buckets": (Buckets, {"seq_lens": (32, 64), "balance": "attention"}),
}


def earlier(kind: str) -> Packer:
    make, settings = EARLIER[kind]
    rows = {} if "seq_lens" in settings else {"seq_len": 64}
    packer: Packer = make(**rows, **settings)
    return packer


def dataset(packer: Packer) -> PackedDataset:
    rng = np.random.default_rng(7)
    records = []
    for _ in range(240):
        n = int(rng.integers(1, 40))
        records.append(
            {
                "tokens": rng.integers(1, 200, n).tolist(),
                "mask": (rng.random(n) < rng.random()).tolist(),
                "frames": int(rng.integers(0, 12)),
                "lora": int(rng.integers(0, 4)),
            }
        )
    return PackedDataset(
        sources.Items(records, tokens="tokens", loss_mask="mask"),
        packer=packer,
        batch_size=2 if len(packer.seq_lens) == 1 else None,
        lanes=2,
        topology=Topology(),
        window=WindowConfig(rows=8),
        token_rules=TokenRules(pad_id=0, eos_id=999),
        document_fields={"frames": "int32", "lora": "int32"},
    )


def following(packer: Packer, state: dict[str, Any], *allow: str) -> str:
    loader = PackedLoader(dataset(packer))
    loader.load_state_dict(state, allow=allow)
    return hashed(loader)


def both(kind: str) -> tuple[Packer, Packer]:
    """Return the packer in the earlier form, and the packer that the warning writes."""
    with pytest.warns(FutureWarning) as caught:
        packer = earlier(kind)
    written = str(caught[0].message).partition(" is written ")[2].partition(" from the next")[0]
    names = {name: getattr(packing, name) for name in dir(packing)}
    make, settings = EARLIER[kind]
    rows = {"seq_lens": (32, 64)} if make is Buckets else {"seq_len": 64}
    rows |= {"overflow": settings["overflow"]} if "overflow" in settings else {}
    new: Packer = eval(written.replace("(", f"(**{rows!r}, ", 1), names)
    return packer, new


@pytest.mark.parametrize("kind", EARLIER)
def test_a_state_of_the_earlier_arguments_continues_in_both_forms(kind: str) -> None:
    expected = json.loads(FILE.read_text())[kind]
    old, new = both(kind)
    assert old == new
    assert following(new, expected["state"]) == expected["following"]


@pytest.mark.parametrize("kind", EARLIER)
def test_a_state_of_the_earlier_arguments_continues_with_another_packer(kind: str) -> None:
    expected = json.loads(FILE.read_text())[kind]
    other = BestFitDecreasing(seq_len=32)
    assert following(other, expected["state"], "packer") == expected["changed"]


@pytest.mark.parametrize(
    "settings",
    [
        {"capacity": {"patches": 0}},
        {"separate_by": 7},
        {"separate_batches": True},
        {"separate_batches": 1, "separate_by": "lora"},
        {"balance": "tokens"},
        {"capacity": {"frames": 9}, "overflow": "split"},
    ],
)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_wrong_values_of_the_earlier_arguments_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        BestFitDecreasing(**{"seq_len": 64, "overflow": "drop", **settings})


def test_an_argument_that_a_packer_never_had_is_refused() -> None:
    with pytest.raises(TypeError, match="no argument 'capacity'"):
        Concat(seq_len=64, capacity={"frames": 9})  # type: ignore[call-arg]


def test_a_packer_of_ones_own_keeps_an_argument_with_an_earlier_name() -> None:
    class Own(BestFitDecreasing):
        def __init__(self, capacity: int) -> None:
            super().__init__(seq_len=capacity)

    assert Own(capacity=64).seq_lens == (64,)


def main(file: Path) -> None:
    """Write the states, and hashes of what follows them."""
    found = {}
    for kind in EARLIER:
        loader = PackedLoader(dataset(earlier(kind)))
        list(islice(loader, GIVEN))
        state = loader.state_dict()
        other = BestFitDecreasing(seq_len=32)
        found[kind] = {
            "state": state,
            "following": following(earlier(kind), state),
            "changed": following(other, state, "packer"),
        }
    file.write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
