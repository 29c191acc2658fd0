"""Parity: whether two runs of a model agree, and where they stop to."""
