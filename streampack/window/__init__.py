"""The look-ahead window: documents that wait, the rows that a packer chooses, batches gathered.

Knows documents, plans and tokens; it does not know sources, states or the classes of packers.
Pure: numpy and compiled kernels, no I/O and no torch.
"""

from streampack.window.config import WindowConfig
from streampack.window.planned import PlannedWindow
from streampack.window.window import Window

__all__ = ["PlannedWindow", "Window", "WindowConfig"]
