"""The public names of `streampack.hf.router_loss`."""

from streampack.hf.router_loss import RouterLoss

__all__ = ["RouterLoss"]
