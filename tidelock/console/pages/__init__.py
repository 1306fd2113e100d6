"""The pages, one a module."""
