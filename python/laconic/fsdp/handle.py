# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The handle of a sharded model: state, reports and close() under FSDP2."""

from __future__ import annotations

from ..core import errors
from ..core.errors import LaconicError
from ..ddp.handle import Handle
from ..ddp.opening import Opened, Parameters
from ..engines.aggregation import ServerOptions
from ..exchange.csession import Options
from ..exchange.state import check_fields, check_seal, of_one_rank, sealed, unsealed
from .layout import Unit
from .replicas import Shards

_PLACE = "@*"  #: end of a rule's pattern: any position


class OwnShards(Parameters):
    """This rank's shards of a model's parameters. `ours`: (name@position, DTensor), in the order of units; a shard may be empty."""

    def __init__(self, units: list[Unit], dtypes):
        self._all_cut = any(place for unit in units for place in unit.places)
        ours, foreign, self._shapes, counts = [], [], [], []
        for unit in units:
            for i, parameter in enumerate(unit.parameters):
                p, dtype = parameter.sharded_param, unit.reduce_dtype(parameter)
                name = self._named(unit.names[i], unit.places[i])
                if not p.requires_grad:
                    continue
                if dtype not in dtypes:
                    foreign.append((name, p.to_local().detach(), str(dtype).removeprefix("torch.")))
                    continue
                unit.indices[i] = len(ours)
                ours.append((name, p))
                self._shapes.append(tuple(parameter.sharded_size))
                counts.append(parameter.sharded_size.numel())
        super().__init__(ours, foreign)
        self.counts = counts

    def _named(self, name: str, place: str) -> str:
        return f"{name}@{place or 'all'}" if self._all_cut else name

    def shaped(self, names=None) -> list:
        return list(zip(names or [name for name, _ in self.ours], self._shapes))

    @property
    def local(self) -> list:
        """(name, shard)."""
        return [(name, p.detach().to_local()) for name, p in self.ours]


class OpenedShards(Opened):
    """What the replicas of one shard have agreed on."""

    def __init__(self, parameters: OwnShards, shards: Shards, meeting, stage, note: str, options: Options, warmup: int):
        self.shards, self._note = shards, note
        super().__init__(parameters, shards.replicas, meeting, stage, lambda: None, options, ServerOptions(), warmup)

    @property
    def speaks(self) -> bool:
        return self.rank == 0 and self.shards.first

    def rules_of(self, rules) -> list[dict]:
        """Rules match names without position."""
        rules = super().rules_of(rules)
        if not any("@" in name for name, _ in self.parameters.ours):
            return rules
        return [{**rule, "match": rule["match"] + _PLACE} if "match" in rule else rule for rule in rules]

    def ranks(self) -> str:
        shards = self.shards.count
        return (f"{self.world} replica{'s' if self.world > 1 else ''}"
                + (f" of {len(self.shards.ranks)} shards" if shards > 1 else "") + self._note)


class ShardedHandle(Handle):
    """What `laconic.attach` returns for a model of FSDP2. Its state belongs to this rank's shards; `close` restores FSDP's own all-reduce if the
    model's mesh has replicas."""

    @property
    def parameters(self) -> list:
        """(name, shard) of this rank's exchanged parameters, in the order of saved state."""
        return self._opened.parameters.local

    @property
    def shards(self) -> list[int]:
        """The ranks that hold a replica together with this one."""
        return self._opened.shards.ranks

    def explain(self) -> dict:
        explained, hook = super().explain(), self.hook
        for setting in explained.get("settings", ()):
            setting["rule"] = setting["rule"].removesuffix(_PLACE)
        parameters = self._opened.parameters
        groups = [{"module": unit.module, "parameters": [parameters.ours[i][0] for i in unit.indices if i is not None],
                   "elements": sum(parameters.counts[i] for i in unit.indices if i is not None)} for unit in hook.units]
        return {**explained, "replicas": list(self._opened.shards.replica_ranks), "shards": self.shards, "groups": groups,
                "overlap": {"overlapped": hook.overlapped, "inline": sum(hook.inline.values()), "why": dict(hook.inline)}}

    def state_dict(self) -> dict:
        """The state of this rank's shards; a resumed run equals an uninterrupted one bit for bit. Residuals differ between ranks: save one state
        per rank. Fields are those of a DDP model's state, without "layout"."""
        with self.steps.between("state_dict"):
            return sealed(self.worker.state_dict())

    def prepare(self, state: dict):
        """Checks a saved state as load_state_dict does and changes nothing; returns a call that loads it and cannot fail."""
        check_fields("it", state, {"version", "header", "step", "tensors"}, {"rates"})
        own = unsealed(state)
        if self._opened.world == 1:
            own = {**own, "tensors": of_one_rank(own["tensors"])}
        try:
            with self.steps.between("load_state_dict"):
                load = self.worker.prepare(own)
        except LaconicError as error:
            raise self._of_another(error, state) from None
        check_seal(state)

        def continues():
            with self.steps.between("load_state_dict"):
                load()

        return continues

    def _of_another(self, error: LaconicError, state: dict) -> LaconicError:
        """The error for another shard's state, with a parameter's name."""
        tensors = state["tensors"] if isinstance(state["tensors"], dict) else {}
        saved = [key.removeprefix("residual/") for key in tensors if isinstance(key, str) and key.startswith("residual/")]
        own = set(self.worker.session.names)
        strange = next((name for name in saved if name not in own), None)
        if error.name not in ("state_model", "state_rank") or strange is None:
            return error
        bare = strange.partition("@")[0]
        here = next((name for name in own if name.partition("@")[0] == bare), None)
        if here is None:
            return errors.error("state_model", f"{error.message}: the state has {strange}, which this model does not have", error.hint)
        return errors.error("state_model", f"the state is of another shard: it has {strange}, this rank holds {here}",
                            "load on every rank what state_dict() returned on that rank, with the same number of shards")

    def close(self) -> None:
        super().close()
        for unit in self.hook.units:
            unit.give_back()
