"""What the compiled loops share: how they are compiled, and the two memory operations that numba lacks.

Every kernel releases the GIL, and is compiled at its first call and cached: beside the module if that is writable, else
under ``NUMBA_CACHE_DIR`` or the user's cache directory. With no such place it is compiled once per process (seconds).
numba notices a change of the kernel's own file only; after a change of this one, clear ``__pycache__``.

``NUMBA_BOUNDSCHECK=1`` makes each array access checked; :func:`copy_bytes` is checked always.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    """Compile ``function`` with numba in nopython mode."""
    try:
        return cast("Function", njit(cache=True, nogil=True)(function))
    except RuntimeError:  # numba found no directory that it can cache in
        return cast("Function", njit(nogil=True)(function))


@intrinsic
def _copy(typingctx: Any, target: Any, at: Any, source: Any, start: Any, size: Any) -> Any:
    """LLVM's memcpy; a loop over bytes takes four times as long."""
    signature = types.void(target, types.int64, source, types.int64, types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, at, source, start, size = arguments
        target_data = context.make_array(signature.args[0])(context, builder, target).data
        source_data = context.make_array(signature.args[2])(context, builder, source).data
        cgutils.raw_memcpy(  # type: ignore[no-untyped-call]
            builder, builder.gep(target_data, [at]), builder.gep(source_data, [start]), size, 1
        )
        return context.get_dummy_value()

    return signature, generate


_copy_unchecked = cast("Callable[[NDArray[np.uint8], int, NDArray[np.uint8], int, int], None]", _copy)


@intrinsic
def _load_u64(typingctx: Any, source: Any, at: Any) -> Any:
    """An unaligned 64-bit load."""
    signature = types.uint64(source, types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, at = arguments
        data = context.make_array(signature.args[0])(context, builder, source).data
        word = context.get_value_type(types.uint64)
        pointer = builder.bitcast(builder.gep(data, [at]), word.as_pointer())
        return builder.load(pointer, align=1)

    return signature, generate


load_u64 = cast("Callable[[NDArray[np.uint8], int], np.uint64]", _load_u64)
"""The 8 bytes at ``source[at:]`` as a little-endian number. NOT checked: the caller knows that they are there."""


@kernel
def copy_bytes(target: NDArray[np.uint8], at: int, source: NDArray[np.uint8], start: int, size: int) -> None:
    """Copy ``size`` bytes from ``source[start:]`` to ``target[at:]``; IndexError if either is too short."""
    if size < 0 or at < 0 or start < 0 or size > len(target) - at or size > len(source) - start:
        raise IndexError("copy out of bounds")
    _copy_unchecked(target, at, source, start, size)
