"""The Kubeflow sidecar: posts the job's progress and metrics to Kubeflow Trainer. It never fails or delays the job.

Started by `train` on the leader, as `kubeflow_progress.py STATUS_FOLDER METRICS OFFSET` with -I -S in train's own
interpreter: the folder of the ranks' status pages (toolkit/status_pages/layout.py), the file of captured metrics, and
the offset in it at which this attempt begins. The sidecar reads both once a second and posts changes, at most every
five seconds and once more on SIGTERM, which says that the script has ended. It posts nothing until it has progress or a
metric.

What Trainer expects (kubeflow/trainer v2.3: docs/proposals/2779-trainjob-progress, pkg/statusserver/server.go,
pkg/apis/trainer/v1alpha1/trainjob_types.go, pkg/runtime/framework/plugins/trainjobstatus):
- KUBEFLOW_TRAINER_SERVER_URL is the whole URL to post to, ..._SERVER_CA_CERT and ..._SERVER_TOKEN are paths of files.
  The token is bound to the TrainJob, lives an hour and is renewed in its file: both are read anew for each post.
- {"trainerStatus": {...}} takes the place of what was there, whole; lastUpdatedTime is required. At most 64 KiB.

Each post is a thread's: only so does a resolver or a server that hangs hold up nothing.
"""

import json
import os
import signal
import sys
import threading
import time

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from typing import Mapping, Optional

URL = "KUBEFLOW_TRAINER_SERVER_URL"
CA_CERT = "KUBEFLOW_TRAINER_SERVER_CA_CERT"
TOKEN = "KUBEFLOW_TRAINER_SERVER_TOKEN"
READ_S = 1.0
INTERVAL_S = 5.0  # What Kubeflow's SDK and Transformers' callback keep to.
MOST_INTERVAL_S = 60.0
ANSWER_S = 5.0
# The last post must have ended within the second that `train` gives what is left at the job's end (SWEEP_S).
LAST_S = 0.8
MOST_METRICS = 256
MOST_CHARACTERS = 64  # of a metric's name, and of its value
MOST_SECONDS = 2**31 - 1
READ_BYTES = 4 << 20


def main(argv: "list[str]") -> None:
    """Look and post until SIGTERM; does not return."""
    try:
        _run(argv)
    except Exception as error:  # noqa: BLE001 - whatever it is, the job continues
        _warn("gets no further progress (%s)" % type(error).__name__)
    os._exit(0)  # A thread may hang.


def _warn(problem: str) -> None:
    sys.stderr.write("[toolkit] warning: Kubeflow's status server %s; the job goes on\n" % problem)
    sys.stderr.flush()


def _run(argv: "list[str]") -> None:
    # First of all: sigtimedwait below takes it, and it must not end the process before.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    own_folder = os.path.dirname(os.path.abspath(__file__))  # toolkit/rank/hook
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(own_folder))))
    folder, metrics, pace, poster = argv[0], Metrics(argv[1], int(argv[2])), Pace(), Poster(os.environ)
    received = None
    while received is None:
        received = signal.sigtimedwait({signal.SIGTERM}, READ_S)
        metrics.read()
        fraction = read_progress(folder)
        now_s = time.monotonic()
        status = trainer_status(fraction, pace.remaining_s(fraction, now_s), metrics.values)
        poster.offer(status, (fraction, dict(metrics.values)), now_s, last=received is not None)


def read_progress(folder: str) -> "Optional[float]":
    """Return the lowest progress, 0 to 1, on the status pages in *folder*, None if there is none."""
    try:
        names = os.listdir(folder)
    except OSError:
        return None
    fractions = [_read_fraction(os.path.join(folder, name)) for name in names if name.startswith("rank-")]
    return min((min(max(fraction, 0.0), 1.0) for fraction in fractions if fraction is not None), default=None)


def _read_fraction(path: str) -> "Optional[float]":
    """Return the progress on the page *path*, None if there is none."""
    from toolkit.status_pages import layout as layout

    head, body = layout.RANK_HEAD, layout.RANK_BODY
    try:
        # A script may have put a fifo there: opening it must not block.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        start = os.pread(fd, head.size, 0)
        fields = layout.read_newer(lambda: os.pread(fd, 2 * body.size, head.size), body)
    except OSError:
        return None
    finally:
        os.close(fd)
    if fields is None or len(start) < head.size or head.unpack(start)[0] != layout.VERSION:
        return None
    fraction: float = fields[4]
    return fraction if fraction == fraction else None


class Metrics:
    """The latest value of each metric in a file of samples (toolkit/metrics/file.py), rank 0's if it has one."""

    def __init__(self, path: str, offset: int) -> None:
        self.values: "dict[str, str]" = {}
        self._path = path
        self._offset = offset
        self._of_rank_0: "set[str]" = set()

    def read(self) -> None:
        """Read the whole lines written since the last call, at most 4 MiB."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                piece = file.read(READ_BYTES)
        except OSError:
            return
        complete_bytes = piece.rfind(b"\n") + 1
        self._offset += complete_bytes or (len(piece) if len(piece) == READ_BYTES else 0)
        for line in piece[:complete_bytes].splitlines():
            try:
                sample = json.loads(line)
                self._take(sample["name"], sample["value"], sample["rank"])
            except (ValueError, TypeError, KeyError):
                continue  # A cut line: a full disk, a killed host.

    def _take(self, name: str, value: "float | str", rank: "Optional[int]") -> None:
        if rank == 0:
            self._of_rank_0.add(name)
        elif name in self._of_rank_0:
            return
        self.values[name] = format_value(value)


def format_value(value: "float | str") -> str:
    """Return *value* as people write it.

    >>> format_value(120.0), format_value(0.25), format_value("NaN")
    ('120', '0.25', 'NaN')
    """
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value)


class Pace:
    """The speed of progress since its first value: a job that resumes from a checkpoint does not begin at 0."""

    def __init__(self) -> None:
        self._first: "Optional[tuple[float, float]]" = None
        self._newest = 0.0

    def remaining_s(self, fraction: "Optional[float]", now_s: float) -> "Optional[int]":
        """Return the estimated seconds left at *fraction*, None if not known yet."""
        if fraction is None:
            return None
        if self._first is None or fraction < self._newest:
            self._first = (fraction, now_s)
        self._newest = fraction
        if fraction == 1:
            return 0
        from_fraction, from_s = self._first
        if fraction == from_fraction:
            return None
        return min(int((1 - fraction) * (now_s - from_s) / (fraction - from_fraction)), MOST_SECONDS)


def trainer_status(
    fraction: "Optional[float]", remaining_s: "Optional[int]", metrics: "dict[str, str]"
) -> "Optional[dict[str, object]]":
    """Return the trainerStatus, None if nothing is known."""
    if fraction is None and not metrics:
        return None
    status: "dict[str, object]" = {"lastUpdatedTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    if fraction is not None:
        status["progressPercentage"] = int(fraction * 100 + 1e-9)  # 0.29 * 100 is 28.999...
    if remaining_s is not None:
        status["estimatedRemainingSeconds"] = remaining_s
    if metrics:
        samples = list(metrics.items())[:MOST_METRICS]
        status["metrics"] = [
            {"name": name[:MOST_CHARACTERS], "value": value[:MOST_CHARACTERS]} for name, value in samples
        ]
    return status


class Poster:
    """Posts what has changed, one post at a time, and says once if that does not work."""

    def __init__(self, environ: "Mapping[str, str]") -> None:
        self._url = environ.get(URL, "")
        self._ca_cert = environ.get(CA_CERT, "")
        self._token = environ.get(TOKEN, "")
        self._posted: object = None
        self._offered: object = None
        self._thread: "Optional[threading.Thread]" = None
        self._began_s = 0.0
        self._problem = ""
        self._failures = 0
        self._has_warned = False

    def offer(self, status: "Optional[dict[str, object]]", news: object, now_s: float, *, last: bool = False) -> None:
        """Post *status* if *news* differs from that of the last post and the interval is over.

        *last*: whatever the interval, and wait for it, at most LAST_S in all. Not for a server that has failed.
        """
        ends_s = now_s + LAST_S
        if last and self._thread is not None:
            self._thread.join(max(self._began_s + LAST_S - now_s, 0.0))
        if self._thread is not None and self._thread.is_alive():
            return
        self._note_outcome()
        if status is None or news == self._posted or (last and self._failures):
            return
        if not last and self._began_s and now_s < self._began_s + self._interval_s():
            return
        self._offered, self._began_s = news, now_s
        self._thread = threading.Thread(target=self._post, args=(status,), daemon=True)
        self._thread.start()
        if last:
            self._thread.join(max(ends_s - time.monotonic(), 0.0))
            if not self._thread.is_alive():
                self._note_outcome()

    def _interval_s(self) -> float:
        return min(INTERVAL_S * (1 << min(self._failures, 8)), MOST_INTERVAL_S)

    def _note_outcome(self) -> None:
        """Note the outcome of the last post."""
        if self._thread is None:
            return
        self._thread = None
        if not self._problem:
            self._posted, self._failures = self._offered, 0
            return
        self._failures += 1
        if not self._has_warned:
            self._has_warned = True
            _warn("%s: the TrainJob shows no progress until it works again" % self._problem)

    def _post(self, status: "dict[str, object]") -> None:
        # Without the text of an error that may hold the token: a header that cannot be sent.
        try:
            code = send(self._url, self._ca_cert, self._token, status)
            self._problem = "" if 200 <= code < 300 else "answers with %d" % code
        except OSError as error:
            self._problem = "cannot be reached (%s)" % (error if str(error) else type(error).__name__)
        except Exception as error:  # noqa: BLE001 - whatever it is, the job continues
            self._problem = "cannot be reached (%s)" % type(error).__name__


def send(url: str, ca_cert: str, token: str, status: "dict[str, object]") -> int:
    """Post *status* and return the answer's status code. Proxies are left out: the server is the cluster's own.

    Raises:
        OSError: a file cannot be read, or the server not be reached, or it is not the one that *ca_cert* vouches for.
        Exception: what http.client raises for a URL or an answer that is none.
    """
    import http.client
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme == "https":
        import ssl

        context = ssl.create_default_context(cafile=ca_cert or None)
        link: http.client.HTTPConnection = http.client.HTTPSConnection(
            host, parts.port, timeout=ANSWER_S, context=context
        )
    else:
        link = http.client.HTTPConnection(host, parts.port, timeout=ANSWER_S)
    headers = {"Content-Type": "application/json"}
    if token:
        with open(token) as file:
            headers["Authorization"] = "Bearer " + file.read().strip()
    path = parts.path + ("?" + parts.query if parts.query else "")
    try:
        link.request("POST", path, json.dumps({"trainerStatus": status}).encode(), headers)
        code: int = link.getresponse().status
        return code
    finally:
        link.close()


if __name__ == "__main__":
    main(sys.argv[1:])
