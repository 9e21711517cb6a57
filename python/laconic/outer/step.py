# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""`laconic.OuterStep`: rounds between the steps of a torch optimizer."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import sys

import torch

from ..core import environment, errors
from ..core.environment import DISABLED
from ..core.errors import LaconicError
from ..engines.group import speaks_for_node
from ..engines.nodes import refuse, report_unused
from ..exchange.csession import PART, WINDOW, Options
from ..exchange.rates import momentum_twice
from ..exchange.state import fingerprint
from . import exchange, membership, rules, state
from .fragment import Fragment
from .model import Skips, Trained, check_hook, check_optimizer, group_of, keep_gradients_local
from .rounds import Part, Rounds, Settings, cut


class OuterStep:
    """Exchanges changes of parameters, compressed, in place of gradients.

        outer = laconic.OuterStep(model, optimizer, spec="3lc:s=1.5")                       # a round after every step, averaged
        outer = laconic.OuterStep(model, optimizer, every=100, spec="3lc", outer=laconic.nesterov(0.7, 0.9))        # DiLoCo
        for batch in loader: ...; optimizer.step(); optimizer.zero_grad()                   # rounds follow optimizer.step()
        outer.close()

    Every rank trains with its own gradients and its own optimizer state. A round takes each rank's change since the last one, what the
    parameters were less what they are, encodes it with error feedback, and gives the mean over all ranks to the outer rule as the
    gradient of the anchor, a float32 copy of the parameters that is bit-identical on all ranks. Parameters then take the anchor.

    Use it with a plain model, or with DistributedDataParallel over the same group, whose gradients then stay local for good. `p.grad`,
    clipping and learning rates are this rank's own. docs/guide/outer-steps.md.
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None, *, spec: str | None = None, down: str | None = None,
                 every: int = 1, outer="average", fragments=1, delay: int = 0, alpha: float = 0.0, warmup: int = 0, group=None, join: bool = False, source: int | None = None,
                 sync_parameters: bool = True, average_buffers: bool = False,
                 on_non_finite: str = "raise", hook: bool = True, scaler=None, seed: int = 0, small_elements: int = 4096, strategy: str = "auto",
                 threads: int | str = "auto", window: int = WINDOW, part: int = PART, rules=None, control: str | None = None,
                 record: str | os.PathLike | None = None, quiet: bool = False, nodes: str | int | None = None, **options):
        """Collective: every rank of the group creates it with the same arguments, before its first backward(), and before it loads a state.

        Args:
            model: a module, or a DistributedDataParallel wrapper. Its trainable parameters are float32, bfloat16 or float16, on one device.
                A wrapper over another group than `group` still averages its gradients: use that inside a cluster.
            optimizer: any optimizer of torch that holds all trainable parameters.
            spec: codec of the changes (`laconic list`). "none": uncompressed. Default: LACONIC_SPEC.
            down: spec of the means that owners send, as in `laconic.attach`; implies "two_shot". Default: where the spec is `3lc`, at any s,
                "3lc:s=1.0", unless `strategy` is "gather_all": what the way down holds back is held back for all ranks. Else `spec`.
            every: optimizer steps per round.
            outer: "average", the anchor becomes the mean of the ranks' parameters; laconic.nesterov(lr, momentum), DiLoCo's rule; or a
                function from parameters to an optimizer, which steps the anchor.
            fragments: number F of runs of parameters, of about equal size, of which one is exchanged every every/F steps, in turn; or a list of
                lists of modules.
            delay: steps by which a round's mean may be late, at most every/F: it travels while training goes on. 0: optimizer.step() waits.
            alpha: share of its own change that a rank keeps in a round: parameters = anchor + alpha * (own - anchor). Steps since the change was
                taken, which `delay` allows, are kept in any case.
            warmup: for this many first steps, every step is followed by a round (post-local SGD).
            group: the ranks that exchange. Default: the wrapper's group, else all ranks.
            join: True on a newcomer, while the others call `regroup` with the same group: parameters and buffers, anchor, outer rule and counters
                are those of `source`, and its residuals are zero.
            source: of a newcomer, as in `regroup`.
            sync_parameters: True: all ranks start with rank 0's parameters and buffers. False: different parameters are an error.
            average_buffers: buffers of a floating type become their mean in every round, uncompressed.
            on_non_finite: what follows a round in which some rank's change is not finite. All ranks drop it, and parameters return to the
                anchor. "raise": optimizer.step() raises then, on all ranks; "skip": training goes on.
            hook: False: rounds follow `after_step()`, not `optimizer.step()`. For several optimizers; `optimizer` may be None then.
            scaler: the torch GradScaler in use. A step that it skips on a rank counts as a step without a change. Required with a GradScaler:
                ranks would fall out of step without it.
            seed, small_elements, strategy, threads, window, part, rules, control, record, quiet: as in `laconic.attach`.
            nodes: "auto" and "off" are taken, others refused: the exchange is flat.
            options: settings of the codec, as in `OuterStep(model, optimizer, spec="topk", ratio=0.01)`.

        Raises:
            LaconicError: on every rank, if one rank cannot create it or if ranks differ.
        """
        disabled = environment.disabled()
        settings = Settings(every, outer, fragments, delay, alpha, warmup, bool(sync_parameters), bool(average_buffers), on_non_finite)
        call = membership.Call("join" if join else "create", source)
        refusal = own_group = None
        pieces: list[Fragment] = []
        try:
            own_group = group_of(model, group)
            settings.check()
            refuse(nodes, "OuterStep exchanges flat")
            trained = self._trained = Trained(model, own_group)
            #: torch's own, inside of what frameworks wrap around it; None: several, or none was given
            self.optimizer = check_optimizer(optimizer, trained) if hook or optimizer is not None else None
            for run in cut(trained, fragments):
                pieces.append(Fragment([trained.names[i] for i in run], [trained.parameters[i] for i in run], outer, keeps_own=delay > 0 or alpha > 0))
            check_hook(trained.ddp)
            refusal = call.refusal() or membership.check_ddp(join and trained.ddp is not None)
        except LaconicError as error:
            refusal = error
        meeting = membership.met(own_group, disabled, refusal, "join" if join else "create its OuterStep")
        self.spec = "none" if disabled else spec if spec is not None else os.environ.get("LACONIC_SPEC", "")
        self._asked = Options(spec=self.spec, keys={} if disabled else options, seed=seed, small_elements=small_elements, strategy=strategy,
                              down=None if disabled else exchange.way_down(self.spec, strategy, down), threads=threads, window=window, part=part,
                              rules=[] if disabled else rules, control="" if disabled else control, record=record)
        self.settings, self._rounds = settings, Rounds(settings, [], trained.float_buffers)
        self.closed = False  #: by close()
        exchanges = membership.opened(own_group, meeting, self._asked, pieces, trained.stage, disabled)
        self._rounds.parts += [Part(piece, one) for piece, one in zip(pieces, exchanges)]
        try:
            self._begin(call)
        except RuntimeError as error:
            self._close_exchanges()
            raise membership.failed(error) from error
        self._of_ddp = trained.ddp is not None
        keep_gradients_local(trained.ddp)
        trained.ddp = None  # it may be collected before its optimizer is
        self._ends: list = []
        if hook:
            self._ends.append(self.optimizer.register_step_post_hook(self._stepped).remove)
        self._scaler = scaler
        if scaler is not None and self.optimizer is not None:
            self._ends.append(Skips(scaler, self.optimizer, lambda: self.step, self.step_skipped).end)
        if self.rank == 0 and not quiet:
            environment.say(_described(settings, self._exchange, disabled))
        if self.rank == 0 and (warning := _momentum_twice(self._rounds)) is not None:
            environment.say(warning, logging.WARNING)

    def _begin(self, call: membership.Call) -> None:
        """All ranks have the same settings and the same anchor."""
        trained, one = self._trained, self._exchange
        if call.what == "join":
            adoption, _ = membership.received(one, call, self._rounds, trained)
            adoption.apply(newcomer=True)
        else:
            membership.agreed_source(one, call)
            self._same_parameters()
            for part in self._rounds.parts:
                part.fragment.take_parameters()
        if one.world == 1 or speaks_for_node():
            environment.report_unknown()
            report_unused("OuterStep")

    def _same_parameters(self) -> None:
        trained = self._trained
        self._exchange.agree({**self.settings.by_name(), "the number of buffers": len(trained.buffers)})
        if self.settings.sync_parameters:
            for tensor in (*trained.parameters, *trained.buffers):
                self._exchange.broadcast(tensor)
            return
        said = self._exchange.gather_texts(fingerprint(zip(trained.names, trained.parameters)))
        other = next((rank for rank, text in enumerate(said) if text != said[0]), None)
        if other is not None:
            raise errors.error("ranks_disagree", f"the parameters of rank {other} differ from those of rank 0",
                               "sync_parameters=True copies those of rank 0 to all ranks")

    @property
    def _exchange(self):
        return self._rounds.parts[0].exchange

    # ---- training ---------------------------------------------------------------------------------------------------------------------

    def _stepped(self, _optimizer, _arguments, _keywords) -> None:
        """torch's post hook."""
        if self._scaler is None and self.step == 0 and _called_by_scaler():
            raise errors.error("invalid_argument", "a GradScaler calls optimizer.step(), and OuterStep does not have it: ranks would fall out of step "
                               "when it skips one", "pass it: OuterStep(..., scaler=scaler)")
        self.after_step()

    def step_skipped(self) -> None:
        """A step without a change on this rank: as `after_step`, and counted. With `scaler=`, it is called where the scaler skips."""
        self._rounds.counts.skipped_steps += 1
        self.after_step()

    def after_step(self) -> None:
        """A step of training has ended, which a round may follow. With hook=True, optimizer.step() calls it. Collective: every rank makes the
        same number of steps.

        Raises:
            LaconicError: on every rank. The round has failed, or some rank's change was not finite. Parameters are the anchor then, which
                has moved by what was delivered to all ranks; the rest is in the residuals. After a failure of the network, which leaves the
                anchor where it was, every later round fails.
        """
        self._check_open()
        self._rounds.after_step()

    def sync(self) -> None:
        """Ends rounds that are under way, and makes one of all that has changed since its last: replicas are equal after it. For an evaluation, a
        checkpoint, or the end. The schedule stays. Collective: every rank calls it after the same step.
        """
        self._check_open()
        self._rounds.sync()
        membership.say_goodbye(self._rounds, leaves=False)

    def regroup(self, group, source: int | None = None) -> None:
        """Goes on with the ranks of another group, after members have come, left or died. Every member of the new group calls it between two
        steps, or after a failed round, while newcomers create theirs with `join=True`. Rounds under way end first, or are undone.

        All ranks take anchor, outer rule and number of steps of `source`, a rank of the new group; default: the first that is no newcomer. A rank
        keeps its parameters, and what it has not delivered: its residuals, and those of means that it owned, times the old number of ranks.
        What codecs keep the same on all ranks starts from the beginning. While it runs, memory for another anchor is taken.

        Raises:
            LaconicError: on every rank. Some rank did not come within the group's timeout, died, or made another call. This OuterStep has then
                what it had, and may regroup again, with another group.
        """
        self._check_open()
        call, refusal = membership.Call("regroup", source), None
        try:
            group = group_of(None, group)
            refusal = call.refusal() or membership.check_ddp(self._of_ddp)
        except LaconicError as error:
            refusal = error
        membership.regrouped(group, call, self._asked, self._rounds, self._trained, environment.disabled(), refusal)

    def leave(self) -> None:
        """Says goodbye, and closes this OuterStep: a round of everything, as `sync()`, which every other rank calls meanwhile. What is left of this rank's
        residuals goes to them uncompressed, and they deliver it in later rounds. Then they may regroup without this rank.

        Raises:
            LaconicError: on every rank; the round has failed, and the OuterStep is open.
        """
        self._check_open()
        self._rounds.sync()
        membership.say_goodbye(self._rounds, leaves=True)
        self.close()

    @contextlib.contextmanager
    def at_anchor(self):
        """A context in which parameters are the anchor, for an evaluation between two rounds. Afterwards they have their own values. Do not train
        or synchronise inside. Not collective.
        """
        self._check_open()
        with contextlib.ExitStack() as stack:
            for part in self._rounds.parts:
                stack.enter_context(part.fragment.at_anchor())
            yield

    def _check_open(self) -> None:
        if self.closed:
            raise errors.error("invalid_argument", "this OuterStep is closed", "create another one, on a newly wrapped model")

    # ---- what users ask ---------------------------------------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """Number of steps since it was created; after load_state_dict, since the saved run's was."""
        return self._rounds.counts.inner_steps

    @property
    def rank(self) -> int:
        return self._exchange.rank

    @property
    def at_round(self) -> bool:
        """Whether the last step was followed by a round of everything: then parameters are the anchor, on all ranks."""
        return self._rounds.at_round

    @property
    def parameters(self) -> list:
        """(name, tensor) of what is trained, in the model's order."""
        return list(zip(self._trained.names, self._trained.parameters))

    @property
    def anchor(self) -> dict[str, torch.Tensor]:
        """Float32 parameters after the last round, by name: the memory itself."""
        return {name: anchor.detach() for part in self._rounds.parts for name, anchor in zip(part.fragment.names, part.fragment.anchors)}

    def stats(self) -> dict:
        """Counters: those of `Handle.stats()`, whose steps are rounds here, and

        inner_steps, rounds, dropped_rounds (not finite), failed_rounds, skipped_steps (by the GradScaler, on this rank);
        seconds_per_round, of the exchange; exposed_seconds, what optimizer.step() waited in all; ratio_to_ddp: the bytes that
        DistributedDataParallel would have sent in as many steps, over those sent. Bytes count since the last regroup.
        """
        return self._rounds.stats()

    def explain(self) -> dict:
        """The plan and its reasons: the keys of `Handle.explain()` of one round, `every`, `outer`, `fragments`, `delay`, `alpha`, `anchor_bytes`, the memory of anchor and change,
        and `dense_bytes_of_a_round`, what a rank would send in a round without compression.
        """
        return self._rounds.explain()

    def state_dict(self) -> dict:
        """What this rank needs, with its model's and its optimizer's state_dict, to continue bit for bit: anchor, outer optimizer, residuals and
        counters. Residuals differ between ranks, and so do parameters between two rounds: save all three on every rank. Waits for means that are
        under way, and raises LaconicError if such a round has failed, which then has ended.
        """
        self._check_open()
        return state.saved(self._rounds)

    def load_state_dict(self, saved: dict) -> None:
        """Restores this rank's state_dict; load the states of the model and the optimizer as well, in any order.

        Raises:
            LaconicError: the state belongs to another rank, world, model or spec, or is damaged. Nothing is changed then.
        """
        self.prepare(saved)()

    def prepare(self, saved: dict):
        """Checks a saved state as load_state_dict does. Returns a call that loads it and cannot fail."""
        self._check_open()
        return state.prepared(saved, self._rounds)

    def gather_texts(self, text: str) -> list[str]:
        """Every rank's text (at most 500 bytes of UTF-8), in rank order. Collective: every rank calls it between two steps."""
        self._check_open()
        return self._exchange.gather_texts(text)

    def close(self) -> None:
        """Ends the rounds and frees the memory of the exchange; stats() and explain() stay available. Gradients of a DistributedDataParallel
        model stay local: wrap the model again for another run. Every rank calls it.
        """
        if self.closed:
            return
        self.closed = True
        for end in self._ends:
            end()
        self._close_exchanges()

    def _close_exchanges(self) -> None:
        membership.close(part.exchange for part in self._rounds.parts)

    def __getstate__(self):
        raise errors.error("unsupported", "an OuterStep cannot be copied or pickled", "save state_dict() instead")


def _described(settings: Settings, one, disabled: bool) -> str:
    text = "a round after every step" if settings.every == 1 else f"a round after every {settings.every} steps"
    if settings.count > 1:
        text += f", of {settings.count} fragments in turn"
    if settings.delay:
        text += f", means up to {settings.delay} steps late"
    return f"{text}, {rules.named(settings.outer)}: {one.describe()}" + (f" ({DISABLED})" if disabled else "")


def _momentum_twice(rounds: Rounds) -> str | None:
    """The outer rule and a codec that both accumulate. The inner optimizer accumulates something else, gradients of this rank."""
    for part in rounds.parts:
        fragment, rule = part.fragment, part.fragment.rule
        names = {id(anchor): name for name, anchor in zip(fragment.names, fragment.anchors)}
        if part.exchange.world > 1 and isinstance(rule, torch.optim.Optimizer):
            found = momentum_twice(f"the outer {type(rule).__name__}", rule.param_groups, names, part.exchange.explain(), "changes", 'train with outer="average"')
            if found is not None:
                return found
    return None


def _called_by_scaler() -> bool:
    """Whether a GradScaler is among the callers of the running optimizer.step()."""
    frame = sys._getframe(2)  # noqa: SLF001
    for _ in range(12):
        if frame is None:
            return False
        if frame.f_code.co_name == "_maybe_opt_step":
            return True
        frame = frame.f_back
    return False
