"""Live: filtered views of the tables' changes, for as long as somebody looks."""
