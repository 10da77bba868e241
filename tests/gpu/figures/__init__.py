"""Figures out of what drive.py left: pure functions of journal records, step logs and client records."""
