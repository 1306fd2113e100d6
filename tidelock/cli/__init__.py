"""The command line: one module for each group of commands, above the composition and every stage.

Words and flags come in; results go to stdout, everything about the work to stderr, and an exit code to the shell.
A command parses, calls and shows: it must never know how what it calls is done, and nothing but the demo imports it.
"""
