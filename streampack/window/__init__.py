"""The look-ahead window: documents held, a plan over them, rows chosen, batches gathered.

Pure: numpy and compiled kernels, no I/O and no torch.
"""

from streampack.window.config import WindowConfig
from streampack.window.planned import PlannedWindow
from streampack.window.window import Window

__all__ = ["PlannedWindow", "Window", "WindowConfig"]
