"""Sources: producers other than HTTP: files, an older system's table, views of other systems.

Rows come in, with a position that outlives the process; events go out to the sequencer, in the rows' order, each once
however often a source is stopped and run again. It must never know what is derived from the events, nor how a source is
chosen on a command line.
"""
