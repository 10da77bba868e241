"""The composition root: the only place that constructs concrete classes."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from pydantic import SecretStr

from controller import knowledge_file
from controller.api import create_app, reads_guard
from controller.audit import Audit
from controller.benefit_recorder import BenefitRecorder
from controller.conditions import ConditionBoard
from controller.effect import EffectTracker
from controller.engine_client import ClientParams, EngineClient
from controller.errors import KnowledgeFileError, StoreError
from controller.fleet_override import FleetOverrideFile
from controller.history import History
from controller.knowledge import KnowledgeKeeper
from controller.loop import ControlLoop, LoopParams
from controller.observer import Observer
from controller.overrides import Overrides
from controller.page import add_knowledge, add_page, add_records
from controller.recorders import DecisionRecorder
from controller.scraper import Scraper
from controller.settings import EngineSettings, Settings
from controller.sidecar import Sidecar
from controller.steering import LeaseParams, Steering
from controller.store import Learned, Store
from controller.telemetry import Telemetry
from controller.tokens import TokenSource
from policies import registry
from policies.base import Forecaster, Policy
from policies.guards import stack

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Assembly:
    """All the parts of one sidecar."""

    sidecar: Sidecar
    app: FastAPI
    client: EngineClient
    store: Store
    knowledge: KnowledgeKeeper

    async def aclose(self) -> None:
        """Save and close what holds resources, after the loop has ended."""
        self.knowledge.save()
        await self.client.aclose()
        self.store.close()


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
    )


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
    store, store_problem = open_store(settings)
    fleet = FleetOverrideFile(settings.fleet.file) if settings.fleet.file else None
    audit, overrides = Audit(store), Overrides(store, fleet)
    client = make_client(settings.engine, transport)
    telemetry = Telemetry(CollectorRegistry())
    history, benefit = History(), BenefitRecorder(telemetry.registry)
    policy, shadow = make_policy(settings, settings.policy.name), settings.policy.shadow
    knowledge = KnowledgeKeeper(store, policy, settings.policy.name, _seed(settings.store.seed))
    loop = ControlLoop(
        LoopParams(settings.loop.period_s, settings.dry_run, settings.lease.renew_deadline_s),
        scraper=Scraper(
            client,
            metrics_period_s=settings.engine.metrics_period_s,
            info_period_s=settings.engine.info_period_s,
            clock=clock,
        ),
        observer=Observer(),
        policy=stack(policy, settings.guards, dry_run=settings.dry_run),
        shadow=stack(make_policy(settings, shadow), settings.guards) if shadow else None,
        overrides=overrides,
        steering=Steering(_lease(settings, store), client, dry_run=settings.dry_run),
        effects=EffectTracker(settings.loop.confirm_within_s, settings.loop.inert_after_s),
        conditions=ConditionBoard(),
        recorders=(telemetry, benefit, history, DecisionRecorder(audit), knowledge),
        store_problem=lambda: store_problem or overrides.problem or audit.problem,
        clock=clock,
        wall_clock=wall_clock,
    )
    sidecar = Sidecar(
        settings,
        loop=loop,
        overrides=overrides,
        audit=audit,
        registry=telemetry.registry,
        token=_token(settings.api.token, settings.api.token_file),
        policy_name=settings.policy.name,
        forecast=policy.forecast if isinstance(policy, Forecaster) else tuple,
        clock=clock,
        wall_clock=wall_clock,
    )
    app = create_app(sidecar)
    add_records(app, history, benefit, [reads_guard(sidecar)])
    add_knowledge(app, knowledge, [reads_guard(sidecar)])
    add_page(app)
    return Assembly(sidecar, app, client, store, knowledge)


def open_store(settings: Settings) -> tuple[Store, str | None]:
    """The state database, or, when it cannot be used, one in memory and the reason."""
    limits = {"max_rows": settings.store.max_decisions, "max_bytes": settings.store.max_bytes}
    try:
        return Store(settings.store_path, **limits), None
    except StoreError as error:
        log.error("overrides and decisions will not survive a restart: %s", error)  # noqa: TRY400
        return Store(Path(":memory:"), **limits), str(error)


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
