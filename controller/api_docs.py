"""The API's documentation as one plain page, made from its OpenAPI description.

Nothing is loaded from elsewhere, so it works without internet access.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from typing import Any

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;"
    "color-scheme:light dark}code,pre{font-family:ui-monospace,monospace}pre{overflow:auto;padding:.5rem;"
    "border:1px solid #8888}h2{border-top:1px solid #8888;padding-top:.5rem}"
)


def docs_page(openapi: dict[str, Any]) -> str:
    """The page."""
    info = openapi["info"]
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        "<meta name=viewport content='width=device-width'>",
        f"<title>{escape(info['title'])} API</title><style>{_STYLE}</style>",
        f"<h1>{escape(info['title'])} {escape(info['version'])} API</h1>",
        f"<p>{escape(info.get('summary', ''))}. Machine-readable: <a href=openapi.json>openapi.json</a>.</p>",
        *_operations(openapi),
        f"<h2>Schemas</h2><pre>{escape(json.dumps(openapi.get('components', {}), indent=2))}</pre></html>",
    ]
    return "\n".join(parts)


def _operations(openapi: dict[str, Any]) -> Iterator[str]:
    for path, methods in openapi["paths"].items():
        for method, operation in methods.items():
            yield f"<h2><code>{method.upper()} {escape(path)}</code></h2>"
            yield f"<p>{escape(operation.get('description', operation.get('summary', '')))}</p>"
            wanted = {key: operation[key] for key in ("parameters", "requestBody") if key in operation}
            if wanted:
                text = escape(json.dumps(wanted, indent=2))
                yield f"<details><summary>Request</summary><pre>{text}</pre></details>"
            codes = ", ".join(
                f"{code} {escape(answer.get('description', ''))}"
                for code, answer in operation["responses"].items()
            )
            yield f"<p>Answers: {codes}</p>"
