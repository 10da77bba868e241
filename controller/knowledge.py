"""What a policy has learned, kept over restarts, for the deployment it was learned on and no other."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from controller.errors import StoreError
from controller.knowledge_file import key_of
from controller.loop import TickResult
from controller.store import Learned, Store
from policies.base import Learner, Policy

log = logging.getLogger(__name__)
SAVE_EVERY_S = 300.0
"""Between two saves: what a crash may cost is five minutes of learning, what a save costs is one write."""


class KnowledgeKeeper:
    """Records turns: loads once the deployment is known, then saves now and again."""

    def __init__(self, store: Store, policy: Policy, name: str, seed: Iterable[Learned] = ()) -> None:
        """`seed`: what others learned, taken where the store knows nothing of a deployment."""
        self._store = store
        self._learner = policy if isinstance(policy, Learner) else None
        self._name = name
        self._blank = self._learner.export_state() if self._learner else {}
        self._seed = {piece.key: piece.state for piece in seed}
        self._saved_s = 0.0
        self._seen_unix_s = 0.0
        self.key: str | None = None
        """The deployment that is governed; `None`: not known yet."""

    def record(self, result: TickResult) -> None:
        """Load when the deployment becomes known or another one, save when it is time."""
        key = deployment(self._name, result)
        if key is None:
            return
        if self._learner is None:
            self.key = key
            return
        self._seen_unix_s = result.now_unix_s
        if key != self.key:
            self.save()
            self.key, self._saved_s = key, result.now_s
            self._load(self._learner, key)
        elif result.now_s - self._saved_s >= SAVE_EVERY_S:
            self._saved_s = result.now_s
            self.save()

    def export(self) -> list[Learned]:
        """All that is known, the deployment in hand included; raises `StoreError`."""
        self.save()
        return self._store.all_learned()

    def teach(self, state: Mapping[str, Any]) -> None:
        """Take over what was learned elsewhere (the demo's rehearsal); raises `ValueError` when it cannot be.

        Call it once `key` is known: then what was kept has been loaded, and would replace this.
        """
        if self._learner is not None:
            self._learner.import_state(state)

    def adopt(self, store: Store) -> None:
        """Go on in `store`; what was kept there for this deployment is more than these few minutes taught."""
        self._store = store
        if self._learner is None or self.key is None:
            return
        try:
            found = store.learned(self.key) is not None
        except StoreError:
            found = False
        if found:
            self._load(self._learner, self.key)
        else:
            self.save()

    def save(self) -> None:
        """Keep what is known now; a store that cannot be written is said in the log."""
        if self._learner is None or self.key is None:
            return
        try:
            self._store.save_learned(self.key, self._learner.export_state(), self._seen_unix_s)
        except StoreError as error:
            log.warning("what was learned is not saved: %s", error, extra={"repeat_key": "learned"})

    def _load(self, learner: Learner, key: str) -> None:
        """What was kept for `key`; what was learned on another deployment is dropped."""
        try:
            learner.import_state(self._store.learned(key) or self._seed.get(key) or self._blank)
        except (StoreError, ValueError, KeyError, TypeError) as error:
            log.warning("what was learned before cannot be used, starting afresh: %s", error)
            learner.import_state(self._blank)


def deployment(policy: str, result: TickResult) -> str | None:
    """The key: all that moves step times or acceptance for good; `None` while it is not known."""
    info, loads, control = result.info, result.scrape.sample.loads, result.control
    if info is None or loads is None or info.version is None:
        return None
    parts: dict[str, Any] = {
        "policy": policy,
        "sglang": info.version,
        "model": info.model,
        "draft": info.draft_model,
        "algorithm": info.speculative_algorithm,
        "accelerator": loads.accelerator,
        "tp": info.tp_size,
        "attention": info.attention_backend,
        "plain_decode": control.plain_decode if control else None,
        "chain_verify": control.chain_verify if control else None,
    }
    return key_of(parts)
