"""The composition root: the only place that constructs concrete classes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from pydantic import SecretStr

from controller import knowledge_file
from controller.api import create_app, reads_guard
from controller.audit import Audit
from controller.benefit_recorder import BenefitRecorder
from controller.conditions import ConditionBoard
from controller.crash_pin import CrashPin
from controller.effect import EffectTracker
from controller.engine_client import ClientParams, EngineClient
from controller.engine_commands import preflight_command, release_command
from controller.errors import KnowledgeFileError, SettingsError, StoreError
from controller.fleet_keeper import FleetKeeper
from controller.fleet_override import FleetOverrideFile
from controller.history import History
from controller.knowledge import KnowledgeKeeper
from controller.loop import ControlLoop, LoopParams, TickResult
from controller.observer import Observer
from controller.overrides import Overrides
from controller.page import add_knowledge, add_page, add_records
from controller.recorders import DecisionRecorder
from controller.recording import RecordQueue
from controller.scraper import Scraper
from controller.settings import EngineSettings, Settings
from controller.shadow_recorder import ShadowRecorder
from controller.sidecar import Sidecar
from controller.steering import LeaseParams, Steering
from controller.store import Learned, Store
from controller.store_keeper import StoreKeeper, opener
from controller.telemetry import Telemetry
from controller.tls import ServerTls, server_tls
from controller.tokens import TokenSource
from policies import registry
from policies.base import Forecaster, Policy
from policies.guards import stack
from policies.types import Forecast

if TYPE_CHECKING:
    from controller.otel import OtelRecorder

RECORD_PATIENCE_S = 1.0
"""How long a turn waits for its own record."""
MEMORY_BYTES = 4 << 20
"""At most this is kept in memory in place of a file: a fault of the disk must not end in one of memory."""
CLOSE_WITHIN_S = 5.0
"""For what is kept to be written at the end; a disk that hangs must not keep a pod from ending."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Assembly:
    """All the parts of one sidecar."""

    sidecar: Sidecar
    app: FastAPI
    client: EngineClient
    keeper: StoreKeeper
    knowledge: KnowledgeKeeper
    records: RecordQueue[TickResult]
    tls: ServerTls | None
    otel: OtelRecorder | None

    async def aclose(self) -> None:
        """Save and close what holds resources, after the loop has ended."""
        await self.client.aclose()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_WITHIN_S):
                await asyncio.to_thread(self._save)
        if self.otel is not None:
            await asyncio.to_thread(self.otel.close)
        self.records.close()

    def _save(self) -> None:
        self.knowledge.save()
        with contextlib.suppress(StoreError):
            self.keeper.close()


def make_client(settings: EngineSettings, transport: httpx.AsyncBaseTransport | None = None) -> EngineClient:
    """A client for the engine."""
    params = ClientParams(
        url=settings.url,
        connect_timeout_s=settings.connect_timeout_s,
        request_timeout_s=settings.request_timeout_s,
        put_timeout_s=settings.put_timeout_s,
        metrics_timeout_s=settings.metrics_timeout_s,
        max_body_bytes=settings.max_body_bytes,
    )
    return EngineClient(
        params,
        api_key=_token(settings.api_key, settings.api_key_file),
        admin_key=_token(settings.admin_api_key, settings.admin_api_key_file),
        transport=transport,
        trust=trust(settings.ca_file, settings.url),
    )


def trust(ca_file: Path | None, url: str) -> ssl.SSLContext | bool:
    """What certificates of the engine are checked against; raises `SettingsError`."""
    if ca_file is None:
        plain = url.startswith("http://")  # then no certificates need be held in memory: none is trusted
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if plain else True
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        rule = "must be a file of PEM certificates"
        raise SettingsError(f"engine.ca_file {rule}, got {ca_file}: {error}") from None


def make_policy(settings: Settings, name: str) -> Policy:
    """The policy called `name`, without guards."""
    return registry.find(name).make(settings.params_of(name))


def assemble(
    settings: Settings,
    *,
    transport: httpx.AsyncBaseTransport | None = None,
    clock: Callable[[], float] = time.monotonic,
    wall_clock: Callable[[], float] = time.time,
) -> Assembly:
    """A sidecar; `transport` and the clocks are replaced in tests."""
    otel = make_otel(settings)
    keeper = keep_store(settings)
    store = keeper.store
    fleet = FleetOverrideFile(settings.fleet.file) if settings.fleet.file else None
    fleet_kept = (FleetKeeper(fleet, store),) if fleet else ()
    audit = Audit(store, otel.note if otel else None)
    crash_pin = CrashPin(store)
    # a dry run puts nothing in force in any case, often beside the sidecar that has the database
    overrides = Overrides(store, fleet, clock, lambda: None if settings.dry_run else keeper.unread)
    client = make_client(settings.engine, transport)
    telemetry = Telemetry(CollectorRegistry())
    history, benefit = History(), BenefitRecorder(telemetry.registry)
    policy = make_policy(settings, settings.policy.name)
    shadow = make_policy(settings, settings.policy.shadow) if settings.policy.shadow else None
    apart = ShadowRecorder(telemetry.registry, _forecast(policy, shadow))
    knowledge = KnowledgeKeeper(store, policy, settings.policy.name, _seed(settings.store.seed))
    keeper.kept = (*fleet_kept, overrides, crash_pin, audit, knowledge)
    records = RecordQueue[TickResult](
        (
            keeper,
            *fleet_kept,
            overrides,
            crash_pin,
            telemetry,
            benefit,
            apart,
            history,
            DecisionRecorder(audit),
            knowledge,
            *([otel] if otel else []),
        ),
        min(settings.loop.period_s, RECORD_PATIENCE_S),
    )
    token = _token(settings.api.token, settings.api.token_file)
    read_token = _token(settings.api.read_token, settings.api.read_token_file)
    loop = ControlLoop(
        LoopParams(
            settings.loop.period_s,
            settings.dry_run,
            settings.lease.renew_deadline_s,
            preflight_command(settings.engine),
        ),
        scraper=Scraper(
            client,
            metrics_period_s=settings.engine.metrics_period_s,
            info_period_s=settings.engine.info_period_s,
            clock=clock,
        ),
        observer=Observer(),
        policy=stack(policy, settings.guards, dry_run=settings.dry_run),
        shadow=stack(shadow, settings.guards) if shadow else None,
        overrides=overrides,
        crash_pin=crash_pin,
        steering=Steering(_lease(settings, store), client, dry_run=settings.dry_run),
        effects=EffectTracker(settings.loop.confirm_within_s, settings.loop.inert_after_s, clock()),
        conditions=ConditionBoard(),
        records=records,
        store_problem=lambda: (
            keeper.problem or overrides.problem or crash_pin.problem or audit.problem or records.problem
        ),
        token_problem=lambda: token.problem or read_token.problem,
        release=lambda holder: release_command(settings.engine, holder),
        clock=clock,
        wall_clock=wall_clock,
    )
    sidecar = Sidecar(
        settings,
        loop=loop,
        overrides=overrides,
        crash_pin=crash_pin,
        audit=audit,
        registry=telemetry.registry,
        token=token,
        read_token=read_token,
        policy_name=settings.policy.name,
        forecast=_forecast(policy),
        shadow_difference=apart.to_json,
        clock=clock,
        wall_clock=wall_clock,
    )
    app = create_app(sidecar)
    add_records(app, history, benefit, [reads_guard(sidecar)])
    add_knowledge(app, knowledge, [reads_guard(sidecar)])
    add_page(app)
    return Assembly(sidecar, app, client, keeper, knowledge, records, server_tls(settings.api), otel)


def _forecast(*policies: Policy | None) -> Callable[[], tuple[Forecast, ...]]:
    """What the first of `policies` that can say expects of every arm; nothing where none can."""
    for policy in policies:
        if isinstance(policy, Forecaster):
            return policy.forecast
    return tuple


def make_otel(settings: Settings) -> OtelRecorder | None:
    """What sends to a collector, when that is wanted; raises `SettingsError`."""
    if not settings.otel.enabled:
        return None
    try:
        from controller import otel  # noqa: PLC0415  an extra: absent in most installations
    except ImportError as error:
        remedy = "pip install 'specgov[otel]' (an image: build it with EXTRAS=[otel]), or leave it off"
        raise SettingsError(
            f"otel.enabled must be false without the OpenTelemetry SDK ({error}), got true: {remedy}"
        ) from None
    return otel.make(settings.engine.url, settings.otel.quiet_every_s)


def keep_store(settings: Settings) -> StoreKeeper:
    """The state database, or, as long as it cannot be used, one in memory and the reason."""
    rows, size = settings.store.max_decisions, settings.store.max_bytes
    return StoreKeeper(
        settings.store_path,
        opener(settings.store_path, max_rows=rows, max_bytes=size),
        opener(Path(":memory:"), max_rows=rows, max_bytes=min(size, MEMORY_BYTES)),
    )


def _seed(path: Path | None) -> list[Learned]:
    """What siblings learned; a file that cannot be used is said in the log and left out."""
    if path is None:
        return []
    try:
        return knowledge_file.read(path)
    except KnowledgeFileError as error:
        log.error("store.seed is not used, starting from nothing: %s", error)  # noqa: TRY400
        return []


def _lease(settings: Settings, store: Store) -> LeaseParams:
    lease = settings.lease
    holder = lease.holder or f"specgov/{socket.gethostname()}/{store.identity}"
    return LeaseParams(holder[:128], lease.lease_s, lease.renew_deadline_s, lease.renew_every_s)


def _token(value: SecretStr | None, file: Path | None) -> TokenSource:
    return TokenSource(value.get_secret_value() if value else None, file)
