"""Pure: separates the output of an mpirun that relays its ranks' output, each piece tagged with its rank.

The three write (Open MPI 4.1.8 with --tag-output, 5.0.11 with --output tag, MPICH 5.0.2 with `train`'s pattern):

    [1,1]<stdout>:half [1,0]<stdout>:whole      a tag for each piece read from a rank, even within the line of another
    [1,1]<stdout>:a line                        rank; Hydra does the same
    [1,1]<stdout>: half a line                  Open MPI 5 waits for whole lines, except a rank's last; it adds a space

So tags are searched for everywhere, and each rank's lines are assembled separately. Text that a rank prints in the form
of a tag counts as a tag. Text without a tag is mpirun's own, for example its map of ranks and hosts, which Open MPI
prints before any rank starts. Hydra prints no map, and names the host in each tag.
"""

import re
from collections.abc import Callable, Mapping

from toolkit.job.plan import TaggedBy
from toolkit.train.supervise import bars
from toolkit.train.supervise.lines import LineBuffer

TAGS: dict[TaggedBy, bytes] = {
    "openmpi4": rb"\[1,(\d+)\]<std(?:out|err|diag)>:",
    # The longer form contains the job's full name: [prterun-HOST-PID@1,0].
    "openmpi5": rb"\[(?:[^\],\s]+@)?1,(\d+)\]<std(?:out|err|diag)>: ?",
    # The pattern that `train` gives Hydra (train/launchers/mpi_options.py).
    "mpich": rb"\[1,mpirank:(\d+,[^\]\s]*)\]:",
}
LONGEST_TAG_BYTES = 300
# In the maps of both Open MPI versions: the name of a node, and each rank on it.
MAPPED = rb"Data for node: (\S+)|Process rank: (\d+)|Data for proc: \[[^\],]*,(\d+)\]"

# A rank and its host ("" if unknown); None is mpirun itself.
Speaker = tuple[int, str] | None
SpokenText = tuple[Speaker, bytes]


def _newest_state(lines: LineBuffer) -> bytes:
    lines.take(bars.kept_from(lines.held()))
    return lines.held()


class RankHosts:
    """The host of each rank, from mpirun's map. *hosts*: the job's host names by mpirun's, where these differ."""

    def __init__(self, hosts: Mapping[str, str]) -> None:
        self._hosts = hosts
        self._node = ""
        self._found: dict[int, str] = {}

    def read(self, text: bytes) -> None:
        """Read the map from *text*, whole lines of mpirun itself."""
        for match in re.finditer(MAPPED, text):
            if match[1] is not None:
                self._node = self.named(match[1].decode(errors="replace"))
            else:
                self._found[int(match[2] or match[3])] = self._node

    def named(self, name: str) -> str:
        """Return the job's name for the host that mpirun calls *name*; *name* itself if no other is known."""
        return self._hosts.get(name, name)

    def host(self, rank: int) -> str:
        """Return the host of *rank*, "" if the map does not have it."""
        return self._found.get(rank, "")


class TagSplitter:
    """Splits one stream of mpirun by rank. Its two streams share *places*: the map comes only on stdout."""

    def __init__(self, by: TaggedBy, places: RankHosts) -> None:
        self._tag = re.compile(TAGS[by])
        self._places = places
        self._lines: dict[bytes, LineBuffer] = {}
        self._speakers: dict[bytes, Speaker] = {}
        self._open = b""
        self._cut = b""

    @property
    def holds(self) -> bool:
        """True if a line is unfinished."""
        return any(lines.held_bytes for lines in self._lines.values())

    def feed(self, block: bytes) -> list[SpokenText]:
        """Return the lines that *block* completes, with their speakers and without tags, in order of completion.

        A line above 1 MiB comes in pieces (lines.LineBuffer).
        """
        block = self._whole_tags(self._cut + block)
        pieces: list[SpokenText] = []
        parts = self._tag.split(block)
        for token, text in zip((self._open, *parts[1::2]), parts[::2], strict=True):
            end = text.find(b"\n") + 1
            if token and 0 < end < len(text):  # Each line of a rank has a tag: the rest is mpirun's own.
                self._take(pieces, token, text[:end])
                token, text = b"", text[end:]
            self._take(pieces, token, text)
            self._open = b"" if text.endswith(b"\n") else token
        return pieces

    def states(self) -> list[SpokenText]:
        """Return the unfinished lines without removing them; drop all states of a bar but the last."""
        return self._held(_newest_state)

    def flush(self) -> list[SpokenText]:
        """Remove all unfinished lines and return them."""
        pieces: list[SpokenText] = []
        self._take(pieces, self._open, self._cut)
        self._cut = b""
        return pieces + self._held(LineBuffer.flush)

    def _whole_tags(self, block: bytes) -> bytes:
        """Return *block* without a possible beginning of a tag at its end, which is kept for the next block."""
        self._cut = b""
        if block.endswith((b"\n", b"\r")):
            return block
        start = block.rfind(b"[", max(0, len(block) - LONGEST_TAG_BYTES))
        if start < 0 or self._tag.match(block, start):
            return block
        self._cut = block[start:]
        return block[:start]

    def _take(self, completed: list[SpokenText], token: bytes, text: bytes) -> None:
        if not text:
            return
        lines = self._lines.get(token)
        if lines is None:
            lines = self._lines[token] = LineBuffer()
        pieces = (text,) if text.endswith(b"\n") and not lines.held_bytes else lines.feed(text)
        if not token:
            self._places.read(b"".join(pieces))
        completed += [(self._speakers.get(token) or self._speaker(token), piece) for piece in pieces if piece]

    def _held(self, give: Callable[[LineBuffer], bytes]) -> list[SpokenText]:
        return [(self._speaker(token), text) for token, lines in self._lines.items() if (text := give(lines))]

    def _speaker(self, token: bytes) -> Speaker:
        if not token:
            return None
        rank, comma, name = token.decode(errors="replace").partition(",")
        speaker = int(rank), self._places.named(name) if comma else self._places.host(int(rank))
        if speaker[1]:
            self._speakers[token] = speaker
        return speaker
