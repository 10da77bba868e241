"""The guest: what runs inside SGLang's own processes. Imports the standard library and SGLang only."""

__version__ = "0.1.0"
