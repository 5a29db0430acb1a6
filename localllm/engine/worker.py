"""Runs a computation where it can neither overflow the stack nor keep Ctrl-C waiting.

llama.cpp's pre-tokenizers recurse over long runs of one character, and a chat template is a program from a
stranger; both run in a thread with a large stack, while the caller stays free to notice a signal or a deadline.
"""

import ctypes
import threading
from collections.abc import Callable
from typing import TypeVar

from localllm.cancel import Cancel
from localllm.errors import OutOfMemory

T = TypeVar("T")
_STACK_BYTES = (2**29, 2**26, 2**23)  # address space only: pages that are not touched cost nothing
_POLL_S = 0.02
_start_lock = threading.Lock()  # the stack size is a setting of the whole process
_left_behind: list[threading.Thread] = []


class _Stopped(BaseException):
    """Thrown into a worker that is no longer wanted; not an Exception, so that nothing swallows it."""


def run_in_worker(compute: Callable[[], T], cancel: Cancel, limit_s: float | None = None) -> T:
    """The result of ``compute()``, or what it raised.

    Raises Cancelled when ``cancel`` is set and TimeoutError after ``limit_s`` seconds. The worker is then told to
    stop, which takes effect as soon as it executes Python again; ``wait_for_workers`` waits for that.
    """
    results: list[T] = []
    failures: list[BaseException] = []

    def work() -> None:
        try:
            results.append(compute())
        except BaseException as error:  # handed to the caller, whatever it is
            failures.append(error)

    thread = _start(work)
    waited_s = 0.0
    while thread.is_alive():
        thread.join(_POLL_S)
        waited_s += _POLL_S
        timed_out = limit_s is not None and waited_s > limit_s
        if thread.is_alive() and (cancel() or timed_out):
            _stop(thread)
            _left_behind.append(thread)
            cancel.check()
            raise TimeoutError(f"took more than {limit_s:g} s")
    if failures:
        raise failures[0]
    return results[0]


def wait_for_workers() -> None:
    """Return when no worker that was left behind can use a model any more, so that it can be freed."""
    while _left_behind:
        _left_behind.pop().join()


def _start(work: Callable[[], None]) -> threading.Thread:
    """Start ``work`` with the largest stack that there is room for."""
    for stack_bytes in _STACK_BYTES:
        thread = threading.Thread(target=work, daemon=True)
        with _start_lock:
            before = threading.stack_size(stack_bytes)
            try:
                thread.start()
            except RuntimeError:  # no room for it
                continue
            finally:
                threading.stack_size(before)
        return thread
    raise OutOfMemory("there is no memory left for a thread", "close other programs, or choose a smaller --ctx-size")


def _stop(thread: threading.Thread) -> None:
    """Raise ``_Stopped`` in ``thread`` (CPython C API, PyThreadState_SetAsyncExc)."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(_Stopped))
