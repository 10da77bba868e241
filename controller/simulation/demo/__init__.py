"""`specgov demo`: the sidecar governing a simulated engine under a load that rises and falls."""
