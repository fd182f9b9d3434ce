"""Bars become frozen, contiguous, read-only arrays here: features, timeframes, splits and the proof of no look-ahead."""
