"""Cutting a container down to a part of itself: a container again, which says what is elsewhere."""
