"""Checkpoint readers, and the compiler that turns a checkpoint into a container."""
