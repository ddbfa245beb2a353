"""The two console streams of `train`, and how processes share them."""

import os
import select
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from toolkit.job.plan import Tags
from toolkit.job.torchrun_line import RankOutput
from toolkit.train.supervise.outlet import UNREAD, same_sink
from toolkit.train.supervise.poll import Poll
from toolkit.train.supervise.rank_output import RankOutputFiles
from toolkit.train.supervise.relay import FilteredFile, LineMonitor, RankFile, Sharing, Stream
from toolkit.train.supervise.screen import Progress, Screen

Note = Callable[[str], None]
MakeMonitor = Callable[[int | None, str], LineMonitor | None]


class Outlets:
    """The console's streams: a single outlet if both lead to the same sink."""

    def __init__(self, stdout: int = 1, stderr: int = 2) -> None:
        self.paired = same_sink(stdout, stderr)
        self.stdout = Screen(stdout)
        self.stderr = self.stdout if self.paired else Screen(stderr)

    def __iter__(self) -> Iterator[Screen]:
        yield self.stdout
        if not self.paired:
            yield self.stderr

    @property
    def pending_bytes(self) -> int:
        return sum(outlet.pending_bytes for outlet in self)

    def flush(self) -> None:
        """Write what is pending, as long as the console takes any."""
        for outlet in self:
            outlet.settle()
        while waiting := [outlet for outlet in self if outlet.pending_bytes and not outlet.stalled(time.monotonic())]:
            poll = Poll()
            for outlet in waiting:
                poll.register(outlet.fd, select.POLLOUT)
            poll.poll(1000)
            for outlet in waiting:
                outlet.pump()
        for outlet in self:
            outlet.pump()

    def lost(self) -> tuple[int, str]:
        """Return how many bytes did not reach the console, and a sentence that reports it, "" if none are missing.

        Call it after `flush`: what is still pending counts as lost.
        """
        lost = [
            (name, outlet)
            for name, outlet in (("stdout", self.stdout), ("stderr", self.stderr))
            if outlet.missing_bytes
        ]
        if self.paired:
            lost = [("stdout and stderr", outlet) for _, outlet in lost[:1]]
        sentence = "; ".join(
            f"{outlet.missing_bytes} bytes of {name} ({outlet.reason or UNREAD})" for name, outlet in lost
        )
        return sum(outlet.missing_bytes for _, outlet in lost), sentence and f"the console did not take {sentence}"


class Console:
    """Makes the streams of processes. `prefix_ranks`: each line begins with the name of its rank.

    *tags*: name it in mpirun's form, `[1,mpirank:R,HOST]<stdout>:`, for which users search SageMaker's logs.
    *make_monitor* returns the line monitor of a rank (None: a process that is no rank) of a host. *files*: the folder
    of the ranks' log files, None for none. *rank_output*: where a line of torchrun wants their output.
    """

    def __init__(
        self,
        *,
        host: str,
        prefix_ranks: bool,
        make_monitor: MakeMonitor,
        files: Path | None,
        file_bytes: int,
        note: Note,
        tags: bool = False,
        outlets: Outlets | None = None,
        progress: Progress = "auto",
        terminal: bool = False,
        rank_output: RankOutput | None = None,
    ) -> None:
        self.outlets = outlets or Outlets()
        for outlet in self.outlets:
            outlet.show_progress(progress, terminal=terminal)
        self.stdout, self.stderr = self.outlets.stdout, self.outlets.stderr
        self.host = host
        self.prefixes = prefix_ranks
        self._tags = tags
        self._alone: Sharing = "paired" if self.outlets.paired else "alone"
        self._make_monitor = make_monitor
        self._files = files
        self._file_bytes = file_bytes
        self._note = note
        self._opened: set[Path] = set()
        self._rank_output = None if rank_output is None else RankOutputFiles(rank_output, note)

    def streams(
        self,
        name: str,
        rank: int | None,
        *,
        stdout: int,
        stderr: int,
        shared: bool,
        local_rank: int | None = None,
        tags: Tags | None = None,
        mask: Callable[[str], str] | None = None,
    ) -> tuple[tuple[Stream, Stream], tuple[RankFile, ...]]:
        """Return the streams that read *stdout* and *stderr* of one process, and the files that are the process's.

        With *tags* the process is mpirun: its streams carry its ranks' lines, and its ranks have no files. With *mask*
        its lines are masked, and nothing monitors them.
        """
        if mask is not None:
            from toolkit.train.supervise.masked import MaskedStream

            return (MaskedStream(stdout, self.stdout, mask), MaskedStream(stderr, self.stderr, mask)), ()
        if tags is not None:
            return self._tagged_streams(stdout, stderr, tags), ()
        way: Sharing = "shared" if shared else self._alone
        prefixes = self._prefixes(name, rank, self.host) if shared and self.prefixes else (b"", b"")
        files: tuple[RankFile, ...] = ()
        if self._files is not None and rank is not None:
            path = self._files / f"{self.host}-rank-{rank}.log"
            files = (RankFile(path, self._file_bytes, self._note, goes_on=path in self._opened),)
            self._opened.add(path)
        monitor = self._make_monitor(rank, self.host)
        more: tuple[tuple[RankFile | FilteredFile, ...], ...] = ((), ())
        ways = (way, way)
        if self._rank_output is not None and rank is not None:
            own, more, shown = self._rank_output.open(rank, local_rank, prefixes)
            files += own
            ways = (way if shown[0] else "silent", way if shown[1] else "silent")
        common = files[:1] if self._files is not None else ()
        out = Stream(stdout, self.stdout, way=ways[0], prefix=prefixes[0], monitor=monitor, files=(*common, *more[0]))
        err = Stream(stderr, self.stderr, way=ways[1], prefix=prefixes[1], monitor=monitor, files=(*common, *more[1]))
        return (out, err), files

    def _tagged_streams(self, stdout: int, stderr: int, tags: Tags) -> tuple[Stream, Stream]:
        from toolkit.train.supervise.tagged import TaggedStream
        from toolkit.train.supervise.tags import RankHosts, Speaker, TagSplitter

        # mpirun uses the machine's own name for the machine it runs on; Open MPI 4 leaves out the domain.
        node_name = os.uname().nodename
        places = RankHosts({**dict.fromkeys((node_name, node_name.partition(".")[0]), self.host), **tags.hosts})

        def voice(speaker: Speaker, stream: int) -> tuple[bytes, LineMonitor | None]:
            if speaker is None:
                return b"", None
            rank, host = speaker
            prefixes = self._prefixes("", rank, host) if self.prefixes else (b"", b"")
            return prefixes[stream], self._make_monitor(rank, host)

        out = TaggedStream(stdout, self.stdout, TagSplitter(tags.by, places), lambda speaker: voice(speaker, 0))
        err = TaggedStream(stderr, self.stderr, TagSplitter(tags.by, places), lambda speaker: voice(speaker, 1))
        return out, err

    def _prefixes(self, name: str, rank: int | None, host: str) -> tuple[bytes, bytes]:
        if self._tags and rank is not None:
            who = f"[1,mpirank:{rank},{host}]" if host else f"[1,mpirank:{rank}]"
            return f"{who}<stdout>:".encode(), f"{who}<stderr>:".encode()
        who = name if rank is None else f"rank {rank}"
        prefix = (f"[{host} {who}] " if host else f"[{who}] ").encode()
        return prefix, prefix
