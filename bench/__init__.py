"""Benchmarks: our path against its limit and a peer, measured side by side in one run: `python -m bench NAME`."""
