"""Pure: whose words are in the output of an mpirun that relays its ranks' output itself, each tagged with its rank.

What the three write (Open MPI 4.1.8 with --tag-output, 5.0.11 with --output tag, MPICH 5.0.2 with our pattern):

    [1,1]<stdout>:half [1,0]<stdout>:whole      a tag for each piece that was read from a rank, wherever the line of
    [1,1]<stdout>:a line                        another rank stands; Hydra does the same
    [1,1]<stdout>: half a line                  Open MPI 5 waits for lines, all but a rank's last, and adds a space

So tags are looked for everywhere, and a line is completed for each rank by itself. A rank that prints such a tag is
taken for the one it names. What has no tag is mpirun's own: its map of ranks and hosts among it, which Open MPI prints
before any rank starts. Hydra has no map, and names the host in each tag.
"""

import re
from collections.abc import Callable, Mapping

from toolkit.job.plan import TaggedBy
from toolkit.supervise import bars
from toolkit.supervise.lines import Lines

TAGS: dict[TaggedBy, bytes] = {
    "openmpi4": rb"\[1,(\d+)\]<std(?:out|err|diag)>:",
    # A longer form has the whole name of the job: [prterun-HOST-PID@1,0].
    "openmpi5": rb"\[(?:[^\],\s]+@)?1,(\d+)\]<std(?:out|err|diag)>: ?",
    # The pattern that Hydra is given (launchers/mpi_options.py).
    "mpich": rb"\[1,mpirank:(\d+,[^\]\s]*)\]:",
}
LONGEST_TAG_BYTES = 300
# Of both versions' maps: the name of a node, and each rank on it.
MAPPED = rb"Data for node: (\S+)|Process rank: (\d+)|Data for proc: \[[^\],]*,(\d+)\]"

# A rank and its host, "" if that is not known; None is mpirun itself.
Speaker = tuple[int, str] | None
Said = tuple[Speaker, bytes]


def _newest_state(lines: Lines) -> bytes:
    lines.take(bars.kept_from(lines.held()))
    return lines.held()


class Places:
    """Which rank is where, as mpirun's map has it. *hosts*: what mpirun calls a host by another name than the job."""

    def __init__(self, hosts: Mapping[str, str]) -> None:
        self._hosts = hosts
        self._node = ""
        self._found: dict[int, str] = {}

    def read(self, text: bytes) -> None:
        """Take whole lines of mpirun's own."""
        for found in re.finditer(MAPPED, text):
            if found[1] is not None:
                self._node = self.named(found[1].decode(errors="replace"))
            else:
                self._found[int(found[2] or found[3])] = self._node

    def named(self, name: str) -> str:
        """Return the job's name for the host that mpirun calls *name*: the same, unless another is known."""
        return self._hosts.get(name, name)

    def host(self, rank: int) -> str:
        """Return the host of *rank*, "" if the map has not said."""
        return self._found.get(rank, "")


class Tagged:
    """Takes one stream of mpirun apart. Its two streams share *places*: the map comes on stdout alone."""

    def __init__(self, by: TaggedBy, places: Places) -> None:
        self._tag = re.compile(TAGS[by])
        self._places = places
        self._lines: dict[bytes, Lines] = {}
        self._speakers: dict[bytes, Speaker] = {}
        self._open = b""
        self._cut = b""

    @property
    def holds(self) -> bool:
        """True if somebody's line is unfinished."""
        return any(lines.held_bytes for lines in self._lines.values())

    def feed(self, block: bytes) -> list[Said]:
        """Return whose lines *block* completes, without their tags, in the order in which they are complete.

        A line of more than 1 MiB comes in pieces (lines.Lines).
        """
        block = self._whole_tags(self._cut + block)
        said: list[Said] = []
        parts = self._tag.split(block)
        for token, text in zip((self._open, *parts[1::2]), parts[::2], strict=True):
            end = text.find(b"\n") + 1
            if token and 0 < end < len(text):  # Each line of a rank has a tag: what follows is mpirun's own.
                self._take(said, token, text[:end])
                token, text = b"", text[end:]
            self._take(said, token, text)
            self._open = b"" if text.endswith(b"\n") else token
        return said

    def states(self) -> list[Said]:
        """Return the unfinished lines, which stay; the states of a bar before its last are forgotten."""
        return self._held(_newest_state)

    def flush(self) -> list[Said]:
        """Return all unfinished lines and forget them."""
        said: list[Said] = []
        self._take(said, self._open, self._cut)
        self._cut = b""
        return said + self._held(Lines.flush)

    def _whole_tags(self, block: bytes) -> bytes:
        """Return *block* without what may be the beginning of a tag at its end, which waits for the next block."""
        self._cut = b""
        if block.endswith((b"\n", b"\r")):
            return block
        at = block.rfind(b"[", max(0, len(block) - LONGEST_TAG_BYTES))
        if at < 0 or self._tag.match(block, at):
            return block
        self._cut = block[at:]
        return block[:at]

    def _take(self, said: list[Said], token: bytes, text: bytes) -> None:
        if not text:
            return
        lines = self._lines.get(token)
        if lines is None:
            lines = self._lines[token] = Lines()
        pieces = (text,) if text.endswith(b"\n") and not lines.held_bytes else lines.feed(text)
        if not token:
            self._places.read(b"".join(pieces))
        said += [(self._speakers.get(token) or self._speaker(token), piece) for piece in pieces if piece]

    def _held(self, give: Callable[[Lines], bytes]) -> list[Said]:
        return [(self._speaker(token), text) for token, lines in self._lines.items() if (text := give(lines))]

    def _speaker(self, token: bytes) -> Speaker:
        if not token:
            return None
        rank, comma, name = token.decode(errors="replace").partition(",")
        speaker = int(rank), self._places.named(name) if comma else self._places.host(int(rank))
        if speaker[1]:
            self._speakers[token] = speaker
        return speaker
