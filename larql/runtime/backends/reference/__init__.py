"""The oracle: plain NumPy in float64, one file for each operation."""
