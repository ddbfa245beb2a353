"""Calls of modules on other partitions: requests sent and served.

The caller's graph has one node for each call (RemoteNode); its backward sends the outputs' gradients and waits for the
inputs'. The owner's graph begins with a node (Entry) that keeps the inputs' gradients. Where these are nothing but the
outputs' gradients of another call, they go to its owner at once, and the caller waits for that one's answer
(nodes.link). The caller's grad mode, autocast and random numbers go along. Calls in a row run ahead of the caller
(ahead.py).
"""

import contextlib
import functools
import math
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from toolkit.rank.modelparallel.errors import PeerLost, SMPError
from toolkit.rank.modelparallel.messenger import Message
from toolkit.rank.modelparallel.torch import arguments, attributes, wire
from toolkit.rank.modelparallel.torch import remote_tensor as far
from toolkit.rank.modelparallel.torch.messages import (
    BACKWARD,
    CALL,
    FETCH,
    FORGET,
    GIVE_UP,
    GRADIENTS,
    RESULT,
    VALUE,
    Failure,
    Following,
    Gradients,
    Hop,
    Key,
    RemoteStepError,
    Request,
    Result,
    Setting,
    as_remote,
    gradients_message,
)
from toolkit.rank.modelparallel.torch.nodes import Entry, Looks, Onward, RemoteNode, Served
from toolkit.rank.modelparallel.torch.order import Task, Urgency
from toolkit.rank.modelparallel.torch.remote_tensor import Far, Parcel, Place, current, near, place_of
from toolkit.rank.modelparallel.torch.scheduler import Aborted, Scheduler
from toolkit.rank.modelparallel.torch.speculation import (
    Ahead,
    Called,
    Made,
    Next,
    Paths,
    Traces,
    goes_on,
    inputs_of,
    modes,
    request_of,
)
from toolkit.rank.modelparallel.torch.speculation import Place as CallPlace

# Of the calls, or their backward passes, that one request asks for. Each request says all that follow.
MOST_HOPS = 16


class _Region(threading.local):
    checkpointed = again = False


# Whether this thread runs a checkpointed function (activation.py), which the backward pass calls again, and whether
# that does so now.
region = _Region()


class Remote:
    """This rank's end of all calls across partitions.

    *ranks* are the ranks of the pipeline group by their partition. *keeps*: large outputs stay here until somebody
    needs them (far.py). *links*: gradients go from owner to owner (nodes.link), and so do results (ahead.py). That
    depends on the script's hooks, and on when messages come, so it is not for ranks that must all make the same
    requests in the same order.
    """

    def __init__(
        self, messenger: Any, ranks: Sequence[int], device: torch.device, *, keeps: bool = True, links: bool = True
    ) -> None:
        self.scheduler = Scheduler()
        self.model: Any = None  # The DistributedModel, once there is one.
        self.own_failures: dict[str, BaseException] = {}  # Of the step, by what the other ranks know of each.
        self.refusal = ""  # Why this rank answers no call of the step.
        self.ranks = tuple(ranks)
        self.device = device
        self._messenger = messenger
        self._waiting: dict[Key, Task] = {}
        self._served: dict[Key, Served] = {}
        self._keeps = keeps
        self.links = links
        self._kept: dict[Key, Tensor] = {}
        self._released: dict[int, list[Key]] = {}
        self._wanted: dict[str, set[int]] = {}
        self._paths = Paths()
        self._modes: int | None = None  # Of the model in this step.
        self._lock = threading.Lock()  # Of what this rank's tasks and its messages' threads change.
        self._expected: set[Key] = set()  # Calls that run ahead for tasks of this rank,
        self._early: dict[Key, Message] = {}  # and what they gave before a task asked.
        self._given_up: set[Key] = set()  # Calls that ran ahead for tasks of other ranks in vain.
        # Requires a gradient, so that calls whose tensors need none have a node in the graph.
        self._anchor = torch.zeros((), requires_grad=True)
        messenger.on(CALL, self._on_call)
        messenger.on(BACKWARD, self._on_backward)
        messenger.on(RESULT, self._on_response)
        messenger.on(GRADIENTS, self._on_response)
        messenger.on(FETCH, self._on_fetch)
        messenger.on(VALUE, self._on_response)
        messenger.on(FORGET, self._on_forget)
        messenger.on(GIVE_UP, self._on_give_up)

    def call(self, partition: int, module: Any, path: str, args: Any, kwargs: Any) -> Any:
        """Call *module*, which is at *path* on *partition*, with *args* and *kwargs*, and return what it returns."""
        task = self.scheduler.task
        if task is None:
            raise SMPError(
                f"expected module {path or 'the model'} of partition {partition} to be called inside a function with "
                "@smp.step, found a call outside of one: put the call into a step function"
            )
        if region.checkpointed:
            raise SMPError(
                f"expected a checkpointed function to call modules of this rank's partition alone, found a call of "
                f"module {path} of partition {partition}, which would be called again in the backward pass: checkpoint "
                "the modules with smp.set_activation_checkpointing"
            )
        skeleton, tensors = wire.pack((args, kwargs), self.model)
        call = Call(self, task, partition, path, skeleton, Setting.here(), module.training)
        # With gradients, the call is a node of the graph.
        run: Any = functools.partial(RemoteNode.apply, self._anchor, call) if torch.is_grad_enabled() else call.forward
        outputs = run(*map(current, tensors))
        known = arguments.known(args, kwargs, tensors)
        result, contents = wire.unpack(call.result, outputs, self.model, known)
        if call.changed or contents:
            changed = [(tensors[number], outputs[place]) for number, place in call.changed]
            what = f"module {path or 'the model'} of partition {partition}"
            arguments.carry_over(changed, contents, args, kwargs, tensors, module.forward, what)
        attributes.take_over(call.attributes, self.model.module_at, partition)
        if call.failure is not None:
            raise call.failure.exception()
        return result

    def exchange(self, task: Task, rank: int, kind: str, key: Key, payload: Any, buffers: Any = ()) -> Message:
        """Send a request to *rank* and return the response; *task* waits for it without the baton."""
        self._waiting[key] = task
        self._messenger.send(rank, kind, key, payload, buffers)
        return self._reply(task)

    def _reply(self, task: Task, reply: Message | None = None) -> Message:
        """Return *task*'s *reply*, None: it waits for it."""
        if reply is None:
            self.scheduler.wait(task)
            reply, task.reply = task.reply, None
            assert reply is not None
        if isinstance(reply.payload, Failure):
            if reply.payload.state:
                self.scheduler.adopt(task, torch.frombuffer(bytearray(reply.payload.state), dtype=torch.uint8))
            raise reply.payload.exception()
        return reply

    def ask(self, task: Task, rank: int, request: Request, buffers: Sequence[memoryview]) -> tuple[Key, Message]:
        """Return the key and the response of the call that *request* asks *rank* for, which may have run ahead."""
        if not self.links:
            key = task.next_key()
            request = request._replace(released=self.released(rank))
            return key, self.exchange(task, rank, CALL, key, request, buffers)
        if task.ahead is None:
            if self._modes is None:
                self._modes = hash(modes(self.model.module))
            task.ahead = Ahead((task.kind, self._modes))
        ahead: Ahead = task.ahead
        call, last = Called.of(rank, request), ahead.last
        hoped = ahead.expected[0].inputs if ahead.expected else ()
        following = last.before(call, request, buffers, hoped) if last is not None else None
        place = (ahead.kind, ahead.count, call)
        ahead.count += 1
        if following is not None and ahead.expected and _is_expected(ahead.expected[0], following):
            first, *rest = ahead.expected
            ahead.expected = []
            key = first.key
            with self._lock:
                self._expected.discard(key)
                early = self._early.pop(key, None)
                if early is None:
                    self._waiting[key] = task
            ask = functools.partial(self._reply, task, early)
            looks = True
        else:
            self._give_up(task)
            key = task.next_key()
            looks = last is not None and self._paths.learns(last.place, following)
            released = self.released(rank)
            rest = self._following(task, place)
            request = request._replace(released=released, following=tuple(rest), looks=looks)
            ask = functools.partial(self.exchange, task, rank, CALL, key, request, buffers)
        ahead.last = None
        try:
            reply = ask()
        except BaseException:
            self._expect_no_longer(rest)
            raise
        result: Result = reply.payload
        if looks and last is not None:
            self._paths.note(last.place, leaves_traces=result.leaves_traces)
        if rest and not goes_on(result, rest[0]):
            self._expect_no_longer(rest)
            rest = []
        keeps = bool(rest) or self._paths.is_open(place)
        ahead.last = Made(place, result, reply.buffers, keeps=keeps)
        ahead.expected = rest
        return key, reply

    def _give_up(self, task: Task) -> None:
        """What runs ahead of *task* is not what it calls."""
        ahead: Ahead = task.ahead
        if not ahead.expected:
            return
        assert ahead.last is not None
        self._paths.refuse(ahead.last.place)
        rest, ahead.expected = ahead.expected, []
        for rank in sorted({each.rank for each in rest}):
            self._messenger.send(rank, GIVE_UP, None, [each.key for each in rest])
        self._expect_no_longer(rest)

    def _end_calls(self, task: Task) -> None:
        """*task* calls nothing more."""
        ahead: Ahead | None = task.ahead
        if ahead is not None and ahead.last is not None:
            self._give_up(task)
            self._paths.refuse(ahead.last.place)
            ahead.last = None

    def _following(self, task: Task, place: CallPlace) -> list[Following]:
        """Return the calls of *task* that run after that at *place*."""
        found: list[Following] = []
        while len(found) < MOST_HOPS and (following := self._paths.after(place)) is not None:
            call = following.call
            found.append(
                Following(
                    rank=call.rank,
                    key=task.next_key(),
                    inputs=following.inputs,
                    after=following.after,
                    path=call.path,
                    skeleton=call.skeleton,
                    setting=call.setting,
                    is_training=call.is_training,
                    wanted=frozenset(self.wanted(call.path)),
                    released=self.released(call.rank),
                )
            )
            place = (place[0], place[1] + 1, call)
        with self._lock:
            self._expected.update(each.key for each in found)
        return found

    def _expect_no_longer(self, calls: Sequence[Following]) -> None:
        """Nobody will ask for *calls*, which run ahead, or would have."""
        with self._lock:
            for each in calls:
                self._expected.discard(each.key)
                self._early.pop(each.key, None)
        for each in calls:  # Its rank may not have been told.
            self._released.setdefault(each.rank, []).extend(each.released)

    def fetch(self, place: Place) -> Tensor:
        """Return the data of the tensor at *place*."""
        if place.rank == self._messenger.me:
            return self._kept[place.key]
        task = self.scheduler.task
        if task is None:
            raise SMPError(
                "expected a tensor of a step to be used inside it, or returned by it, found one used later whose data "
                "stayed on another rank: return it from the step function"
            )
        reply = self.exchange(task, place.rank, FETCH, task.next_key(), place.key)
        if task.ahead is not None and task.ahead.last is not None:
            task.ahead.last.looked(place, reply.buffers[0])
        (found,) = wire.tensors_of([reply.payload], reply.buffers, self.device)
        return found

    def release(self, place: Place) -> None:
        """Nobody here needs the tensor at *place* any more; its rank learns it with the next request."""
        self._released.setdefault(place.rank, []).append(place.key)

    def released(self, rank: int) -> list[Key]:
        """Return what *rank* need not keep for this rank any more."""
        return self._released.pop(rank, []) if self._released else []

    def wanted(self, path: str) -> set[int]:
        """Return the numbers of the outputs of the module at *path* whose data was needed here before."""
        return self._wanted.setdefault(path, set())

    def settle(self, task: Task) -> None:
        """End *task*'s calls, and fetch what of them is still in use: afterwards nobody keeps it."""
        self._end_calls(task)
        for each in task.fars:
            far = each()
            if far is not None:
                far.data_here()

    def keep(self, key: Key, tensor: Tensor) -> Place | None:
        """Keep *tensor* here under *key*; None: it is small, or somebody else's, and goes as data."""
        is_parameter = tensor.is_leaf and tensor.requires_grad
        if not self._keeps or is_parameter or tensor.numel() * tensor.element_size() < far.FROM_BYTES:
            return None
        self._kept[key] = tensor.detach()
        return Place(self._messenger.me, key)

    def far(self, form: wire.Form, place: Place, on_fetch: Callable[[], None] = lambda: None) -> Far:
        """Return the tensor of *form* whose data is at *place*."""
        device = self.device if form.on_accelerator else torch.device("cpu")
        return Far(form.shape, wire.DTYPES[form.dtype], device, place, self, on_fetch)

    def arrived(self, parcel: Parcel, buffers: Sequence[memoryview]) -> list[Tensor]:
        """Return the tensors of *parcel*, with the data of those that it names alone."""
        return parcel.unpacked(buffers, self.device, lambda _, place: self.fetch(place).detach())

    def forget(self, microbatch: Key) -> None:
        """Let the other ranks free what they keep for the backward of *microbatch*'s calls: it has ended."""
        for rank in self.ranks[1:]:
            self._messenger.send(rank, FORGET, None, microbatch)

    def end_step(self) -> None:
        """Free what is kept for the step."""
        self._served.clear()
        self._waiting.clear()
        self._kept.clear()
        self._released.clear()
        self.own_failures.clear()
        self.refusal = ""
        self._modes = None
        with self._lock:
            self._expected.clear()
            self._early.clear()
            self._given_up.clear()

    def _on_call(self, message: Message) -> None:
        request: Request = message.payload
        self._drop(request.released)
        if not self.scheduler.start(Task(message.key, kind=request.path), lambda: self._serve_call(message)):
            # Of a module that ran ahead in vain, for which its rank waits.
            late = Failure(f"expected module {request.path} to be called in a step, found a call after it")
            with contextlib.suppress(PeerLost):
                self._messenger.send(message.source, RESULT, message.key, late)

    def _on_backward(self, message: Message) -> None:
        self._drop(message.payload.released)
        self.scheduler.start(Task(message.key, is_backward=True), lambda: self._serve_backward(message))

    def _on_response(self, message: Message) -> None:
        with self._lock:
            task = self._waiting.pop(message.key, None)
            if task is None and message.key in self._expected:
                self._early[message.key] = message
        if task is not None:
            task.reply = message
            self.scheduler.resume(task, Urgency.ANSWERED)

    def _on_fetch(self, message: Message) -> None:
        tensor = self._kept.get(message.payload)
        if tensor is None:
            failure = Failure("expected a tensor to be used in the step that made it, found one used in a later step")
            self._messenger.send(message.source, VALUE, message.key, failure)
        else:
            (form,) = wire.forms([tensor])
            self._messenger.send(message.source, VALUE, message.key, form, wire.buffers([tensor]))

    def _drop(self, keys: list[Key]) -> None:
        for key in keys:
            self._kept.pop(key, None)

    def _on_forget(self, message: Message) -> None:
        for key in list(self._served):
            if key[:2] == message.payload:
                self._served.pop(key, None)

    def _on_give_up(self, message: Message) -> None:
        with self._lock:
            self._given_up.update(message.payload)
            for key in message.payload:
                self._served.pop(key, None)
            self._drop([key for key in list(self._kept) if key[:-1] in message.payload])

    def _serve_call(self, message: Message, inputs: Sequence[Tensor] | None = None) -> None:
        """Answer *message*; *inputs*: its tensors, None: they are in its buffers, or where it says."""
        request: Request = message.payload
        if message.key in self._given_up:
            return
        task = self.scheduler.task
        assert task is not None
        caller = message.source if request.caller is None else request.caller
        module = self.model.module_at(request.path)
        what = f"module {request.path or 'the model'} ({type(module).__name__})"
        with self._answering((caller, message.key), RESULT, what):
            if self.refusal:
                raise SMPError(self.refusal)
            self.scheduler.adopt(task, torch.frombuffer(bytearray(request.state), dtype=torch.uint8))
            if module.training != request.is_training:
                module.train(request.is_training)
            if inputs is None:
                inputs = (
                    self.arrived(request.inputs, message.buffers)
                    if request.caller is None
                    else wire.tensors_of(request.inputs.forms, message.buffers, self.device)
                )
            traces = Traces(module) if request.looks else None
            served = Served(inputs, request.inputs)
            with request.setting.applied():
                if request.setting.grad and any(served.needed):
                    inputs = Entry.apply(self._anchor, served)  # type: ignore[no-untyped-call]
                args, kwargs = wire.unpack(request.skeleton, inputs, self.model)
                given = arguments.Given(args, kwargs, inputs)
                before = attributes.Before(module)
                failure = None
                try:
                    value = module(*args, **kwargs)
                except Exception as error:
                    if not any(given.changes()):
                        raise
                    value, failure = None, self._failure_of(error, what, task)
                finally:
                    self._end_calls(task)
                changed, contents = given.changes()
                skeleton, found = wire.pack((value, contents), self.model, given.known)
                outputs = [near(output) for output in (*found, *(inputs[number] for number in changed))]
                new_values = [(number, len(found) + place) for place, number in enumerate(changed)]
                del inputs, given, value, contents, found
            served.links = self.links and task.calls > 1
            is_kept = request.setting.grad and served.keep(outputs)
            with self._lock:
                if message.key in self._given_up:
                    return
                if is_kept:
                    self._served[message.key] = served
                places = [
                    None if number in request.wanted else self.keep((*message.key, number), output)
                    for number, output in enumerate(outputs)
                ]
            parcel, buffers = Parcel.of(outputs, places)
            its = before.changes(request.path)
            leaves_traces = traces is None or task.ahead is not None or bool(its) or traces.are_left()
            result = Result(skeleton, parcel, self._state(task), new_values, failure, its, leaves_traces)
            if request.following and goes_on(result, request.following[0]):
                self._run_ahead(request.following, result, outputs, caller)
            self._messenger.send(caller, RESULT, message.key, result, buffers)

    def _run_ahead(self, calls: tuple[Following, ...], result: Result, outputs: Sequence[Tensor], caller: int) -> None:
        """Have the first of *calls* run, which follows the call that gave *result* with *outputs* to *caller*."""
        first, *rest = calls
        request = request_of(first, tuple(rest), result, caller)
        if first.rank != self._messenger.me:
            buffers = wire.buffers([outputs[number] for number in first.inputs])
            self._messenger.send(first.rank, CALL, first.key, request, buffers)
            return
        self._drop(first.released)
        inputs = inputs_of(first, result, outputs)
        message = Message(self._messenger.me, CALL, first.key, request, [])
        self.scheduler.start(Task(first.key, kind=first.path), lambda: self._serve_call(message, inputs))

    def _serve_backward(self, message: Message) -> None:
        asked: Gradients = message.payload
        caller = asked.caller or (message.source, message.key)
        with self._answering(caller, GRADIENTS, "a backward pass"):
            served = self._served[asked.call]
            arrived = self.arrived(asked.given, message.buffers)
            if message.source == self._messenger.me:  # Of the call before, for this one alone.
                self._drop([place.key for place in asked.given.places if place is not None])
            given = iter(arrived)
            found = served.backward([next(given) if here else None for here in asked.present])
            found = [each.data_here() if isinstance(each, Far) else each for each in found]
            del given, arrived
            if served.is_finished:
                self._served.pop(asked.call, None)
            if asked.onward:
                self._go_on(message.key, found, asked.onward, caller)
                return
            # A gradient goes where its tensor came from: it stays here if that was no data of the caller's.
            places = [
                self.keep((*message.key, number), gradient) if place is not None and gradient is not None else None
                for number, (gradient, place) in enumerate(zip(found, served.places, strict=True))
            ]
            gradients, buffers = gradients_message(asked.call, found, places, [])
            self._messenger.send(caller[0], GRADIENTS, caller[1], gradients, buffers)

    def _go_on(
        self, key: Key, found: Sequence[Tensor | None], onward: tuple[Hop, ...], caller: tuple[int, Key]
    ) -> None:
        """Send the inputs' gradients *found* to the next call of *onward* as those of its outputs."""
        hop = onward[0]
        gradients: list[Tensor | None] = [None] * hop.outputs
        for mine, its in hop.places:
            gradient, before = found[mine], gradients[its]
            gradients[its] = gradient if before is None or gradient is None else before + gradient
        is_here = hop.rank == self._messenger.me
        places = [
            self.keep((*key, number), gradient) if is_here and gradient is not None else None
            for number, gradient in enumerate(gradients)
        ]
        released = [*hop.released, *self.released(hop.rank)]
        asked, buffers = gradients_message(hop.call, gradients, places, released, onward=onward[1:], caller=caller)
        if is_here:
            # Now, before this task ends: else the turn goes to another microbatch, and this one's gradient comes late.
            copies = [memoryview(bytearray(buffer)) for buffer in buffers]
            self._on_backward(Message(self._messenger.me, BACKWARD, hop.key, asked, copies))
            return
        self._messenger.send(hop.rank, BACKWARD, hop.key, asked, buffers)

    def _state(self, task: Task) -> bytes:
        state: bytes = self.scheduler.state_of(task).numpy().tobytes()
        return state

    @contextlib.contextmanager
    def _answering(self, caller: tuple[int, Key], kind: str, what: str) -> Iterator[None]:
        """Tell the *caller* (its rank and the answer's key) of an exception in the block."""
        try:
            yield
        except (Aborted, PeerLost):
            pass  # The step's main thread knows why.
        except BaseException as error:  # noqa: BLE001 - whatever the module raised, the caller must not wait for ever
            failure = self._failure_of(error, what, self.scheduler.task if kind == RESULT else None)
            with contextlib.suppress(PeerLost):
                self._messenger.send(caller[0], kind, caller[1], failure)

    def _failure_of(self, error: BaseException, what: str, task: Task | None) -> Failure:
        """Note *error*, which *what* raised in the call of *task*, and return what the caller is told."""
        text = _described(as_remote(error), self.ranks.index(self._messenger.me), self._messenger.me, what)
        if as_remote(error) is error:
            self.own_failures[text] = error
        return Failure.of(error, text, self._state(task) if task is not None else b"")


class Call:
    """One call of a module on another partition, and its backward."""

    def __init__(
        self,
        remote: Remote,
        task: Task,
        partition: int,
        path: str,
        skeleton: bytes,
        setting: Setting,
        is_training: bool,
    ) -> None:
        self._remote = remote
        self._task = task
        self._partition = partition
        self._key: Key = ()
        self._request = (path, skeleton, setting, is_training)
        self._backwards = 0
        self._forms: list[wire.Form] = []
        self._inputs = 0
        self._outputs: list[weakref.ref[Tensor]] = []
        self._answer: Callable[[], list[Tensor | None]] | None = None
        self.result = b""
        self.changed: list[tuple[int, int]] = []  # As of Result.
        self.attributes: Sequence[attributes.Set] = ()
        self.failure: Failure | None = None
        self.requires_grad: list[bool] = []
        self.looks = Looks()
        self.onward: Onward | None = None

    def forward(self, *tensors: Tensor) -> list[Tensor]:
        """Return the output tensors; `result` is then the skeleton of the output."""
        path, skeleton, setting, is_training = self._request
        remote, task = self._remote, self._task
        rank = remote.ranks[self._partition]
        wanted = remote.wanted(path)
        self._inputs = len(tensors)
        inputs, buffers = Parcel.of(tensors, [place_of(tensor) for tensor in tensors])
        request = Request(
            *(path, skeleton, inputs, setting, is_training, remote._state(task)),
            wanted=frozenset(wanted),
            released=[],
        )
        self._key, reply = remote.ask(task, rank, request, buffers)
        result: Result = reply.payload
        self.result, self.changed, self.failure = result.skeleton, result.changed, result.failure
        self.attributes = result.attributes
        self._forms = result.outputs.forms
        self.requires_grad = [form.requires_grad for form in self._forms]
        remote.scheduler.adopt(task, torch.frombuffer(bytearray(result.state), dtype=torch.uint8))
        if setting.grad and any(self.requires_grad):
            task.unresolved.add(self._key)

        def far(form: wire.Form, place: Place) -> Tensor:
            made = remote.far(form, place, functools.partial(wanted.add, place.key[-1]))
            task.fars.append(weakref.ref(made))
            return made

        outputs = result.outputs.unpacked(reply.buffers, remote.device, far)
        self._outputs = [weakref.ref(output) for output in outputs]
        return outputs

    @property
    def is_retained(self) -> bool:
        """Whether `retain_grad` was called on an output."""
        return any(output.retains_grad for each in self._outputs if (output := each()) is not None)

    def begin_backward(self) -> None:
        """Forget what an earlier backward pass, which may have failed, has left."""
        self.onward = self._answer = None

    def backward(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return the inputs' gradients."""
        task = self._remote.scheduler.task
        if task is None or not task.is_backward:
            raise SMPError(
                "expected model.backward(loss) in a function with @smp.step, found loss.backward(): "
                "call model.backward(loss), which runs the backward pass on all partitions"
            )
        self._task.unresolved.discard(self._key)
        if self._answer is None:
            self._ask(task, gradients)
        answer, self._answer = self._answer, None
        assert answer is not None
        return answer()

    def _ask(self, task: Task, gradients: Sequence[Tensor | None]) -> None:
        """Have this call's backward run, and those that follow; note the answer of each."""
        remote, rank = self._remote, self._remote.ranks[self._partition]
        places = [place_of(gradient) for gradient in gradients]
        key = self._next_backward()
        hops: list[Hop] = []
        last = self
        while last.onward is not None and len(hops) < MOST_HOPS:
            onward = last.onward
            last._answer = functools.partial(last._blank, onward)
            last = onward.callee
            hops.append(last._hop(onward.places))
        message, buffers = gradients_message(
            self._key, gradients, places, remote.released(rank), onward=tuple(hops), caller=None
        )
        reply = remote.exchange(task, rank, BACKWARD, key, message, buffers)
        answered: Gradients = reply.payload
        found = iter(answered.given.unpacked(reply.buffers, remote.device, remote.far))
        of_each = [next(found) if here else None for here in answered.present]
        last._answer = lambda: of_each

    def _next_backward(self) -> Key:
        self._backwards += 1
        return (*self._key, -self._backwards)

    def _hop(self, places: list[tuple[int, int]]) -> Hop:
        rank = self._remote.ranks[self._partition]
        released = self._remote.released(rank)
        return Hop(rank, self._key, self._next_backward(), len(self._forms), places, released)

    def _blank(self, onward: Onward) -> list[Tensor | None]:
        """Return gradients of the inputs that only the engine sees: the other call's owner has the true ones."""
        blank: list[Tensor | None] = [None] * self._inputs
        value = 0.0 if torch.is_anomaly_enabled() else math.nan  # So that nobody takes them for true.
        for mine, its in onward.places:
            form = onward.callee._forms[its]
            device = self._remote.device if form.on_accelerator else torch.device("cpu")
            blank[mine] = torch.full((), value, dtype=wire.DTYPES[form.dtype], device=device).expand(form.shape)
        return blank


def _is_expected(expected: Following, following: Next) -> bool:
    """Whether *expected*, which runs ahead, is the call *following* that the script makes."""
    its = (expected.rank, expected.path, expected.skeleton, expected.setting, expected.is_training)
    return following.call == its and following.inputs == expected.inputs


def _described(error: BaseException, partition: int, rank: int, what: str) -> str:
    if isinstance(error, RemoteStepError):
        return str(error)
    # Without the traceback, which that rank prints: in this message `train` would take it for this rank's own.
    return f"{what} failed on partition {partition} (rank {rank}): {type(error).__name__}: {error}"
