"""Imports the toolkit's modules from two files, in a container to which a job of SageMaker's SDK v3 has brought them.

As files of their own, 650 modules would cost the first start of each container 70 ms. scripts/carried-packs puts this
module into the toolkit that a job carries, as toolkit/carried_modules.py, and its toolkit/__init__.py calls `install`.
Of toolkit/rank, the modules that ranks run by their paths stay files.

- COMPILED: the modules that `train` and its processes import in most jobs, compiled for one version of Python: its
  magic number, then {name: (is a package, code)} by marshal.
- SOURCES: the source of all modules, as a pack of scripts/carried-packs. A module that is not in COMPILED is compiled
  from here, in memory: `train` must be able to say that the disk is full. So is each in a Python of another version.

toolkit_start.py has compared both with their SHA-256. Ranks may run a Python as old as 3.8.
"""

import marshal
import sys
from _frozen_importlib import ModuleSpec  # Of importlib.machinery, without its import.
from _frozen_importlib_external import MAGIC_NUMBER
from _imp import _fix_co_filename  # type: ignore[attr-defined]  # As zipimport.

COMPILED, SOURCES = "toolkit.compiled", "toolkit.sources"
PACKAGE = "/__init__.py"
TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType, ModuleType


class CarriedModules:
    """Finds and loads the modules below the package *package*, which is the toolkit, that have no file of their own."""

    def __init__(self, package: str, folder: str) -> None:
        self._package = package  # Another name than toolkit where a script has a package of that name.
        self._folder = folder
        self._compiled = _read_compiled(folder + "/" + COMPILED)
        self._read: dict[str, tuple[bool, bytes]] | None = None

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """Return the spec of module *name*; None if it is none of these."""
        if not name.startswith(self._package + "."):
            return None
        key = self._key(name)
        module = self._compiled.get(key) or self._sources.get(key)
        if module is None:
            return None
        origin = self._path(key, is_package=module[0])
        spec = ModuleSpec(name, self, origin=origin, is_package=module[0])  # type: ignore[arg-type]  # None of importlib.abc.
        spec.has_location = True  # Modules find the files of toolkit/rank from their __file__.
        if module[0]:
            spec.submodule_search_locations = [origin[: -len(PACKAGE)]]
        return spec

    def create_module(self, spec: "ModuleSpec") -> None:
        """Let Python make the module."""

    def exec_module(self, module: "ModuleType") -> None:
        """Run the code of *module*."""
        exec(self.get_code(module.__name__), module.__dict__)

    def get_code(self, name: str) -> "CodeType":
        """Return the code of module *name*; runpy asks for it."""
        key = self._key(name)
        if key in self._compiled:
            is_package, compiled = self._compiled[key]
            code: CodeType = marshal.loads(compiled)
            _fix_co_filename(code, self._path(key, is_package=is_package))
            return code
        is_package, source = self._sources[key]
        return compile(source, self._path(key, is_package=is_package), "exec", dont_inherit=True)

    def get_source(self, name: str) -> str:
        """Return the source of module *name*, for tracebacks."""
        return str(self._sources[self._key(name)][1], "utf-8")

    def is_package(self, name: str) -> bool:
        """True if module *name* is a package."""
        key = self._key(name)
        return (self._compiled.get(key) or self._sources[key])[0]

    def _key(self, name: str) -> str:
        return "toolkit" + name[len(self._package) :]

    @property
    def _sources(self) -> "dict[str, tuple[bool, bytes]]":
        if self._read is None:
            self._read = _read_sources(self._folder + "/" + SOURCES)
        return self._read

    def _path(self, key: str, *, is_package: bool) -> str:
        """Return where the module *key* would lie as a file."""
        return self._folder + "/" + key.replace(".", "/") + (PACKAGE if is_package else ".py")


def install(package: str, init: str) -> None:
    """Let `import` find the modules beside toolkit/__init__.py, whose path is *init*; without SOURCES do nothing."""
    import os

    folder = os.path.abspath(init)[: -len("/toolkit" + PACKAGE)]
    if os.path.exists(folder + "/" + SOURCES):
        sys.meta_path.insert(0, CarriedModules(package, folder))


def _read_compiled(path: str) -> "dict[str, tuple[bool, bytes]]":
    with open(path, "rb") as file:
        if file.read(len(MAGIC_NUMBER)) != MAGIC_NUMBER:
            return {}
        compiled: dict[str, tuple[bool, bytes]] = marshal.loads(file.read())
        return compiled


def _read_sources(path: str) -> "dict[str, tuple[bool, bytes]]":
    import zlib

    with open(path, "rb") as file:
        head, _, rest = zlib.decompress(file.read()).partition(b"\n\n")
    sources, begins = {}, 0
    for line in head.decode().split("\n"):
        size, _, name = line.partition(" ")
        ends = begins + int(size)
        is_package = name.endswith(PACKAGE)
        sources[name[: -len(PACKAGE if is_package else ".py")].replace("/", ".")] = (is_package, rest[begins:ends])
        begins = ends
    return sources
