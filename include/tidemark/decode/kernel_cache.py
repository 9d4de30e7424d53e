"""The files of compiled kernels: a machine compiles each kernel once.

A kernel is kept in a file that is named after what its machine code depends on: the bytecode of its function and of
all functions and constants that it uses, the modules where they are, the types of its arguments, the versions of
Python, numba, LLVM and numpy, the CPU, and numba's settings. Paths and times do not matter: two checkouts of the same
code share the file.

=============================  ======================================================================================
directory                      who writes it
=============================  ======================================================================================
``<prefix>/share/tidemark``    ``python -m tidemark.decode.compile --installation``, once, by who installs the
                               environment (``sys.prefix``); all users of the installation read it
``NUMBA_CACHE_DIR``, else the  any process that finds a kernel in neither directory, under a lock: it compiles all
user's ``~/.cache/tidemark``   that are missing, and says so; others wait for it, and say so
=============================  ======================================================================================

A file holds machine code: one that neither root, this user nor the owner of this code has written is not loaded. Where
nothing can be written, each process compiles for itself, and says that.

Source: numba's own cache (``numba.core.caching``), whose serialization this uses. That cache goes by path, and does not
see a change in a file other than the kernel's own.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib
import logging
import os
import pickle
import sys
import threading
import time
from collections.abc import Collection, Iterable
from functools import cache, cached_property
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final

import llvmlite
import numba
import numpy as np
from numba import config
from numba.core.compiler import CompileResult
from numba.core.registry import cpu_target
from numba.core.runtime.nrt import rtsys
from numba.core.serialize import dumps
from numba.core.types import Type
from numba.extending import is_jitted

from tidemark import user_cache

MODULES: Final = (
    "tidemark.decode.batch_headers",
    "tidemark.decode.kernel",
    "tidemark.decode.rowhash",
    "tidemark.erasure.matcher",
    "tidemark.parsers.avro.kernel",
    "tidemark.parsers.json.batch",
    "tidemark.parsers.json.parts_kernel",
    "tidemark.parsers.protobuf.kernel",
    "tidemark.parsers.slots",
)
"""The modules with kernels; they register as they are imported."""

PARSERS: Final = {
    "avro": ("tidemark.parsers.avro.kernel", "tidemark.parsers.slots"),
    "json": ("tidemark.parsers.json.batch", "tidemark.parsers.json.parts_kernel"),
    "protobuf": ("tidemark.parsers.protobuf.kernel", "tidemark.parsers.slots"),
}
"""Those of ``MODULES`` that only parsers of a kind need; a kind that is not here needs none of them."""

_DIGEST_BYTES: Final = hashlib.sha256().digest_size
_SECONDS_EACH: Final = 3
"""Seconds of a core to compile a kernel; measured 0.7 to 4.2."""

# numba has no types, and no public way to keep machine code.
_settings: Any = config
_dumps: Any = dumps
_rebuild: Any = CompileResult._rebuild

_log = logging.getLogger(__name__)
_registered: dict[str, Kernel] = {}
_loading = threading.RLock()


class _UnusableError(OSError):
    """A file with machine code is there, and not to be loaded."""


class Kernel:
    """A compiled function; loaded, or else compiled, at the first call."""

    def __init__(self, dispatcher: Any, arguments: tuple[Type, ...]) -> None:
        """For :func:`tidemark.decode.jit.kernel`. ``dispatcher`` is numba's, which has compiled nothing yet."""
        self._dispatcher = dispatcher
        self._arguments = arguments
        self.ready = False
        self.module = dispatcher.py_func.__module__
        self.name = f"{self.module}.{dispatcher.py_func.__name__}"
        _registered[self.name] = self

    def __call__(self, *arguments: Any) -> Any:
        """Call it. Raises TypeError for arguments of other types than declared."""
        if not self.ready:
            self.get_ready()
        return self._dispatcher(*arguments)

    def get_ready(self) -> None:
        """Load or compile it, unless that is done."""
        with _loading:
            if not self.ready:
                self._load_or_compile()

    @cached_property
    def file_name(self) -> str:
        """Names the machine code."""
        parts = [_machine(), repr(self._arguments), *_traits(self._dispatcher.py_func, set())]
        return f"{self.name}-{hashlib.sha256(repr(parts).encode()).hexdigest()[:16]}"

    def load(self, path: Path) -> bool:
        """Take the machine code from a file; False if there is none that can be trusted."""
        try:
            code = _code_in(path)
        except _UnusableError as error:
            _log.warning("%s", error)
            return False
        except OSError:
            return False
        target = self._dispatcher.targetctx
        # Instead of numba's refresh, which imports for 0.7 CPU-s what only the compiler needs.
        rtsys.initialize(target)
        self._dispatcher.add_overload(_rebuild(target, *pickle.loads(code)))  # noqa: S301  # see its owner
        self._seal()
        return True

    def compile(self) -> bytes:
        """Compile it, and return what :meth:`load` takes."""
        self._dispatcher.compile(self._arguments)
        self._seal()
        code: bytes = _dumps(self._dispatcher.overloads[self._arguments]._reduce())
        return hashlib.sha256(code).digest() + code

    def _load_or_compile(self) -> None:
        if any(self.load(folder() / self.file_name) for folder in (installation, written_folder)):
            return
        try:
            made = ensure(written_folder())
        except OSError as error:
            _log.warning("compiling %s only for this process, in about %d s: %s", self.name, _SECONDS_EACH, error)
            self.compile()
            return
        if self not in made:  # another process has
            self.load(written_folder() / self.file_name)

    def _seal(self) -> None:
        """Arguments of other types are an error from here on."""
        self._dispatcher.disable_compile()
        self.ready = True


def installation() -> Path:
    """The directory of this environment."""
    return Path(sys.prefix) / "share" / "tidemark" / "kernels"


def load_all(parsers: Collection[str] = tuple(PARSERS)) -> None:
    """Load all kernels, or compile them: so that none of what comes next takes the seconds for it.

    Of those that only parsers need, only these kinds'.
    """
    for kernel in _kernels_of(parsers):
        kernel.get_ready()


def ensure(folder: Path, parsers: Collection[str] = tuple(PARSERS)) -> list[Kernel]:
    """Compile the kernels that ``folder`` and this process lack, and return them; waits while another process does so.

    Of those that only parsers need, only these kinds'. Raises OSError if ``folder`` cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _log.warning("waiting for another process that compiles the decoder's kernels into %s", folder)
            fcntl.flock(lock, fcntl.LOCK_EX)
        missing = [
            kernel for kernel in _kernels_of(parsers) if not kernel.ready and not _is_usable(folder / kernel.file_name)
        ]
        if missing:
            _compile_into(folder, missing)
    return missing


def _kernels_of(parsers: Collection[str]) -> list[Kernel]:
    """All kernels but those that only parsers of other kinds need."""
    needed = {module for kind in parsers for module in PARSERS.get(kind, ())}
    others = {module for modules in PARSERS.values() for module in modules} - needed
    modules = [module for module in MODULES if module not in others]
    for module in modules:
        importlib.import_module(module)
    return [kernel for kernel in _registered.values() if kernel.module in modules]


def _code_in(path: Path) -> bytes:
    """The machine code in a file. Raises _UnusableError, or another OSError if there is none."""
    if path.stat().st_uid not in {0, os.geteuid(), Path(__file__).stat().st_uid}:
        raise _UnusableError(f"{path} is not loaded: its owner is neither this user, root nor the code's owner")
    data = path.read_bytes()
    digest, code = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if hashlib.sha256(code).digest() != digest:
        raise _UnusableError(f"{path} is damaged and not loaded")
    return code


def _is_usable(path: Path) -> bool:
    try:
        _code_in(path)
    except OSError:
        return False
    return True


def _compile_into(folder: Path, missing: list[Kernel]) -> None:
    seconds = _SECONDS_EACH * len(missing)
    _log.warning("compiling %d of the decoder's kernels into %s: takes about %d s", len(missing), folder, seconds)
    began = time.monotonic()
    for kernel in missing:
        partial = folder / f".{kernel.file_name}.{os.getpid()}"
        partial.write_bytes(kernel.compile())
        partial.replace(folder / kernel.file_name)
    _log.warning("compiled in %.1f s", time.monotonic() - began)


def written_folder() -> Path:
    """The directory that processes write."""
    return Path(_settings.CACHE_DIR) if _settings.CACHE_DIR else user_cache.folder("kernels")


@cache
def _machine() -> tuple[object, ...]:
    """What the machine code of all kernels depends on."""
    versions = (sys.implementation.cache_tag, numba.__version__, llvmlite.__version__, np.__version__)
    settings = (_settings.BOUNDSCHECK, _settings.DEBUGINFO_DEFAULT, _settings.OPT)
    return (*versions, *map(str, settings), *cpu_target.target_context.codegen().magic_tuple())


def _traits(function: FunctionType, seen: set[FunctionType]) -> Iterable[object]:
    """What a function does: its bytecode, and the values of the globals that it and its helpers name."""
    if function in seen:
        return
    seen.add(function)
    yield function.__module__  # the file names it, and cannot be loaded where the code has moved on
    yield function.__defaults__
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
        yield code.co_code
        yield [constant for constant in code.co_consts if not isinstance(constant, CodeType)]
        for name in code.co_names:
            value: Any = function.__globals__.get(name)
            value = value.py_func if is_jitted(value) else getattr(value, "_defn", value)  # intrinsics have a _defn
            yield name
            if isinstance(value, FunctionType):
                yield from _traits(value, seen)
            else:
                yield getattr(value, "__qualname__", None) or getattr(value, "__name__", None) or repr(value)
