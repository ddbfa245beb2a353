"""@smp.step: the rank with partition 0 runs the user's function once for each microbatch, the others serve its calls.

"simple" runs all forward passes, then all backward passes. "interleaved" runs a backward pass as soon as it can, and
has at most active_microbatches under way. What the function returns goes to all ranks of the pipeline group.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_flatten

from toolkit.rank.modelparallel import world
from toolkit.rank.modelparallel.errors import Elsewhere, PeerLost, SMPError
from toolkit.rank.modelparallel.objects import COLLECTIVES, STEP, apart
from toolkit.rank.modelparallel.recorder import Recorder
from toolkit.rank.modelparallel.torch import wire
from toolkit.rank.modelparallel.torch.chain.shortcut import SERVER, WATCHED, Shortcut
from toolkit.rank.modelparallel.torch.messages import RemoteStepError
from toolkit.rank.modelparallel.torch.microbatches import UNWIND_S, Call, Run, random_states
from toolkit.rank.modelparallel.torch.order import Orders, Task
from toolkit.rank.modelparallel.torch.remote import Remote
from toolkit.rank.modelparallel.torch.saved import SavedBytes
from toolkit.rank.modelparallel.torch.states import PART
from toolkit.rank.modelparallel.torch.step_outputs import Splitter, detached, merged
from toolkit.rank.modelparallel.torch.tensor import equal_arguments

Ran = tuple[str, list[Any], bool]  # How a step ran, what it returned, whether it had a backward pass.


class Begin(NamedTuple):
    """The first message of a step. `decides`: the model is partitioned first. `path`: Shortcut.choose's answer.
    `kind`: equal for steps that do the same, 0: nobody asks. `added`: where the script has changed the model since the
    last step that succeeded, and whether that is wrong on one rank alone."""

    number: int
    decides: bool
    path: str
    kind: int
    added: dict[str, bool]


class End(NamedTuple):
    """The last message of step `number`: what it returned, or why it failed. `state`: of the script's random numbers
    afterwards, empty: those from before it."""

    number: int
    skeleton: bytes = b""
    forms: list[wire.Form] = []
    ran_backward: bool = False
    state: bytes = b""
    failure: str = ""

    @property
    def is_elsewhere(self) -> bool:
        """For Messenger.receive: who sent it has ended its step, and is not in another collective."""
        return False


def step(
    function: Callable[..., Any] | None = None,
    *,
    non_split_inputs: Iterable[str] = (),
    input_split_axes: Mapping[str, int] | None = None,
    detach_outputs: bool = True,
) -> Any:
    """Make *function* a step: it runs once for each microbatch, on all partitions.

    Tensors among its arguments, at any depth, are split along axis 0, or *input_split_axes*[argument]; arguments in
    *non_split_inputs* go whole. An object may have smp_slice(num_mb, mb, axis). Each returned tensor becomes a
    StepOutput, without its graph if *detach_outputs*.
    """
    if function is None:
        return functools.partial(
            step, non_split_inputs=non_split_inputs, input_split_axes=input_split_axes, detach_outputs=detach_outputs
        )
    return functools.wraps(function)(
        StepFunction(function, tuple(non_split_inputs), dict(input_split_axes or {}), detach_outputs)
    )


class StepFunction:
    """A function decorated with @smp.step."""

    def __init__(
        self, function: Callable[..., Any], whole: tuple[str, ...], axes: dict[str, int], detach_outputs: bool
    ) -> None:
        self.function = function
        self.detach_outputs = detach_outputs
        self._whole = whole
        self._axes = axes

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run a step. All ranks of a pipeline group call it together; partition 0's arguments count."""
        return runner().run(self, args, kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """A step may be a method."""
        return self if instance is None else functools.partial(self, instance)

    def once(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function with one microbatch's arguments."""
        found = self.function(*args, **kwargs)
        return detached(found) if self.detach_outputs else found

    def split(self, args: tuple[Any, ...], kwargs: dict[str, Any], count: int) -> list[Call]:
        """Return the arguments of *count* microbatches."""
        return Splitter(self.function, count, self._whole, self._axes).split(args, kwargs)


class Runner:
    """Runs the steps of this process."""

    def __init__(self, here: world.World) -> None:
        self.world = here
        self.device = _device(here.local_rank)
        is_free = not here.cfg.deterministic_server
        links = is_free and here.cfg.tensor_parallel_degree == 1
        self.remote = Remote(here.messenger, here.group("pp"), self.device, keeps=is_free, links=links)
        self.is_tracing = False
        self.recorder: Recorder | None = None
        self.shortcut: Shortcut | None = None
        self.parameter_bytes = 0  # Of this rank, once the model is partitioned.
        self.number = -1  # Of the step under way, or the last one.
        self.is_under_way = False
        self._added: dict[str, bool] = {}  # As of Begin, on this rank.
        self._run: Run | None = None
        self._backwards = 0
        self.orders = Orders(
            here.messenger,
            here.group("tp"),
            deterministic=here.cfg.deterministic_server,
            poke=self.remote.scheduler.poke,
        )
        self._kinds: dict[Any, int] = {}
        here.messenger.on_lost(self._on_lost)

    @property
    def model(self) -> Any:
        """The DistributedModel, None before there is one."""
        return self.remote.model

    def take(self, model: Any) -> None:
        """Run the steps of *model*, a DistributedModel.

        Raises:
            SMPError: there is another.
        """
        if self.remote.model is not None:
            raise SMPError(
                "expected one DistributedModel in this process, found a second: wrap one module that has both"
            )
        self.remote.model = model
        here = self.world
        self.remote.scheduler.recorder = self.recorder = Recorder(
            here.folder,
            rank=here.rank,
            pp_rank=here.rank_in("pp"),
            rdp_rank=here.rank_in("rdp"),
            pipeline=here.cfg.pipeline,
            meter=SavedBytes(model.module),
        )
        self.shortcut = Shortcut(model, here, self.device, self.recorder)

    def run(self, function: StepFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one step of *function* and return its outputs.

        Raises:
            SMPError: a step inside a step, or arguments that cannot be split.
            RemoteStepError: another rank failed.
            PeerLost: another rank ended.
        """
        if self.is_under_way:
            raise SMPError("expected @smp.step functions one after the other, found one called inside another")
        if self.model is not None:
            self._added |= self.model.begin_step()
        self.is_under_way = True
        self.number += 1
        self._backwards = 0
        path = SERVER
        if self.recorder is not None:
            self.recorder.begin()
        try:
            if self.world.rank_in("pp") == 0:
                path, outputs, ran_backward = self._lead(function, args, kwargs)
            else:
                path, outputs, ran_backward = self._follow(function, args, kwargs)
        finally:
            if self.shortcut is not None:
                self.shortcut.forget()
            self.is_under_way = False
            self._run = None
            self.remote.end_step()
        self._added = {}
        if self.recorder is not None:
            count = self.world.cfg.microbatches
            is_served = path in (SERVER, WATCHED)
            self.recorder.end(
                path="server" if is_served else "chain",
                microbatches=count,
                parameter_bytes=self.parameter_bytes,
                why=self.shortcut.why if is_served and self.shortcut is not None else "",
            )
        if ran_backward and self.model is not None:
            self.model.step_ended()
        return merged(outputs)

    def pass_gate(self, task: Task) -> None:
        """Return when *task* may begin its backward pass."""
        if self._run is not None:
            self._run.pass_gate(task)

    def ran_backward(self) -> None:
        """Note a call of model.backward."""
        self._backwards += not self.is_tracing

    def _lead(self, function: StepFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Ran:
        followers = self.world.group("pp")[1:]
        path = SERVER
        if self.shortcut is not None and function.detach_outputs:
            path = self.shortcut.choose(function, (args, kwargs))
        if path not in (SERVER, WATCHED):
            self._tell(followers, Begin(self.number, False, path, 0, self._added))
            return self._by_plan(path, function, args, kwargs)
        try:
            equal_arguments.check(args, kwargs, is_first=self.number == 0)
            calls = function.split(args, kwargs, self.world.cfg.microbatches)
            decides = self.model is not None and not self.model.partitioned
            kind = self._kind(function, args, kwargs)
            self._tell(followers, Begin(self.number, decides, path, kind, self._added))
            if decides:
                self._partition(lambda: function.function(*calls[0][0], **calls[0][1]))
            states = random_states(len(calls))
            if self.shortcut is not None and path == WATCHED:
                self.shortcut.watch(calls, states)
            if followers:
                self._run = Run(
                    *(self.remote, self.orders, self.world.cfg),
                    step=self.number,
                    kind=kind,
                    function=function.once,
                    calls=calls,
                    states=states,
                )
                outputs = self._run.outputs()
            else:
                outputs = [function.once(*args, **kwargs) for args, kwargs in calls]
            skeleton, tensors = wire.pack(outputs if followers else None, self.model)
        except BaseException as error:
            if not isinstance(error, PeerLost):
                self._tell(followers, End(self.number, failure=_said(error, self.world.rank)))
            raise
        # Copies: the script may change what it gets while they are being sent.
        copies = [tensor.detach().clone() for tensor in tensors]
        is_random = self._run is not None and self._run.is_random
        state = torch.get_rng_state().numpy().tobytes() if is_random or decides else b""
        end = End(self.number, skeleton, wire.forms(copies), self._backwards > 0, state)
        self._tell(followers, end, wire.buffers(copies))
        if self.shortcut is not None and path == WATCHED:
            self.shortcut.settle(self._backwards, is_random)
        return path, outputs, self._backwards > 0

    def _by_plan(self, path: str, function: StepFunction, args: Any, kwargs: Any) -> Ran:
        assert self.shortcut is not None
        count = self.world.cfg.microbatches
        outputs, ran_backward = self.shortcut.run(
            path,
            self.number,
            function.function,
            (args, kwargs),
            split=lambda args, kwargs: function.split(args, kwargs, count),
            states=lambda: random_states(count),
        )
        return path, [detached(each) for each in outputs], ran_backward

    def _follow(self, function: StepFunction, args: Any, kwargs: Any) -> Ran:
        scheduler = self.remote.scheduler
        state = torch.get_rng_state()
        message = self._hear(instead=(*COLLECTIVES, PART))
        path = SERVER
        if isinstance(message.payload, Begin):
            self.number, path = message.payload.number, message.payload.path
            if path not in (SERVER, WATCHED):
                return self._by_plan(path, function, args, kwargs)
            self.remote.refusal = self._unlike(message.payload.added)
            if message.payload.decides:
                self._partition(None)
            if self.shortcut is not None and path == WATCHED:
                self.shortcut.watch()
            scheduler.open(self.number, self.orders.begin(self.number, message.payload.kind))
            within_s = None
            try:
                message = self._hear()
            except BaseException as error:
                scheduler.abort(error)
                within_s = UNWIND_S if isinstance(error, PeerLost) else None
                raise
            finally:
                if isinstance(message.payload, End) and message.payload.failure:
                    scheduler.abort(RemoteStepError(message.payload.failure))
                own_failures = dict(self.remote.own_failures)
                scheduler.close(within_s)
                torch.set_rng_state(state)
        else:
            own_failures = {}
        end: End = message.payload
        if end.failure:
            if (own := own_failures.get(end.failure)) is not None:
                raise own
            raise RemoteStepError(end.failure)
        if self.remote.refusal:
            raise SMPError(self.remote.refusal)
        self.orders.end()
        if end.state:  # All ranks go on with the same random numbers.
            torch.set_rng_state(torch.frombuffer(bytearray(end.state), dtype=torch.uint8))
        if self.shortcut is not None and path == WATCHED:
            self.shortcut.settle()
        tensors = wire.tensors_of(end.forms, message.buffers, self.device)
        return path, wire.unpack(end.skeleton, tensors, self.model), end.ran_backward

    def _unlike(self, theirs: dict[str, bool]) -> str:
        """Return why this rank cannot take part, where the pipeline's first rank has changed the model at *theirs*."""
        mine = self._added
        unlike = {path for path in theirs.keys() ^ mine.keys() if theirs.get(path, False) or mine.get(path, False)}
        top = sorted(path.removeprefix("module.") for path in unlike if path.rpartition(".")[0] not in unlike)
        if not top:
            return ""
        return (
            "expected all ranks to make every change of the partitioned model, found modules or parameters that came "
            f"on one of the ranks {self.world.group('pp')[0]} and {self.world.rank} alone: {', '.join(top)}. Make them "
            "on every rank"
        )

    def _hear(self, instead: Sequence[str] = ()) -> Any:
        first = self.world.group("pp")[0]
        while True:
            try:
                message = self.world.messenger.receive(first, STEP, None, self.orders.patience_s, instead)
            except TimeoutError:
                self.orders.look(self.remote.scheduler)
                continue
            except Elsewhere as error:
                doing = "in the gathering of a state" if error.kind == PART else f"in smp.{error.kind}()"
                raise apart(self.world, "in a step", first, doing) from error
            # A step that failed here before its end was heard leaves it behind.
            if not isinstance(message.payload, End) or message.payload.number >= self.number:
                return message

    def _kind(self, function: StepFunction, args: Any, kwargs: Any) -> int:
        if not self.world.cfg.deterministic_server:
            return 0
        leaves, spec = tree_flatten((args, kwargs))
        shapes = tuple(tuple(leaf.shape) if isinstance(leaf, torch.Tensor) else type(leaf) for leaf in leaves)
        is_training = self.model is not None and self.model.training
        key = (function, str(spec), shapes, torch.is_grad_enabled(), is_training)
        return self._kinds.setdefault(key, len(self._kinds) + 1)

    def _tell(self, followers: Iterable[int], payload: Any, buffers: Any = ()) -> None:
        for rank in followers:
            self.world.messenger.send(rank, STEP, None, payload, buffers)

    def _partition(self, call_once: Callable[[], Any] | None) -> None:
        self.model.partition(call_once, self._tracing)
        if self.shortcut is not None:
            self.shortcut.partitioned()

    @contextmanager
    def _tracing(self) -> Iterator[None]:
        """Within the block the model runs whole, on this rank, and smp.is_tracing() is True."""
        self.is_tracing = True
        try:
            yield
        finally:
            self.is_tracing = False

    def _on_lost(self, lost: PeerLost) -> None:
        if lost.said_goodbye and lost.rank not in self.world.group("pp"):
            return
        self.remote.scheduler.abort(lost)
        run = self._run
        if run is not None:
            run.fail(lost)


def is_tracing() -> bool:
    """True while the model is traced for its partition, in the first step."""
    return _runner is not None and _runner.is_tracing


_runner: Runner | None = None


def runner() -> Runner:
    """Return this process's Runner; it is made at the first call after smp.init()."""
    global _runner
    here = world.current()
    if _runner is None or _runner.world is not here:
        _runner = Runner(here)
    return _runner


def _said(error: BaseException, rank: int) -> str:
    if isinstance(error, RemoteStepError):
        return str(error)
    return f"the step failed on rank {rank}: {type(error).__name__}: {error}"


def _device(local_rank: int) -> torch.device:
    if torch.cuda.is_available():
        return torch.device("cuda", local_rank % torch.cuda.device_count())
    return torch.device("cpu")
