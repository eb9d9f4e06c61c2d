"""Reproducible random numbers: splitmix64 and Fisher-Yates.

numpy does not guarantee its random streams across versions, and a packed run must be the same on
any machine and after any upgrade. So all random decisions of the library use this generator.

Source: G. Steele, D. Lea, C. Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel, kernel_of

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def derive_seed(*parts: int) -> int:
    """Hash several integers into one 64-bit seed; a change of any gives an unrelated seed."""
    state = 0
    for part in parts:
        z = (state + _GOLDEN + part) & _MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        state = z ^ (z >> 31)
    return state


def derive_seeds(seed: int, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return `derive_seed(seed, key)` for every key, (N,) uint64."""
    begin = np.uint64((derive_seed(seed) + _GOLDEN) & _MASK)
    with np.errstate(over="ignore"):
        return np.asarray(_mix(keys.astype(np.uint64) + begin))


def permutation(n: int, seed: int) -> NDArray[np.int64]:
    """Return a uniformly random order of range(n), (n,) int64, a pure function of n and seed."""
    order = np.arange(n, dtype=np.int64)
    shuffle(order, np.uint64(seed & _MASK))
    return order


@kernel_of(lambda order, _: 5 * order.size)
def shuffle(order: NDArray[np.int64], seed: np.uint64) -> None:
    """Shuffle in place (Fisher-Yates). The bias of `random % bound` is below bound / 2**64."""
    state = np.uint64(seed)
    for i in range(len(order) - 1, 0, -1):
        state = state + np.uint64(0x9E3779B97F4A7C15)
        j = np.int64(mix(state) % np.uint64(i + 1))
        order[i], order[j] = order[j], order[i]


def _mix(z: Any) -> Any:
    """Apply the last step of splitmix64 to a uint64 or an array of them."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


mix = kernel(_mix)
