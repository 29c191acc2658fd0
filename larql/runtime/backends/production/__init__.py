"""The fast executor: Numba kernels over mapped weights, one file for each operation."""
