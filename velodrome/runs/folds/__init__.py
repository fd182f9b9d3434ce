"""A configuration trained several times, on other parts of the data each time.

Read `fold`, what every such training shares, before `cross_validation`, which leaves out one block of time after the
other. Walking forward, whose tests follow one another as in use, is the module `walk_forward` beside this folder.
"""
