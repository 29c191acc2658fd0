"""Pictures of run records: a page with plots that move, and still ones for papers."""
