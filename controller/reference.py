"""The reference pages, made from the code: `python -m controller.reference DIR` writes them.

docs/settings.md from the settings tree, docs/metrics.md from `Telemetry`, docs/api.md from OpenAPI,
docs/commands.md from the commands.  A test fails when the committed pages are not what this module makes.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python
from typer.main import get_command

from controller.attribute_docs import attribute_docs
from controller.benefit import Reference
from controller.benefit_recorder import BenefitRecorder
from controller.cli import make_app
from controller.cli._exit import MEANING as MEANING_OF_CODES
from controller.conditions import MEANING, Condition
from controller.order_text import Printable
from controller.settings import Settings, strict_params
from controller.shadow_recorder import ShadowRecorder
from controller.telemetry import LABEL_VALUES, Telemetry
from controller.wording import REASONS
from policies import registry
from policies.bounds import Bound, bounds_of
from policies.guards import GuardParams

Row = tuple[str, str, str, str]
"""Name, default, what it must be, meaning."""
NOTE = "<!-- Made by `python -m controller.reference docs`; do not edit. -->\n"


def settings_page() -> str:
    """docs/settings.md."""
    lines = [
        NOTE,
        "# Settings\n",
        "Sources, strongest first: flags of `specgov run` (`--set section.key=value` sets any), environment",
        "(`SPECGOV_SECTION__KEY`; lists and tables as JSON), the TOML file given by `--config` or",
        "`SPECGOV_CONFIG`. Unknown keys are errors. A value that is left out has its default, and so has one",
        "whose default is `none` (it cannot be written). Numbers are finite.\n",
        "```toml",
        "[engine]",
        'url = "http://127.0.0.1:30000"',
        'admin_api_key_file = "/run/secrets/sglang-admin-key"\n',
        "[policy]",
        'name = "goodput"\n',
        "[policies.goodput]",
        "tpot_objective_s = 0.05\n",
        '# what an operator writes down instead, with policy.name = "threshold"',
        "[policies.threshold]",
        "rows = [{ min_batch_size = 1, depth = 3 }, { min_batch_size = 24, depth = 1 },",
        "        { min_batch_size = 64, depth = 0 }]",
        "```\n",
        "## Top level\n",
        *_table(_top_level()),
    ]
    for name, field in Settings.model_fields.items():
        rows = _section(field)
        if rows:
            lines += [f"\n## `[{name}]`\n", _summary(field.annotation), "", *_table(rows)]
    for name in registry.BUILT_IN:
        params = registry.find(name).params
        lines += [f"\n## `[policies.{name}]`\n", _summary(params), "", *_table(_dataclass_rows(params))]
    return "\n".join(lines) + "\n"


def _top_level() -> list[Row]:
    plain = {name: field for name, field in Settings.model_fields.items() if not _section(field)}
    return _model_rows(plain, Settings)


def _section(field: FieldInfo) -> list[Row]:
    kind = field.annotation
    if kind is GuardParams:
        return _dataclass_rows(kind)
    if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
        return []
    return _model_rows(kind.model_fields, kind)


def _model_rows(fields: Mapping[str, FieldInfo], model: type[BaseModel]) -> list[Row]:
    schema, docs = model.model_json_schema(), attribute_docs(model)
    return [
        (
            name,
            _default(field.get_default(call_default_factory=True)),
            _value(name, schema["properties"][name]),
            docs.get(name, ""),
        )
        for name, field in fields.items()
    ]


def _dataclass_rows(params: type[Any], prefix: str = "") -> list[Row]:
    """One row a field; fields that are dataclasses themselves become dotted rows."""
    adapter = TypeAdapter(strict_params(params))
    schema = adapter.json_schema()
    entries, bounds, docs = schema.get("properties", {}), bounds_of(params), attribute_docs(params)
    rows: list[Row] = []
    for f in dataclasses.fields(params):
        default = f.default if f.default_factory is dataclasses.MISSING else f.default_factory()
        if dataclasses.is_dataclass(default):
            rows += _dataclass_rows(type(default), f"{prefix}{f.name}.")
        else:
            entry = _entry(entries[f.name], schema.get("$defs", {}))
            if f.name in bounds:
                entry |= _as_schema(bounds[f.name][0])
            if "enum" in entry:  # what the record's own check refuses is none of the choices
                entry["enum"] = [each for each in entry["enum"] if _accepts(adapter, {f.name: each})]
            rows.append((prefix + f.name, _default(default), _value(f.name, entry), docs.get(f.name, "")))
    return rows


def _entry(schema: dict[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Of the alternatives of a field the one that is not null, a name replaced by what it stands for."""
    entry = next((each for each in schema.get("anyOf", ()) if each.get("type") != "null"), schema)
    found = definitions[entry["$ref"].rpartition("/")[2]] if "$ref" in entry else entry
    return dict(found)


def _as_schema(bound: Bound) -> dict[str, float]:
    limits = {"exclusiveMinimum": bound.above, "minimum": bound.at_least, "maximum": bound.at_most}
    return {key: limit for key, limit in limits.items() if limit is not None}


def _accepts(adapter: TypeAdapter[Any], given: dict[str, Any]) -> bool:
    try:
        adapter.validate_python(given)
    except ValidationError:
        return False
    return True


UNITS = {
    "_requests_per_s": "requests per second",
    "_request_steps": "request-steps",
    "_s": "seconds",
    "_bytes": "bytes",
    "_reqs": "requests",
    "_steps": "decode steps",
    "_ticks": "ticks",
}
"""The unit of a number, by how its name ends; the first that fits."""
FORMATS = {"password": "text, kept secret", "path": "path", "file-path": "path"}
KINDS = {"boolean": "`true` or `false`", "object": "table", "string": "text"}
MANY = {"integer": "integers", "string": "texts"}


def _value(name: str, schema: dict[str, Any]) -> str:
    """What a setting must be: its unit or kind, and its range."""
    entry = _entry(schema, {})
    if "format" in entry:
        return FORMATS[entry["format"]]
    if "enum" in entry:
        return _rule(entry)
    if entry["type"] == "array":
        items = MANY.get(entry["items"].get("type", ""), "tables")
        return ", each ".join([f"list of {items}", *_limits(entry)])
    unit = next((unit for suffix, unit in UNITS.items() if f"_{name}".endswith(suffix)), None)
    numeric = entry["type"] in ("number", "integer")
    kind = unit if unit and numeric else KINDS.get(entry["type"], entry["type"])
    return ", ".join([kind, *_limits(entry)])


def _default(value: Any) -> str:
    return "none" if value is None else json.dumps(to_jsonable_python(value))


def _summary(kind: Any) -> str:
    return (kind.__doc__ or "").strip().splitlines()[0]


def _table(rows: Sequence[Row]) -> list[str]:
    if not rows:
        return []
    lines = ["| setting | default | value | meaning |", "| --- | --- | --- | --- |"]
    cells = ((name, default, value, _cell(text)) for name, default, value, text in rows)
    return [
        *lines,
        *(f"| `{name}` | `{default}` | {value} | {text} |" for name, default, value, text in cells),
    ]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def metrics_page() -> str:
    """docs/metrics.md."""
    lines = [
        NOTE,
        "# Metrics\n",
        "Served at `/metrics` of the sidecar. NaN, or a series that is absent, means: not known. Counters of",
        "the engine (`specgov_engine_*`) are summed over DP ranks from the hook's telemetry and go on over",
        "restarts of the engine.\n",
        "| metric | type | labels | meaning |",
        "| --- | --- | --- | --- |",
    ]
    benefit, shadow = BenefitRecorder(CollectorRegistry()), ShadowRecorder(CollectorRegistry(), tuple)
    lines += map(_metric_row, [*Telemetry(CollectorRegistry()).metrics, *benefit.metrics, *shadow.metrics])
    lines += ["\n## Labels\n", "| label | values |", "| --- | --- |"]
    labels = {**LABEL_VALUES, "against": list(map(str, Reference))}
    lines += [f"| `{label}` | {', '.join(f'`{v}`' for v in values)} |" for label, values in labels.items()]
    lines += ["\n## Conditions\n", "| condition | meaning | what mends it |", "| --- | --- | --- |"]
    lines += [f"| `{c}` | {MEANING[c][0]} | {_cell(MEANING[c][1])} |" for c in Condition]
    lines += ["\n## Reasons\n", "Why a decision is what it is: `because` of `specgov explain`, in words.\n"]
    lines += ["| reason | meaning |", "| --- | --- |"]
    lines += [f"| `{reason}` | {meaning} |" for reason, meaning in REASONS.items()]
    return "\n".join(lines) + "\n"


def _metric_row(metric: MetricWrapperBase) -> str:
    (family, *_) = metric.describe()
    suffix = {"counter": "_total", "info": "_info"}.get(family.type, "")
    labels = ", ".join(f"`{name}`" for name in metric._labelnames)  # noqa: SLF001  there is no other way
    return f"| `{family.name}{suffix}` | {family.type} | {labels} | {_cell(family.documentation)} |"


def api_page(openapi: dict[str, Any]) -> str:
    """docs/api.md."""
    lines = [
        NOTE,
        "# REST API\n",
        "Also at `/docs` of a running sidecar (no internet access needed) and, for machines, at",
        "`/openapi.json`. Where `api.token` or `api.token_file` is set, what changes something needs",
        "`Authorization: Bearer TOKEN`; with `api.protect_reads`, reading does too. Every refusal is",
        '`{"error": {"field": "depth", "message": "..."}}`; `field` is null when it is about no field.\n',
        "| request | meaning | answers |",
        "| --- | --- | --- |",
    ]
    for path, methods in openapi["paths"].items():
        for method, operation in methods.items():
            codes = ", ".join(operation["responses"])
            lines.append(f"| `{method.upper()} {path}` | {_cell(operation['description'])} | {codes} |")
    body = openapi["components"]["schemas"]["OverrideBody"]
    lines += ["\n## `PUT /v1/override`\n", "| field | rule | meaning |", "| --- | --- | --- |"]
    for name, entry in body["properties"].items():
        needed = " (needed)" if name in body["required"] else ""
        lines.append(f"| `{name}`{needed} | {_rule(entry)} | {_cell(entry.get('description', ''))} |")
    for path, methods in openapi["paths"].items():
        for method, operation in methods.items():
            lines += _parameters(f"{method.upper()} {path}", operation.get("parameters", []))
    return "\n".join(lines) + "\n"


def _parameters(request: str, parameters: list[dict[str, Any]]) -> list[str]:
    """The table of a request's query parameters; nothing for one without."""
    rows = [
        f"| `{p['name']}` | {_rule(p['schema'])} | {_cell(p.get('description', ''))} |" for p in parameters
    ]
    return (
        [f"\n## `{request}`\n", "| parameter | rule | meaning |", "| --- | --- | --- |", *rows]
        if rows
        else []
    )


RULES = {
    "exclusiveMinimum": "above {:.16g}",
    "minimum": "at least {:.16g}",
    "maximum": "at most {:.16g}",
    "minLength": "at least {} character",
    "maxLength": "at most {} characters",
}
"""How a rule of JSON schema reads."""
PATTERNS = {
    TypeAdapter(Printable).json_schema()["pattern"]: "one line, no control characters",
    "^[ -~]+$": "printable ASCII",
}
"""How a pattern reads; one that is not here is an error."""


def _rule(schema: dict[str, Any]) -> str:
    """What a value must be, in words: of the alternatives, the one that is not null."""
    entry = next((each for each in schema.get("anyOf", ()) if each.get("type") != "null"), schema)
    kind = [entry["type"]] if entry.get("type") in ("integer", "number", "string") else []
    if "$ref" in entry:
        return "one of these"
    choice = ["one of " + ", ".join(f"`{each}`" for each in entry["enum"])] if "enum" in entry else kind
    return ", ".join([*choice, *_limits(entry)])


def _limits(entry: dict[str, Any]) -> list[str]:
    """What holds a value within its kind."""
    said = [text.format(entry[key]) for key, text in RULES.items() if key in entry]
    return [*said, *([PATTERNS[entry["pattern"]]] if "pattern" in entry else [])]


def commands_page() -> str:
    """docs/commands.md."""
    lines = [
        NOTE,
        "# Commands\n",
        "Each explains itself with `--help`; `--json` prints for programs; `specgov --install-completion`",
        "completes them in your shell. `SPECGOV_URL`, `SPECGOV_TOKEN_FILE` and `SPECGOV_CONFIG` stand for",
        "`--url`, `--token-file` and `--config`.\n",
        "| command | what it does |",
        "| --- | --- |",
    ]
    lines += [f"| `specgov {name}` | {_cell(text)} |" for name, text in _commands(get_command(make_app()))]
    lines += ["\n## Exit codes\n", "The same for every command.\n", "| code | meaning |", "| --- | --- |"]
    lines += [f"| {code:d} | {text} |" for code, text in MEANING_OF_CODES.items()]
    lines += [
        "",
        "3 is the answer of `preflight`, `status`, `watch` with `--once` or `--json`, and of `override`",
        "when the order is kept but the engine cannot be made to follow it now; Ctrl-C is how",
        "`run`, `watch`, `demo --keep` and `demo --engine-only` are meant to end, with 0. `bench` ends",
        "with 0 when some requests failed, with 1 when none finished ([all of its cases](bench.md)).",
    ]
    return "\n".join(lines) + "\n"


def _commands(group: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Full name and help of each command."""
    for name, command in sorted(group.commands.items()):
        if hasattr(command, "commands"):
            yield from _commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command.help or ""


def openapi() -> dict[str, Any]:
    """The API's description, from an app that is never served."""
    from controller.wiring import assemble  # noqa: PLC0415  the pages above do without

    settings = Settings.model_validate({"store": {"path": ":memory:"}})
    assembly = assemble(settings)
    assembly.keeper.close()
    return assembly.app.openapi()


def pages() -> dict[str, str]:
    """File name and text of each page."""
    return {
        "settings.md": settings_page(),
        "metrics.md": metrics_page(),
        "api.md": api_page(openapi()),
        "commands.md": commands_page(),
    }


def main() -> None:
    """Write the pages into the folder given."""
    for name, text in pages().items():
        (Path(sys.argv[1]) / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
