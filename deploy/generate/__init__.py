"""Makes the alert rules and the Grafana dashboards: `python -m deploy.generate`.  Never edit those by hand."""
