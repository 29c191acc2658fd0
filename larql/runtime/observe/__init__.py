"""Seeing inside a run: statistics, readouts, interventions, and the record of them."""
