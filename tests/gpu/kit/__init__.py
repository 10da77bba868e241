"""The GPU kit: starts real SGLang servers, puts load on them, steers them, keeps what they recorded.

A plan (`plans/*.py`) is a coroutine `run(kit)`; `kit.session.Kit` is all that it sees.
"""
