"""The streams of an mpirun that relays its ranks' output: what `tags` finds goes on as from each rank's own pipe."""

from collections.abc import Callable

from toolkit.supervise.lines import prefixed
from toolkit.supervise.outlet import Outlet
from toolkit.supervise.relay import STATES_S, Stream, Tap
from toolkit.supervise.tags import Said, Speaker, Tagged

Voice = Callable[[Speaker], tuple[bytes, Tap | None]]


class TaggedStream(Stream):
    """One stream of mpirun, shared by its ranks. *voice* gives a speaker's prefix and tap."""

    def __init__(self, fd: int, outlet: Outlet, tagged: Tagged, voice: Voice) -> None:
        super().__init__(fd, outlet, way="shared")
        self._tagged = tagged
        self._voice = voice
        self._voices: dict[Speaker, tuple[bytes, Tap | None]] = {}

    def read(self, now_s: float) -> None:
        waits, since_s = self.rest_s(now_s) is not None, self._since_s
        super().read(now_s)
        self._since_s = since_s if waits else now_s  # Another rank's lines do not make a bar wait longer.

    def rest_s(self, now_s: float) -> float | None:
        return max(self._since_s + STATES_S - now_s, 0.0) if self.lines.held_bytes or self._tagged.holds else None

    def refresh(self, now_s: float) -> None:
        super().refresh(now_s)
        self._show(self._tagged.states())

    def close(self) -> None:
        if not self.ended:
            self._show(self._tagged.feed(self.lines.flush()))
            self._show(self._tagged.flush())
        super().close()

    def _pass(self, block: bytes) -> None:
        self._show(self._tagged.feed(block))

    def _show(self, said: list[Said]) -> None:
        if not said:
            return
        shown: list[bytes | memoryview] = []
        heard: dict[Speaker, list[bytes]] = {}
        for speaker, text in said:
            if speaker not in self._voices:
                self._voices[speaker] = self._voice(speaker)
            shown += prefixed(text, self._voices[speaker][0])
            heard.setdefault(speaker, []).append(text)
        self.outlet.put(b"".join(shown))
        self.tail.add(b"".join(text for _, text in said))
        for speaker, texts in heard.items():
            tap = self._voices[speaker][1]
            if tap is not None:
                tap(b"".join(texts))
