"""The demo: its definitions, its producers and its receiver.

It is a client of a server that `tidelock demo` runs: events go in by HTTP, webhooks come out to a receiver of its own.
It must never know a database, and nothing imports it.
"""
