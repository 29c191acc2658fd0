"""Searching a model's feed-forward networks as a database of features, without running them."""
