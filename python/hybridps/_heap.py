"""The C library's heap between two steps.

A managed gradient is copied to its place as soon as autograd has made it, so that what backward has
freed lies at the heap's end, where glibc gives it back to the kernel; the next step then begins with
a fault for each of these pages, a twelfth of the time of a small model's step. Plain torch keeps
its gradients there until zero_grad and so escapes it by luck.
"""
from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGEST = 32 << 20  # that glibc lets a block of the heap be


def keep_freed() -> bool:
    """What the process frees stays its own for the next step. False without glibc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST)) and bool(mallopt(_M_TRIM_THRESHOLD, -1))
