"""What all Python tests share."""

from __future__ import annotations

import importlib.util

if importlib.util.find_spec("torch") is not None:
    import torch

    # The models here are tiny: a second thread only waits, and for long where cores are few or busy.
    torch.set_num_threads(1)
