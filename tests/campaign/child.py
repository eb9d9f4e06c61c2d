"""``python -m tests.campaign.child NAME SEED FIRST FOLDER``: cases of an attack, until it is ended.

Every case is announced before it begins, so that whoever reads knows which one took the process
with it or does not end. A case depends on the seed, the attack and its own number alone.
"""

from __future__ import annotations

import json
import logging
import random
import resource
import sys
import warnings
from pathlib import Path
from typing import Any

from tests.campaign.attack import outcome_of
from tests.campaign.attacks import ATTACKS, Limits

MEMORY_BYTES = 1 << 30  # that a case may claim


def say(**words: Any) -> None:
    print(json.dumps(words), flush=True)


def limit_memory(num_bytes: int) -> None:
    """No more address space than now and `num_bytes`."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + num_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def main(name: str, seed: str, first: str, folder: str) -> None:
    logging.disable()
    warnings.simplefilter("ignore")
    limits: Limits = ATTACKS[name]
    attack = limits.make(Path(folder))
    if limits.memory:
        limit_memory(MEMORY_BYTES)
    case = int(first)
    while True:
        say(began=case)
        outcome, found = outcome_of(attack, random.Random(f"{seed} {name} {case}"))
        say(ended=case, outcome=outcome, found=found)
        case += 1


if __name__ == "__main__":
    main(*sys.argv[1:])
