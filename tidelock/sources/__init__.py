"""Sources: producers beside HTTP. Files, an older system's table, views of other systems.

Rows come in, with a position that outlives the process; events go out to the sequencer, in the rows' order, each once
however often a source is stopped and run again. It must never know what is made of the events, nor how one is chosen
on a command line.
"""
