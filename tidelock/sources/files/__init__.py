"""Files of events: read row by row for `import`, written page by page for `export`."""
