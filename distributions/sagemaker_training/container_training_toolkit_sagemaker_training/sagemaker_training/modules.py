"""The user's code as modules and packages."""

import importlib
import os
import subprocess
import sys
from types import ModuleType
from typing import Any

from sagemaker_training import environment, errors, files, logging_config
from toolkit.train.source import codeartifact
from toolkit.train.source.install import REQUIREMENTS
from toolkit.train.source.installer import PIP_OPTIONS

DEFAULT_MODULE_NAME = "default_user_module_name"
CA_REPOSITORY_ARN_ENV = codeartifact.VARIABLE
SETUP = (
    "from setuptools import setup\n\nsetup(name={name!r}, version='1.0.0', packages=[''], include_package_data=True)\n"
)

logger = logging_config.get_logger()


def exists(name: str) -> bool:
    """Return whether the module *name* can be imported. It is."""
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True


def has_requirements(path: str) -> bool:
    """Return whether the folder *path* has a requirements.txt."""
    return os.path.exists(os.path.join(path, REQUIREMENTS))


def prepare(path: str, name: str) -> None:
    """Make a package *name* of the modules in the folder *path*, unless it has a setup.py."""
    setup = os.path.join(path, "setup.py")
    if not os.path.exists(setup):
        logger.info("%s has no setup.py: making one for %s", path, name)
        files.write_file(setup, SETUP.format(name=name))
        # Data files beside the modules belong to the package, too.
        files.write_file(os.path.join(path, "MANIFEST.in"), "recursive-include . *\nglobal-exclude *.py[co]\n")


def install(path: str, capture_error: bool = False) -> None:
    """Install the package in the folder *path*, with its requirements.txt.

    Raises:
        InstallModuleError: pip failed.
    """
    more = ("-r", REQUIREMENTS) if has_requirements(path) else ()
    _pip((".", *more), path, errors.InstallModuleError, capture_error)


def install_requirements(path: str, capture_error: bool = False) -> None:
    """Install requirements.txt of the folder *path*.

    Raises:
        InstallRequirementsError: pip failed.
    """
    _pip(("-r", REQUIREMENTS), path, errors.InstallRequirementsError, capture_error)


def import_module(uri: str, name: str = DEFAULT_MODULE_NAME) -> ModuleType:
    """Fetch the source at *uri*, install it as the package *name*, and return the module of this name.

    Raises:
        InstallModuleError: pip failed.
        ImportModuleError: the module cannot be imported.
    """
    files.download_and_extract(uri, environment.code_dir)
    prepare(environment.code_dir, name)
    install(environment.code_dir)
    importlib.invalidate_caches()
    try:
        return importlib.reload(importlib.import_module(name))
    except Exception as error:
        raise errors.ImportModuleError(error) from error


def _pip(requirements: tuple[str, ...], path: str, kind: Any, capture_error: bool) -> None:
    """Run pip in the folder *path*; CA_REPOSITORY_ARN names its only index, whose token is in no argument."""
    environ = dict(os.environ)
    if arn := environ.get(CA_REPOSITORY_ARN_ENV):
        environ = codeartifact.environ_of(environ, codeartifact.index(arn))
    words = (sys.executable, "-m", "pip", "install", *PIP_OPTIONS, *requirements)
    logger.info("Installing: %s", " ".join(words))
    done = subprocess.run(words, cwd=path, env=environ, stderr=subprocess.PIPE if capture_error else None)
    if done.returncode:
        raise kind(" ".join(words), done.returncode, done.stderr)
