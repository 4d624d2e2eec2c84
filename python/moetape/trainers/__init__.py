"""Trainer adapters. Importing this package imports no trainer and no torch; naming one loads it."""

from moetape._lazy import loader

__all__ = ["agreement", "exchange", "megatron", "meter", "miles", "policy", "slime", "transformers", "verl"]

__getattr__ = loader(__name__, __all__)
