"""Parallel-throughput benchmark: load on one or several servers, arms alternated in time, and what it means.

Reading order: `prompts` (what is asked), `client` (one request), `load` (many), `records` and `statistics`
(what came back), `arms`, `engine` and `govern` (what a server is made to do), `target`, `campaign` (windows
interleaved in time), `scenario` and `courses` (other loads), `outcome`, `advice` and `cost_profile` (what it
means), `report` and `plots` (what is shown), `command` (all of it).
"""
