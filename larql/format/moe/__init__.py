"""The manifest of routed experts: which programme each bank runs, and what routes to it."""
