"""All settings, with what they mean.  Sources, strongest first: flags, SPECGOV_* environment, TOML file.

Nested environment names take two underscores: `SPECGOV_ENGINE__URL`.  Unknown keys are errors.
"""

from __future__ import annotations

import ipaddress
import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict
from pydantic_settings.exceptions import SettingsError as UnreadableEnvironmentError
from pydantic_settings.sources import InitSettingsSource

from controller.errors import SettingsError
from policies import registry
from policies.guards import GuardParams

Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
_STRICT = ConfigDict(extra="forbid", frozen=True)


def strict_params(params: type[Any]) -> type[Any]:
    """The parameter dataclass, made to refuse unknown keys."""
    if "__pydantic_config__" not in vars(params):
        params.__pydantic_config__ = ConfigDict(extra="forbid")
    return params


strict_params(GuardParams)


def _at_most_one(section: BaseModel, *names: str) -> None:
    given = [name for name in names if getattr(section, name) is not None]
    if len(given) > 1:
        raise ValueError(f"only one of {', '.join(names)} may be set, got {len(given)}")


def _above(section: BaseModel, upper: str, lower: str) -> None:
    if not getattr(section, upper) > getattr(section, lower):
        raise ValueError(
            f"{upper} must be above {lower} ({getattr(section, lower)}), got {getattr(section, upper)!r}"
        )


def _is_link_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_link_local
    except ValueError:
        return False


def is_address(host: str) -> bool:
    """Whether `host` is an IP address, without brackets."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether `host` names this machine only: `localhost` or a loopback address, brackets allowed."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _decoded(value: Any) -> Any:
    """Lists and tables come from flags, and policies' from the environment, as JSON text."""
    if not isinstance(value, str) or value[:1] not in ("[", "{"):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


class Section(BaseModel):
    """A group of settings."""

    model_config = _STRICT


class EngineSettings(Section):
    """The SGLang server that is governed."""

    url: str = "http://127.0.0.1:30000"
    """Base URL of the SGLang server, http or https, without path.  Redirects are not followed."""
    api_key: SecretStr | None = None
    """SGLang's `--api-key`; `None`: the server has none.  Better `api_key_file`: environment and process
    lists are read by many."""
    api_key_file: Path | None = None
    """File with the same; read again when it changes."""
    admin_api_key: SecretStr | None = None
    """SGLang's `--admin-api-key`, which `/speculation` asks for where one is set; `None`: `api_key` is
    used."""
    admin_api_key_file: Path | None = None
    """File with the same; read again when it changes."""
    ca_file: Path | None = None
    """PEM certificates that an https server's own must lead to.  `None`: those that this machine trusts."""
    connect_timeout_s: Seconds = 1.0
    """For a connection to be made.  1 s: the server is on the same host or pod."""
    request_timeout_s: Seconds = 2.0
    """For a whole answer of `/v1/loads` and `GET /speculation`."""
    put_timeout_s: Seconds = 4.0
    """For a whole answer of `PUT` and `DELETE /speculation`; above the 2 s that it waits for ranks."""
    metrics_timeout_s: Seconds = 5.0
    """For a whole answer of `/metrics` and `/server_info`, which can be slow."""
    metrics_period_s: Seconds = 15.0
    """Between two reads of `/metrics`, which is large and only the second source.  It is read at every
    tick while `/v1/loads` gives nothing."""
    info_period_s: Seconds = 60.0
    """Between two reads of `/server_info`; also read at once when the engine restarts."""
    max_body_bytes: int = Field(default=8 << 20, ge=1 << 10, le=1 << 30)
    """Larger answers are refused, unread.  8 MiB is 60 times the largest seen."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"url must be http://HOST[:PORT] or https://HOST[:PORT], got {self.url!r}")
        if parts.username or parts.query or parts.fragment or parts.path.strip("/"):
            raise ValueError("url must have no user, path, query or fragment; keys go into api_key_file")
        if _is_link_local(parts.hostname):
            raise ValueError(f"url must not be link-local, where clouds keep credentials, got {self.url!r}")
        _at_most_one(self, "api_key", "api_key_file")
        _at_most_one(self, "admin_api_key", "admin_api_key_file")
        return self


class LoopSettings(Section):
    """The control loop."""

    period_s: float = Field(default=1.0, ge=0.05, le=60)
    """Between two ticks.  1 s: the engine follows the batch size by itself between two of them."""
    jitter_s: float = Field(default=0.1, ge=0, le=60)
    """How late a tick may be; only used to check the lease settings against."""
    confirm_within_s: Seconds = 5.0
    """A plan that was acknowledged must show in the telemetry within this long under load, else it is
    `unconfirmed`."""
    inert_after_s: Seconds = 30.0
    """Control that is wanted but shows no effect is `inert` after this long, > `confirm_within_s`."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        _above(self, "inert_after_s", "confirm_within_s")
        return self


class LeaseSettings(Section):
    """The engine follows the plan only as long as its lease is renewed."""

    holder: str | None = Field(default=None, min_length=1, max_length=128, pattern=r"^[ -~]+$")
    """Name of this sidecar at the engine, unique among the sidecars of one engine.  `None`: host name and
    an identity kept in the state database, so that a restarted sidecar is known as the same one."""
    lease_s: float = Field(default=15.0, ge=1, le=3600)
    """How long the engine follows the plan of a sidecar that has died."""
    renew_deadline_s: Seconds = 10.0
    """Without a renewal for this long the lease counts as lost, < `lease_s`, > `renew_every_s` + a tick."""
    renew_every_s: Seconds = 3.0
    """Between two renewals."""


class PolicySettings(Section):
    """Who decides."""

    name: str = "goodput"
    """Name of the policy in force: one of `policies`, or one installed through an entry point."""
    shadow: str | None = None
    """A policy that is asked beside it, on the same observations, and never applied.  `None`: none."""


class ApiSettings(Section):
    """The sidecar's own HTTP server."""

    host: str = "127.0.0.1"
    """Address to listen on.  Loopback by default; others, such as 0.0.0.0 for Prometheus and a service, need
    a token."""
    port: int = Field(default=9470, ge=0, le=65_535)
    """Port to listen on; 0: any free one."""
    token: SecretStr | None = None
    """Bearer token for everything that changes something.  `None`: no token is asked for."""
    token_file: Path | None = None
    """File with the same; read again when it changes."""
    protect_reads: bool = False
    """Whether reading, `/healthz`, `/readyz` and `/metrics` excepted, needs a token too."""
    read_token: SecretStr | None = None
    """Bearer token that may read and change nothing, beside `token`; for `protect_reads`."""
    read_token_file: Path | None = None
    """File with the same; read again when it changes."""
    allowed_hosts: tuple[str, ...] = ()
    """Without a token: names, beside IP addresses and `localhost`, under which the API may be asked, such as
    that of a proxy in front, whose status page may then give orders.  Others are refused, as a web page whose
    name was rebound to this machine would be one of them."""
    tls_cert_file: Path | None = None
    """PEM certificate, with its chain: the API is served over https.  Read again when it changes."""
    tls_key_file: Path | None = None
    """Its PEM key."""
    tls_client_ca_file: Path | None = None
    """PEM certificates that every client's own must lead to (mutual TLS), probes and Prometheus included.
    `None`: clients show no certificate."""
    max_requests_per_s: float = Field(default=50.0, gt=0, le=10_000)
    """Requests of all clients together that are answered in the long run, twice as many in one burst; above
    it 429.  Reads, those of specgov's commands and orders are counted apart, those from this machine (its
    pod, its port-forward) apart from others, and those that show the API's token apart from all: a flood of
    one leaves the others room.
    `/healthz`, `/readyz` and `/metrics` are not counted."""
    max_body_bytes: int = Field(default=16 << 10, ge=256, le=1 << 20)
    """Larger requests are refused."""
    body_timeout_s: Seconds = 5.0
    """A request whose body takes longer is refused."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        _at_most_one(self, "token", "token_file")
        _at_most_one(self, "read_token", "read_token_file")
        if self.protect_reads and not self.has_token:
            raise ValueError("protect_reads must be false without token or token_file, got true")
        if (self.read_token or self.read_token_file) and not self.protect_reads:
            raise ValueError("read_token must be left out unless protect_reads is true: reading is open")
        if not self.has_token and not is_loopback(self.host):
            raise ValueError(f"host must be loopback without token or token_file, got {self.host!r}")
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("tls_cert_file and tls_key_file must be set together")
        if self.tls_client_ca_file and not self.tls_cert_file:
            raise ValueError("tls_client_ca_file must be left out without tls_cert_file")
        return self

    @property
    def has_token(self) -> bool:
        """Whether changing something needs a token."""
        return self.token is not None or self.token_file is not None


class FleetSettings(Section):
    """What many sidecars share."""

    file: Path | None = None
    """JSON file with an override for the whole fleet, e.g. a mounted ConfigMap; watched, and need not exist.
    An override given over REST wins on its pod.  `None`: none is watched."""


class StoreSettings(Section):
    """What survives a restart: overrides, the decision log, what was learned."""

    path: Path | None = None
    """SQLite file; its directory is made.  `None`: `specgov/HOST_PORT.db` of the engine, in
    `$XDG_STATE_HOME` or `~/.local/state`.  `:memory:`: nothing survives."""
    max_decisions: int = Field(default=100_000, ge=100)
    """Rows kept in the decision log; the oldest go first."""
    max_bytes: int = Field(default=64 << 20, ge=1 << 20)
    """Size of the file above which the oldest decisions go, whatever `max_decisions` says."""
    seed: Path | None = None
    """File that `specgov knowledge export` wrote on a sibling, e.g. a mounted ConfigMap: where a new pod
    starts when it has learned nothing itself.  Counts for an equal deployment only.  `None`: from nothing."""


class LogSettings(Section):
    """The log, on standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe level that is written."""
    format: Literal["text", "json"] = "text"
    """`json`: one object a line."""
    repeat_s: Seconds = 60.0
    """The same failure is written at most once in this time, with a count."""


class OtelSettings(Section):
    """OpenTelemetry; where to send, and how, say the standard `OTEL_*` environment variables."""

    enabled: bool = False
    """Send turns as traces and the rows of the decision log as events.  Needs `specgov[otel]`."""
    quiet_every_s: Seconds = 60.0
    """Of the turns that leave no row in the decision log, one in this time is traced; the others all are,
    as far as `OTEL_TRACES_SAMPLER` lets them."""


class Settings(BaseSettings):
    """Everything that can be set."""

    model_config = SettingsConfigDict(
        env_prefix="SPECGOV_",
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        nested_model_default_partial_update=True,
    )

    dry_run: bool = False
    """Decide, record and export, but never change the engine."""
    engine: EngineSettings = EngineSettings()
    loop: LoopSettings = LoopSettings()
    lease: LeaseSettings = LeaseSettings()
    policy: PolicySettings = PolicySettings()
    policies: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Parameters by policy name, e.g. `[policies.threshold]`.  What is left out has its default."""
    guards: GuardParams = GuardParams()
    api: ApiSettings = ApiSettings()
    fleet: FleetSettings = FleetSettings()
    store: StoreSettings = StoreSettings()
    log: LogSettings = LogSettings()
    otel: OtelSettings = OtelSettings()

    @model_validator(mode="after")
    def _check(self) -> Self:
        tick_s = self.loop.period_s + self.loop.jitter_s
        lease = self.lease
        if not lease.renew_deadline_s > lease.renew_every_s + tick_s:
            rule = f"must be above renew_every_s + period_s + jitter_s ({lease.renew_every_s + tick_s:g})"
            raise ValueError(f"lease.renew_deadline_s {rule}, got {lease.renew_deadline_s!r}")
        if not lease.lease_s > lease.renew_deadline_s:
            rule = f"must be above renew_deadline_s ({lease.renew_deadline_s:g})"
            raise ValueError(f"lease.lease_s {rule}, got {lease.lease_s!r}")
        named = {"policy.name": self.policy.name, **{f"policies.{name}": name for name in self.policies}}
        for setting, name in {**named, "policy.shadow": self.policy.shadow}.items():
            if name is None:
                continue
            try:
                registry.find(name)
            except registry.UnknownPolicyError as error:
                raise ValueError(str(error).replace("policy.name", setting)) from None
            self.params_of(name)
        return self

    def params_of(self, name: str) -> Any:
        """Parameters of the policy called `name`; raises `ValueError` when they break a rule."""
        spec = registry.find(name)
        try:
            given = {key: _decoded(value) for key, value in self.policies.get(name, {}).items()}
            return TypeAdapter(strict_params(spec.params)).validate_python(given)
        except ValidationError as error:
            raise ValueError(_lines(error, f"policies.{name}")) from None

    @property
    def store_path(self) -> Path:
        """Where the state database is."""
        if self.store.path is not None:
            return self.store.path
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        parts = urlsplit(self.engine.url)
        return Path(state) / "specgov" / f"{parts.hostname}_{parts.port or parts.scheme}.db"


def load(
    file: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Settings:
    """Settings from `flags` over the environment over `file`; raises `SettingsError`, which names each fault.

    `flags` is a nested mapping, as `nested` makes it of dotted keys.
    """
    _check_environment(environ)
    for key in flags or {}:
        if key not in Settings.model_fields:
            raise SettingsError(f"{key} is not a setting; see docs/settings.md")
    values = _read_toml(file) if file else {}

    class _Sourced(Settings):
        @classmethod
        def settings_customise_sources(  # type: ignore[override]  # it is called with keywords
            cls, settings_cls: type[BaseSettings], **sources: PydanticBaseSettingsSource
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            from_file = InitSettingsSource(settings_cls, init_kwargs=values)
            return sources["init_settings"], sources["env_settings"], from_file

    try:
        return _Sourced(**(flags or {}))
    except ValidationError as error:
        raise SettingsError(_lines(error)) from None
    except UnreadableEnvironmentError:
        example = """SPECGOV_API__ALLOWED_HOSTS='["a.example"]'"""
        raise SettingsError(f"a variable for a list or a section must hold JSON, as {example}") from None


def nested(pairs: Mapping[str, Any]) -> dict[str, Any]:
    """`{"engine.url": x}` as `{"engine": {"url": x}}`; values of `None` are left out.

    A text that is a JSON list or table stands for it.  Raises `SettingsError` for a key of what is no table.
    """
    tree: dict[str, Any] = {}
    for key, value in pairs.items():
        if value is None:
            continue
        *sections, last = key.split(".")
        at = tree
        for section in sections:
            at = at.setdefault(section, {})
            if not isinstance(at, dict):
                raise SettingsError(f"{section} must be a table for {key} to be set, got {at!r}")
        at[last] = _decoded(value)
    return tree


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{file} must be a readable settings file: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file} must be TOML: {error}") from None


def _check_environment(environ: Mapping[str, str]) -> None:
    """Refuse `SPECGOV_SECTION__KEY` of a section that is not there; pydantic would ignore it."""
    for name in environ:
        section, separator, _ = name.upper().removeprefix("SPECGOV_").partition("__")
        if name.upper().startswith("SPECGOV_") and separator and section.lower() not in Settings.model_fields:
            known = ", ".join(key.upper() for key in Settings.model_fields)
            raise SettingsError(f"{name} must name one of the sections {known}")


_LIST = "must be a list, such as [1, 2]"
_TABLE = "must be a table: give its keys one by one, or as JSON"
_IN_WORDS = {
    "tuple_type": _LIST,
    "list_type": _LIST,
    "dict_type": _TABLE,
    "dataclass_type": _TABLE,
    "model_type": _TABLE,
}
"""For faults whose own message speaks of Python's types."""


def _lines(error: ValidationError, prefix: str = "") -> str:
    lines = []
    for fault in error.errors(include_url=False, include_context=False):
        where = ".".join(str(part) for part in (prefix, *fault["loc"]) if part != "")
        if fault["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            lines.append(f"{where} is not a setting; see docs/settings.md")
            continue
        message = _IN_WORDS.get(fault["type"]) or fault["msg"].removeprefix("Value error, ")
        secret = any(word in where for word in ("key", "token"))
        value = "" if fault["type"] == "value_error" or secret else f", got {fault['input']!r}"
        lines.append(f"{where}: {message}{value}" if where else message)
    return "\n".join(lines)
