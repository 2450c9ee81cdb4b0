"""The C library's heap between two steps.

A managed gradient is copied to its place as soon as autograd has made it. So memory that backward
frees lies at the end of the heap, and glibc returns it to the kernel. The next step then takes a
fault for each of these pages, a twelfth of the time of a small model's step. Plain torch avoids
this by luck, because its gradients stay there until zero_grad.
"""
from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGEST = 32 << 20  # largest heap block that glibc allows


def keep_freed() -> bool:
    """Make the process keep freed memory for the next step. False without glibc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST)) and bool(mallopt(_M_TRIM_THRESHOLD, -1))
