"""Kernels: arrays in, arrays out, the same bits however the work is cut.

Importing this package imports nothing heavy. `larql.kernels.setup.configure` must run before any
other module of it, because those import numba, which reads its environment once.
"""
