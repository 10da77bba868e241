"""A simulated SGLang server: virtual-time engine, cost profiles, replay, the embedded server.

Step times come from a cost profile that was measured on a GPU; the schedule, probe and telemetry
code is the hook's own.  Nothing here talks to a real engine.
"""
