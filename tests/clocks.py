"""Wall clocks that a test can set, for the processes that it starts alone: a library of ours before libc's.

`CLOCK_STEP_FILE` names a file that holds the seconds by which the wall clock of these processes is ahead (none without
it); what they start inherits it. `CLOCK_MONOTONIC_AHEAD` moves their monotonic clock, as on another machine, for good.
The machine's own clock is not touched.
"""

import shutil
import subprocess
from pathlib import Path

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long wall_ahead(void) {
    char text[32] = {0};
    const char *path = getenv("CLOCK_STEP_FILE");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return 0;
    if (read(file, text, sizeof text - 1) < 0) text[0] = 0;
    close(file);
    return atol(text);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, now);
    if (failed) return failed;
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) now->tv_sec += wall_ahead();
    if (clock == CLOCK_MONOTONIC && getenv("CLOCK_MONOTONIC_AHEAD"))
        now->tv_sec += atol(getenv("CLOCK_MONOTONIC_AHEAD"));
    return 0;
}

time_t time(time_t *told) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (told) *told = now.tv_sec;
    return now.tv_sec;
}

/* time.sleep's: it waits for a moment of the clock that it was shown. */
int clock_nanosleep(clockid_t clock, int flags, const struct timespec *until, struct timespec *rest) {
    static int (*real)(clockid_t, int, const struct timespec *, struct timespec *);
    struct timespec moment = *until;
    if (!real) real = dlsym(RTLD_NEXT, "clock_nanosleep");
    if (clock == CLOCK_MONOTONIC && flags == TIMER_ABSTIME && getenv("CLOCK_MONOTONIC_AHEAD"))
        moment.tv_sec -= atol(getenv("CLOCK_MONOTONIC_AHEAD"));
    return real(clock, flags, &moment, rest);
}

int gettimeofday(struct timeval *restrict told, void *restrict zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    told->tv_sec = now.tv_sec;
    told->tv_usec = now.tv_nsec / 1000;
    return 0;
}
"""


def missing() -> str:
    """Return what this machine lacks for it, "" if nothing."""
    return "" if shutil.which("cc") else "no C compiler (cc)"


def build(folder: Path) -> Path:
    """Compile the library into *folder*."""
    library = folder / "clock.so"
    source = folder / "clock.c"
    source.write_text(SOURCE)
    command = ("cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl")
    subprocess.run(command, check=True, capture_output=True)
    return library


class WallClock:
    """The wall clock of one host's processes."""

    def __init__(self, library: Path, file: Path) -> None:
        self._file = file
        self.environ = {"LD_PRELOAD": str(library), "CLOCK_STEP_FILE": str(file)}

    def set_ahead(self, seconds: int) -> None:
        """Let it be so far ahead from now on."""
        draft = self._file.with_suffix(".draft")
        draft.write_text(str(seconds))
        draft.rename(self._file)
