"""Is a cheaper model good enough to draft for a dearer one? Scores, ladders, speculation."""
