"""The streams of an mpirun that relays its ranks' output: each rank's lines are treated like those of its own pipe."""

from collections.abc import Callable

from toolkit.train.supervise import bars
from toolkit.train.supervise.relay import LineMonitor, Stream
from toolkit.train.supervise.screen import Screen
from toolkit.train.supervise.tags import Speaker, SpokenText, TagSplitter

Voice = Callable[[Speaker], tuple[bytes, LineMonitor | None]]


class TaggedStream(Stream):
    """One stream of mpirun, shared by its ranks. *voice* gives a speaker's prefix and monitor."""

    def __init__(self, fd: int, outlet: Screen, tagged: TagSplitter, voice: Voice) -> None:
        super().__init__(fd, outlet, way="shared")
        self._tagged = tagged
        self._voice = voice
        self._voices: dict[Speaker, tuple[bytes, LineMonitor | None]] = {}

    def close(self) -> None:
        if not self.ended:
            self._show(self._tagged.feed(self.lines.flush()))
            self._show(self._tagged.flush())
        super().close()

    def _pass(self, block: bytes) -> None:
        self._show(self._tagged.feed(block))

    @property
    def _unfinished(self) -> bool:
        return super()._unfinished or self._tagged.holds

    def _note_unfinished(self, now_s: float, *, anew: bool) -> None:  # noqa: ARG002
        super()._note_unfinished(now_s, anew=False)  # Lines of other ranks must not delay a bar.

    def _show_unfinished(self) -> None:
        held = self.lines.held()
        self._show(self._tagged.feed(self.lines.take(held.rfind(b"\r") + 1)))
        for speaker, state in self._tagged.states():
            self._show_state(self._known(speaker)[0], state)
        for prefix in list(self._states):
            self._show_state(prefix, b"")

    def _shorten(self) -> None:
        """Do nothing: `_show_unfinished` drops old states, and each rank's line has a limit of its own."""

    def _known(self, speaker: Speaker) -> tuple[bytes, LineMonitor | None]:
        if speaker not in self._voices:
            self._voices[speaker] = self._voice(speaker)
        return self._voices[speaker]

    def _show(self, pieces: list[SpokenText]) -> None:
        texts_by_speaker: dict[Speaker, list[bytes]] = {}
        lines: list[bytes | memoryview] = []
        for speaker, text in pieces:
            lines += self._lines_of(text, self._known(speaker)[0])
            texts_by_speaker.setdefault(speaker, []).append(text)
        self.outlet.put_lines(b"".join(lines))
        self.tail.add(b"".join(text for _, text in pieces))
        for speaker, texts in texts_by_speaker.items():
            monitor = self._voices[speaker][1]
            if monitor is not None:
                monitor(bars.collapsed(b"".join(texts)))
