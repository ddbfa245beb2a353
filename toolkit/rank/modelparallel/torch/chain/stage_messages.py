"""Messages between the pipeline's ranks during a step of a chain: tensors, or the news that the step failed."""

from collections.abc import Hashable, Sequence
from typing import Any

from toolkit.rank.modelparallel.messenger import Messenger
from toolkit.rank.modelparallel.torch import wire
from toolkit.rank.modelparallel.torch.messages import RemoteStepError

FORWARD, BACKWARD, ARGUMENTS, INPUT, RESULTS = (
    f"smp.chain.{name}" for name in ("forward", "backward", "arguments", "input", "results")
)


class StageMessages:
    """Messages between the devices of a chain. *ranks* are the ranks by device."""

    def __init__(self, messenger: Messenger, ranks: Sequence[int], torch_device: Any) -> None:
        self._messenger = messenger
        self._ranks = tuple(ranks)
        self._torch_device = torch_device

    def send(self, device: int, kind: str, key: Hashable, tensors: Sequence[Any], extra: Any = None) -> None:
        """Send *tensors* and the picklable *extra* to *device*. The tensors must not change until they have arrived."""
        payload = (wire.describe(tensors), extra)
        self._messenger.send(self._ranks[device], kind, key, payload, wire.get_buffers(tensors))

    def receive(self, device: int, kind: str, key: Hashable) -> tuple[list[Any], Any]:
        """Wait for the tensors that *device* sends under *kind* and *key*.

        Raises:
            RemoteStepError: the step failed there.
            PeerLost: a rank ended.
        """
        message = self._messenger.receive(self._ranks[device], kind, key)
        metas, extra = message.payload
        if metas is None:
            raise RemoteStepError(extra)
        return wire.rebuild_tensors(metas, message.buffers, self._torch_device), extra

    def fail(self, device: int, step: int, microbatches: int, text: str) -> None:
        """Send *text*, the reason why *step* failed on *device*, to all devices that may wait for it."""
        last = len(self._ranks) - 1
        keys = [(step, microbatch) for microbatch in range(microbatches)]
        if device:
            self._poison(device - 1, BACKWARD, keys, text)
        else:
            self._poison(last, ARGUMENTS, [step], text)
        if device < last:
            self._poison(device + 1, FORWARD, keys, text)
        else:
            self._poison(0, INPUT, keys, text)
            for earlier in range(last):
                self._poison(earlier, RESULTS, [step], text)

    def _poison(self, device: int, kind: str, keys: Sequence[Hashable], text: str) -> None:
        for key in keys:
            self._messenger.send(self._ranks[device], kind, key, (None, text))
