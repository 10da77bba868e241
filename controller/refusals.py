"""The one shape that every refusal of the API has."""

from __future__ import annotations

from fastapi.responses import JSONResponse


def refusal(status: int, message: str, field: str | None = None) -> JSONResponse:
    """`{"error": {"field": ..., "message": ...}}`; `field` is null when it is about no field."""
    headers = {"www-authenticate": "Bearer"} if status == 401 else None
    return JSONResponse({"error": {"field": field, "message": message}}, status, headers)
