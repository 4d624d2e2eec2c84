"""Inference engines: naming a sub-package loads it. Importing this package imports no engine and no torch."""

from moetape._lazy import loader

__all__ = ["lightllm", "sglang", "transformers", "vllm"]

__getattr__ = loader(__name__, __all__)
