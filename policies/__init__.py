"""Deciding, and nothing else: no I/O, no clock, no randomness, no logging."""
