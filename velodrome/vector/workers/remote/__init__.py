"""Workers on other machines, as actors of a Ray cluster. Read `actor` (the worker there), `handle` (what stands for it
here) and `batch` (the backend).
"""
