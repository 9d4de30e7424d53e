"""The declaration of compiled loops, and the two memory operations that numba lacks.

A :func:`kernel` is called from Python and names the types of its arguments, for which it is compiled once per machine:
see ``kernel_cache``. A function that only kernels call is a :func:`helper`, compiled as a part of each of them. All
release the GIL.

``NUMBA_BOUNDSCHECK=1`` makes each array access checked; :func:`copy_bytes` is checked always.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit, typeof, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from tidemark.decode.kernel_cache import Kernel

Function = TypeVar("Function", bound=Callable[..., Any])

READ_ONLY_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
BOOLEANS = types.boolean[::1]
READ_ONLY_INT32 = types.Array(types.int32, 1, "C", readonly=True)
BYTES = types.uint8[::1]
NUMBERS = types.int64[::1]
NUMBER_ROWS = types.int64[:, ::1]


def type_of(value: object) -> types.Type:
    """The type of an argument like ``value``."""
    kind: types.Type = typeof(value)  # type: ignore[no-untyped-call]  # numba has no types here
    return kind


def helper(function: Function) -> Function:
    """Compile ``function`` within the kernels that call it."""
    return cast("Function", njit(nogil=True)(function))


def kernel(*arguments: types.Type) -> Callable[[Function], Function]:
    """Compile a function for arguments of these types, and of no others."""

    def declare(function: Function) -> Function:
        return cast("Function", Kernel(njit(nogil=True)(function), arguments))

    return declare


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


@helper
def copy_bytes(target: NDArray[np.uint8], at: int, source: NDArray[np.uint8], start: int, size: int) -> None:
    """Copy ``size`` bytes from ``source[start:]`` to ``target[at:]``; IndexError if either is too short."""
    if size < 0 or at < 0 or start < 0 or size > len(target) - at or size > len(source) - start:
        raise IndexError("copy out of bounds")
    _copy_unchecked(target, at, source, start, size)
