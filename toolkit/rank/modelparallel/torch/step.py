"""@smp.step: the rank with partition 0 runs the user's function once for each microbatch, the others serve its calls.

"simple" runs all forward passes, then all backward passes. "interleaved" runs a backward pass as soon as it can, and
has at most active_microbatches under way. What the function returns goes to all ranks of the pipeline group.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from toolkit.rank.frameworks.torch.tensors import pytree
from toolkit.rank.modelparallel import world
from toolkit.rank.modelparallel.errors import PeerInOtherCall, PeerLost, SMPError
from toolkit.rank.modelparallel.objects import COLLECTIVES, STEP, mutual_wait_error
from toolkit.rank.modelparallel.recorder import Recorder
from toolkit.rank.modelparallel.torch import nodes, wire
from toolkit.rank.modelparallel.torch.chain.shortcut import OBSERVED, SERVER, Shortcut
from toolkit.rank.modelparallel.torch.messages import RemoteStepError
from toolkit.rank.modelparallel.torch.microbatches import UNWIND_S, Arguments, StepRun, make_random_states
from toolkit.rank.modelparallel.torch.order import StepOrders, Task
from toolkit.rank.modelparallel.torch.remote import RpcAgent
from toolkit.rank.modelparallel.torch.saved import SavedBytes
from toolkit.rank.modelparallel.torch.states import PART
from toolkit.rank.modelparallel.torch.step_outputs import Splitter, detach_tensors, merge_outputs
from toolkit.rank.modelparallel.torch.tensor import equal_arguments

StepResult = tuple[str, list[Any], bool]  # The way in which a step ran, its results, True if it had a backward pass.


class StepBegin(NamedTuple):
    """The first message of a step."""

    number: int
    """The step's number."""
    partitions_model: bool
    """The model is partitioned first."""
    path: str
    """The way in which the step runs (Shortcut.choose)."""
    kind: int
    """Equal for steps that do the same, 0 if it does not matter."""
    added: dict[str, bool]
    """The paths at which the script changed the model since the last good step; True: wrong on one rank alone."""


class StepEnd(NamedTuple):
    """The last message of a step."""

    number: int
    """The step's number."""
    skeleton: bytes = b""
    """The result without its tensors (wire.pack)."""
    metas: list[wire.TensorMeta] = []
    """Of the result's tensors."""
    ran_backward: bool = False
    """The step had a backward pass."""
    state: bytes = b""
    """The state of the script's random numbers after the step, empty: as before it."""
    failure: str = ""
    """The reason why the step failed."""

    @property
    def is_elsewhere(self) -> bool:
        """For Messenger.receive: the sender has ended its step, and is not in another collective."""
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
        self, function: Callable[..., Any], unsplit: tuple[str, ...], axes: dict[str, int], detach_outputs: bool
    ) -> None:
        self.function = function
        self.detach_outputs = detach_outputs
        self._unsplit = unsplit
        self._axes = axes

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run a step. All ranks of a pipeline group call it together; partition 0's arguments count."""
        return get_runner().run(self, args, kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """A step may be a method."""
        return self if instance is None else functools.partial(self, instance)

    def once(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function with one microbatch's arguments."""
        output = self.function(*args, **kwargs)
        return detach_tensors(output) if self.detach_outputs else output

    def split(self, args: tuple[Any, ...], kwargs: dict[str, Any], count: int) -> list[Arguments]:
        """Return the arguments of *count* microbatches."""
        return Splitter(self.function, count, self._unsplit, self._axes).split(args, kwargs)


class StepRunner:
    """Runs the steps of this process."""

    def __init__(self, this_world: world.World) -> None:
        self.world = this_world
        self.device = _device(this_world.local_rank)
        is_free = not this_world.cfg.deterministic_server
        links_calls = is_free and this_world.cfg.tensor_parallel_degree == 1 and nodes.record_hook_use()
        self.agent = RpcAgent(
            this_world.messenger,
            this_world.group("pp"),
            self.device,
            keeps_outputs=is_free,
            links_calls=links_calls,
        )
        self.is_tracing = False
        self.recorder: Recorder | None = None
        self.shortcut: Shortcut | None = None
        self.parameter_bytes = 0  # Of this rank, once the model is partitioned.
        self.number = -1  # Of the step under way, or the last one.
        self.is_under_way = False
        self._added: dict[str, bool] = {}  # StepBegin.added of this rank.
        self._run: StepRun | None = None
        self._backwards = 0
        self.orders = StepOrders(
            this_world.messenger,
            this_world.group("tp"),
            deterministic=this_world.cfg.deterministic_server,
            on_label=self.agent.scheduler.reconsider,
        )
        self._kinds: dict[Any, int] = {}
        this_world.messenger.on_lost(self._on_lost)

    @property
    def model(self) -> Any:
        """The DistributedModel, None before there is one."""
        return self.agent.model

    def attach(self, model: Any) -> None:
        """Run the steps of *model*, a DistributedModel.

        Raises:
            SMPError: there is another.
        """
        if self.agent.model is not None:
            raise SMPError(
                "expected one DistributedModel in this process, found a second: wrap one module that has both"
            )
        self.agent.model = model
        this_world = self.world
        self.agent.scheduler.recorder = self.recorder = Recorder(
            this_world.folder,
            rank=this_world.rank,
            pp_rank=this_world.rank_in("pp"),
            rdp_rank=this_world.rank_in("rdp"),
            pipeline=this_world.cfg.pipeline,
            meter=SavedBytes(model.module),
        )
        self.shortcut = Shortcut(model, this_world, self.device, self.recorder)

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
                self.shortcut.stop_observing()
            self.is_under_way = False
            self._run = None
            self.agent.end_step()
        self._added = {}
        if self.recorder is not None:
            count = self.world.cfg.microbatches
            is_served = path in (SERVER, OBSERVED)
            self.recorder.end(
                path="server" if is_served else "chain",
                microbatches=count,
                parameter_bytes=self.parameter_bytes,
                server_reason=self.shortcut.reason if is_served and self.shortcut is not None else "",
            )
        if ran_backward and self.model is not None:
            self.model.run_step_callbacks()
        return merge_outputs(outputs)

    def pass_gate(self, task: Task) -> None:
        """Return when *task* may begin its backward pass."""
        if self._run is not None:
            self._run.pass_gate(task)

    def ran_backward(self) -> None:
        """Count a call of model.backward."""
        self._backwards += not self.is_tracing

    def _lead(self, function: StepFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> StepResult:
        followers = self.world.group("pp")[1:]
        path = SERVER
        if self.shortcut is not None and function.detach_outputs:
            path = self.shortcut.choose(function, (args, kwargs))
        if path not in (SERVER, OBSERVED):
            self._send(followers, StepBegin(self.number, False, path, 0, self._added))
            return self._run_by_plan(path, function, args, kwargs)
        try:
            equal_arguments.check_equal_arguments(args, kwargs, is_first=self.number == 0)
            arguments = function.split(args, kwargs, self.world.cfg.microbatches)
            partitions_model = self.model is not None and not self.model.partitioned
            kind = self._kind(function, args, kwargs)
            self._send(followers, StepBegin(self.number, partitions_model, path, kind, self._added))
            if partitions_model:
                self._partition(lambda: function.function(*arguments[0][0], **arguments[0][1]))
            states = make_random_states(len(arguments))
            if self.shortcut is not None and path == OBSERVED:
                self.shortcut.observe(arguments, states)
            if followers:
                self._run = StepRun(
                    self.agent,
                    self.orders,
                    self.world.cfg,
                    step=self.number,
                    kind=kind,
                    function=function.once,
                    arguments=arguments,
                    states=states,
                )
                outputs = self._run.outputs()
            else:
                outputs = [function.once(*args, **kwargs) for args, kwargs in arguments]
            skeleton, tensors = wire.pack(outputs if followers else None, self.model)
        except BaseException as error:
            if not isinstance(error, PeerLost):
                self._send(followers, StepEnd(self.number, failure=_describe_error(error, self.world.rank)))
            raise
        # Copies: the script may change what it gets while they are being sent.
        copies = [tensor.detach().clone() for tensor in tensors]
        is_random = self._run is not None and self._run.is_random
        state = torch.get_rng_state().numpy().tobytes() if is_random or partitions_model else b""
        end = StepEnd(self.number, skeleton, wire.describe(copies), self._backwards > 0, state)
        self._send(followers, end, wire.get_buffers(copies))
        if self.shortcut is not None and path == OBSERVED:
            self.shortcut.plan_steps(self._backwards, is_random)
        return path, outputs, self._backwards > 0

    def _run_by_plan(self, path: str, function: StepFunction, args: Any, kwargs: Any) -> StepResult:
        assert self.shortcut is not None
        count = self.world.cfg.microbatches
        outputs, ran_backward = self.shortcut.run(
            path,
            self.number,
            function.function,
            (args, kwargs),
            split=lambda args, kwargs: function.split(args, kwargs, count),
            states=lambda: make_random_states(count),
        )
        return path, [detach_tensors(output) for output in outputs], ran_backward

    def _follow(self, function: StepFunction, args: Any, kwargs: Any) -> StepResult:
        scheduler = self.agent.scheduler
        state = torch.get_rng_state()
        message = self._receive(instead=(*COLLECTIVES, PART))
        path = SERVER
        if isinstance(message.payload, StepBegin):
            self.number, path = message.payload.number, message.payload.path
            if path not in (SERVER, OBSERVED):
                return self._run_by_plan(path, function, args, kwargs)
            self.agent.refusal = self._compare_additions(message.payload.added)
            if message.payload.partitions_model:
                self._partition(None)
            if self.shortcut is not None and path == OBSERVED:
                self.shortcut.observe()
            scheduler.open(self.number, self.orders.begin(self.number, message.payload.kind))
            within_s = None
            try:
                message = self._receive()
            except BaseException as error:
                scheduler.abort(error)
                within_s = UNWIND_S if isinstance(error, PeerLost) else None
                raise
            finally:
                if isinstance(message.payload, StepEnd) and message.payload.failure:
                    scheduler.abort(RemoteStepError(message.payload.failure))
                own_failures = dict(self.agent.own_failures)
                scheduler.close(within_s)
                torch.set_rng_state(state)
        else:
            own_failures = {}
        end: StepEnd = message.payload
        if end.failure:
            raise own_failures.get(end.failure) or RemoteStepError(end.failure)
        if self.agent.refusal:
            raise SMPError(self.agent.refusal)
        self.orders.end()
        if end.state:  # All ranks go on with the same random numbers.
            torch.set_rng_state(torch.frombuffer(bytearray(end.state), dtype=torch.uint8))
        if self.shortcut is not None and path == OBSERVED:
            self.shortcut.plan_steps()
        tensors = wire.rebuild_tensors(end.metas, message.buffers, self.device)
        return path, wire.unpack(end.skeleton, tensors, self.model), end.ran_backward

    def _compare_additions(self, leader_added: dict[str, bool]) -> str:
        """Return the reason why this rank cannot take part, "" if it can. *leader_added*: of the first rank."""
        added = self._added
        unlike = {
            path
            for path in leader_added.keys() ^ added.keys()
            if leader_added.get(path, False) or added.get(path, False)
        }
        top = sorted(path.removeprefix("module.") for path in unlike if path.rpartition(".")[0] not in unlike)
        if not top:
            return ""
        return (
            "expected all ranks to make every change of the partitioned model, found modules or parameters that came "
            f"on one of the ranks {self.world.group('pp')[0]} and {self.world.rank} alone: {', '.join(top)}. Make them "
            "on every rank"
        )

    def _receive(self, instead: Sequence[str] = ()) -> Any:
        first = self.world.group("pp")[0]
        while True:
            try:
                message = self.world.messenger.receive(first, STEP, None, self.orders.check_interval_s, instead)
            except TimeoutError:
                self.orders.check_progress(self.agent.scheduler)
                continue
            except PeerInOtherCall as error:
                doing = "in the gathering of a state" if error.kind == PART else f"in smp.{error.kind}()"
                raise mutual_wait_error(self.world, "in a step", first, doing) from error
            # If a step failed here before it received its end, that message is still there.
            if not isinstance(message.payload, StepEnd) or message.payload.number >= self.number:
                return message

    def _kind(self, function: StepFunction, args: Any, kwargs: Any) -> int:
        if not self.world.cfg.deterministic_server:
            return 0
        leaves, spec = pytree.tree_flatten((args, kwargs))
        shapes = tuple(tuple(leaf.shape) if isinstance(leaf, torch.Tensor) else type(leaf) for leaf in leaves)
        is_training = self.model is not None and self.model.training
        key = (function, str(spec), shapes, torch.is_grad_enabled(), is_training)
        return self._kinds.setdefault(key, len(self._kinds) + 1)

    def _send(self, followers: Iterable[int], payload: Any, buffers: Any = ()) -> None:
        for rank in followers:
            self.world.messenger.send(rank, STEP, None, payload, buffers)

    def _partition(self, call_once: Callable[[], Any] | None) -> None:
        self.model.partition(call_once, self._tracing)
        if self.shortcut is not None:
            self.shortcut.record_partition()

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
        self.agent.scheduler.abort(lost)
        run = self._run
        if run is not None:
            run.fail(lost)


def is_tracing() -> bool:
    """True while the model is traced for its partition, in the first step."""
    return _runner is not None and _runner.is_tracing


_runner: StepRunner | None = None


def get_runner() -> StepRunner:
    """Return this process's StepRunner; it is made at the first call after smp.init()."""
    global _runner
    this_world = world.current()
    if _runner is None or _runner.world is not this_world:
        _runner = StepRunner(this_world)
    return _runner


def _describe_error(error: BaseException, rank: int) -> str:
    if isinstance(error, RemoteStepError):
        return str(error)
    return f"the step failed on rank {rank}: {type(error).__name__}: {error}"


def _device(local_rank: int) -> torch.device:
    if torch.cuda.is_available():
        return torch.device("cuda", local_rank % torch.cuda.device_count())
    return torch.device("cpu")
