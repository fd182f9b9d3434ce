"""Rows of all runs, and where metrics go."""
