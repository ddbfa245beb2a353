"""What the pipeline's ranks send each other during a step of a chain: tensors, or word that the step failed."""

from collections.abc import Hashable, Sequence
from typing import Any

from toolkit.rank.modelparallel.messenger import Messenger
from toolkit.rank.modelparallel.torch import wire
from toolkit.rank.modelparallel.torch.messages import RemoteStepError

FORWARD, BACKWARD, ARGUMENTS, INPUT, RESULTS = (
    f"smp.chain.{name}" for name in ("forward", "backward", "arguments", "input", "results")
)


class Mail:
    """Messages between the devices of a chain. *ranks* are the ranks by device."""

    def __init__(self, messenger: Messenger, ranks: Sequence[int], torch_device: Any) -> None:
        self._messenger = messenger
        self._ranks = tuple(ranks)
        self._torch_device = torch_device

    def send(self, device: int, kind: str, key: Hashable, tensors: Sequence[Any], beside: Any = None) -> None:
        """Send *tensors* to *device*, and the picklable *beside*. The tensors must not change until they are there."""
        payload = (wire.forms(tensors), beside)
        self._messenger.send(self._ranks[device], kind, key, payload, wire.buffers(tensors))

    def receive(self, device: int, kind: str, key: Hashable) -> tuple[list[Any], Any]:
        """Wait for what *device* sends under *kind* and *key*.

        Raises:
            RemoteStepError: the step failed there.
            PeerLost: a rank ended.
        """
        message = self._messenger.receive(self._ranks[device], kind, key)
        forms, beside = message.payload
        if forms is None:
            raise RemoteStepError(beside)
        return wire.tensors_of(forms, message.buffers, self._torch_device), beside

    def fail(self, device: int, step: int, microbatches: int, text: str) -> None:
        """Tell those who may wait for this *device* in *step* that it failed there, and why."""
        last = len(self._ranks) - 1
        of_each = [(step, microbatch) for microbatch in range(microbatches)]
        if device:
            self._poison(device - 1, BACKWARD, of_each, text)
        else:
            self._poison(last, ARGUMENTS, [step], text)
        if device < last:
            self._poison(device + 1, FORWARD, of_each, text)
        else:
            self._poison(0, INPUT, of_each, text)
            for other in range(last):
                self._poison(other, RESULTS, [step], text)

    def _poison(self, device: int, kind: str, keys: Sequence[Hashable], text: str) -> None:
        for key in keys:
            self._messenger.send(self._ranks[device], kind, key, (None, text))
