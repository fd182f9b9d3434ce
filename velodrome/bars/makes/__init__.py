"""What makers of price files do in ways of their own, in the names of files and above their columns.

Read `headers`, files without a line of column names or with three of them, then `file_names`, what a name says besides
the symbol, and `one_symbol`, which files are one instrument by that.
"""
