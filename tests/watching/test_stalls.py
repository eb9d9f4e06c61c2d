"""Waits are exposed if the device has no work either: needs a CUDA device, `pytest -m gpu`."""

from __future__ import annotations

import time

import pytest
import torch

from streampack.watching.stalls import Stalls


def test_without_a_device_every_wait_is_exposed() -> None:
    stalls = Stalls()
    stalls.begin()
    stalls.end(0.25)
    assert stalls.exposed_s == 0.25


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize(("products", "is_exposed"), [(60, False), (5, True)])
def test_a_wait_is_exposed_unless_the_device_still_computes(
    products: int, is_exposed: bool
) -> None:
    values = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    torch.mm(values, values)  # loads the library
    torch.cuda.synchronize()
    stalls, wait_s = Stalls(), 0.0
    for _ in range(10):
        for _ in range(products):
            torch.mm(values, values)
        stalls.begin()
        began = time.perf_counter()
        time.sleep(0.02)
        stalls.end(time.perf_counter() - began)
        wait_s += time.perf_counter() - began
    torch.cuda.synchronize()
    stalls.collect()
    assert 0 <= stalls.exposed_s <= wait_s
    assert (stalls.exposed_s > 0.2 * wait_s) == is_exposed
