"""Memory before and after it exists: `layout` plans regions by name, `arena` allocates them once."""
