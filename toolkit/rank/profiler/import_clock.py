"""Measures how long a rank's script imports before its first step, by the package that it imports.

It is the first finder of sys.meta_path, and returns what the others find. Python sets `_initializing` of a module's
spec before and after it runs the module's code, so a spec that notices this tells how long that took: nothing of ours
is on the stack meanwhile, neither in tracebacks nor where warnings count frames. While a package imports its own parts,
the finder steps aside. A module beside the script is not measured as one: what it imports is. What a finder in front of
this one finds, or a loader that is used without the import system (importlib.util.LazyLoader), is not seen.

The rank hook loads it by its path, at the start of every Python of a rank whose steps are measured, so it imports
almost nothing.
"""

import os
import sys
from _thread import get_ident
from time import monotonic_ns

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from typing import Any
else:
    ModuleSpec = type(sys.__spec__)

ATTRIBUTE = "_toolkit_import_clock"  # Of sys: this file is loaded by its path, and its readers are modules.
MOST_IMPORTS = 5_000
KEPT_PACKAGES = 5


class ImportClock:
    """The imports of the main thread, and the time that it took to form process groups."""

    def __init__(self) -> None:
        self.began_ns = monotonic_ns()
        """When this interpreter began to run the script's command."""
        self._imports: list[tuple[int, int, str]] = []  # Begin, duration and package of each.
        self._groups: list[tuple[int, int]] = []  # Begin and duration of each call of init_process_group.
        self._is_searching = False
        self._newest_spec: tuple[ModuleSpec | None, int] = (None, 0)  # Of the last search, and when that began.
        self._loading: tuple[ModuleSpec | None, int] = (None, 0)  # The package, and when its import began.
        self._has_stopped = False
        self._thread = get_ident()
        self._pid = os.getpid()

    def start(self) -> None:
        """Measure from now on."""
        _WatchedSpec.clock = self
        sys.meta_path.insert(0, self)

    def stop(self) -> None:
        """Measure no more. The finder stays: to take it away would make a search in another thread miss one."""
        self._has_stopped = True

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "ModuleSpec | None":
        """Return what the other finders find, None while nothing is measured: then Python asks them itself.

        It also does where they find nothing, or raise an error, which is then theirs alone.
        """
        is_aside = self._has_stopped or self._is_searching or self._loading[0] is not None or target is not None
        if is_aside or get_ident() != self._thread:
            return None
        begin_ns = monotonic_ns()
        self._is_searching = True
        try:
            spec = self._ask_others(name, path)
            if spec is None:
                self._note(begin_ns, name)
            elif type(spec) is ModuleSpec and not _is_beside_script(spec):
                self._newest_spec = spec, begin_ns
                spec.__class__ = _WatchedSpec
            return spec
        except Exception:  # noqa: BLE001
            return None
        finally:
            self._is_searching = False

    def _ask_others(self, name: str, path: "Any") -> "ModuleSpec | None":
        for finder in list(sys.meta_path):
            if finder is not self:
                spec = finder.find_spec(name, path, None)
                if spec is not None:
                    return spec
        return None

    def note_load(self, spec: ModuleSpec, *, begins: bool) -> None:
        """The code of the module of *spec* begins to run, or has ended."""
        if begins and self._loading[0] is None and get_ident() == self._thread and not self._has_stopped:
            self._loading = spec, self._newest_spec[1] if self._newest_spec[0] is spec else monotonic_ns()
            self._newest_spec = None, 0
        elif not begins:
            spec.__class__ = ModuleSpec
            if self._loading[0] is spec:
                self._note(self._loading[1], spec.name)
                self._loading = None, 0

    def _note(self, begin_ns: int, name: str) -> None:
        if len(self._imports) < MOST_IMPORTS:
            self._imports.append((begin_ns, monotonic_ns() - begin_ns, name.partition(".")[0]))

    def formed_group(self, begin_ns: int) -> None:
        """A process group was formed since *begin_ns*."""
        self._groups.append((begin_ns, monotonic_ns() - begin_ns))

    def describe(self, first_step_ns: int) -> "dict[str, Any]":
        """Return what happened before the first step, which began at *first_step_ns*; see series/start_up.py."""
        imports = [(took_ns, package) for begin_ns, took_ns, package in self._imports if begin_ns < first_step_ns]
        by_package: dict[str, int] = {}
        for took_ns, package in imports:
            by_package[package] = by_package.get(package, 0) + took_ns
        slowest = sorted(by_package.items(), key=lambda item: -item[1])[:KEPT_PACKAGES]
        mounts = _read_mounts()
        return {
            "before_s": max(first_step_ns - self.began_ns, 0) / 1e9,
            "imports_s": sum(by_package.values()) / 1e9,
            "group_s": sum(took_ns for begin_ns, took_ns in self._groups if begin_ns < first_step_ns) / 1e9,
            "packages": [
                {"name": package, "took_s": took_ns / 1e9, "filesystem": _find_filesystem(package, mounts)}
                for package, took_ns in slowest
            ],
        }

    def is_of_this_process(self) -> bool:
        """True if this process has run from its start; False in a forked child."""
        return self._pid == os.getpid()


class _WatchedSpec(ModuleSpec):
    """A spec that tells the clock when its module's code begins to run and has ended; then it is one as any other."""

    clock: ImportClock

    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)
        if name == "_initializing":
            self.clock.note_load(self, begins=bool(value))


_WatchedSpec.__name__ = _WatchedSpec.__qualname__ = ModuleSpec.__name__  # In the text of one that is never loaded.


def _is_beside_script(spec: ModuleSpec) -> bool:
    """True for a module of the script's own."""
    place = spec.origin if spec.has_location else next(iter(spec.submodule_search_locations or ()), None)
    if not place or not sys.path:
        return False
    folder = os.path.abspath(sys.path[0])
    return "-packages" not in place and os.path.abspath(place).startswith(folder.rstrip(os.sep) + os.sep)


def watch() -> None:
    """Measure the imports of this process from now on; only the first call counts."""
    if not hasattr(sys, ATTRIBUTE):
        clock = ImportClock()
        setattr(sys, ATTRIBUTE, clock)
        clock.start()


def _read_mounts() -> "list[tuple[str, str]]":
    """Return the folder and the file system of each mount, the longest paths first."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
            rows = [line.split(" - ") for line in file]
    except OSError:
        return []
    mounts = [(row[0].split()[4], row[1].split()[0]) for row in rows if len(row) == 2]
    return sorted(mounts, key=lambda mount: -len(mount[0]))


def _find_filesystem(package: str, mounts: "list[tuple[str, str]]") -> str:
    """Return the file system that *package* was imported from, "" if it has no file or that is not known."""
    file = getattr(sys.modules.get(package), "__file__", None)
    if not isinstance(file, str):
        return ""
    path = os.path.realpath(file)
    return next((kind for folder, kind in mounts if path.startswith(folder.rstrip("/") + "/")), "")
