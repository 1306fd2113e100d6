"""Pages of reference that are made from what they describe: the commands' help, the API's document.

In come the command tree and the routes as they are when `make docs` runs; out go docs/commands.md and docs/api.md,
which a test compares with the program. Nothing here is part of a running server, and nothing may describe what it could
read from the program instead.
"""
