"""Changes: what the fold did to the tables, read in order."""
