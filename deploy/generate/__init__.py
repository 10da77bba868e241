"""Makes alert rules and dashboards: `python -m deploy.generate`.  Never edit those by hand."""
