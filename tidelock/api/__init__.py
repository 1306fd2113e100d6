"""The HTTP API: its routes, its document, metrics and health.

In come requests that `http/` has let in; out go verdicts, lists, tables and the state of the server, as JSON. A route
parses, calls and formats; it never decides what an event or a number is, and never knows the console or the commands.
"""
