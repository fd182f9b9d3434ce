"""What comes from outside is judged here before the rest believes it: files, folders and names of code.

Read `files` (read within bounds, or refused), `folders` (who besides its owner can write there), `kernels` (compiled
functions, kept only where nobody else can write), `code` (what a run from elsewhere names and may not import before a
person says so), `screen` (a terminal on which names are shown and never obeyed, and tables that fit it), `extras` (how
to install what is missing), `cluster` (Ray, and what is wrong with it in sentences) and `sent` (files that came with a
task from another machine).
docs/security.md is about all of it.
"""
