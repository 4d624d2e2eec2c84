"""Inference engines: one sub-package per engine, imported by its own name only."""
