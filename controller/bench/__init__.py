"""Parallel-throughput benchmark: load on one or several servers, arms alternated in time, and what it means.

Reading order: `prompts` (what is asked), `client` (one request), `load` (many), `records` and `statistics`
(what came back), `arms` and `engine` (what a server is made to do), `campaign` (windows interleaved in time),
`advice`, `cost_profile`, `plots` and `report` (what it means).
"""
