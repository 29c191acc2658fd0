"""Measuring a model's speed and memory, alone and beside other engines."""
