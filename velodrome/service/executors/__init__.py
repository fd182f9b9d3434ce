"""Executors on other machines. Read `parcels` (data and code on their way), `there` (what carries out a task on
one of them), `ray` and `slurm` (how tasks get there), and `named` (which executor a name means).
"""
