"""llama.cpp's C API as llama-cpp-python declares it: the only module that imports llama_cpp.

Knows how to load the declarations without the rest of the package, and which environment llama.cpp wants before.
"""

import functools
import importlib
import importlib.util
import os
import sys
import types
from typing import TYPE_CHECKING

os.environ.setdefault("GGML_NO_BACKTRACE", "1")  # a failed assertion would start a debugger for its backtrace
if "OMP_WAIT_POLICY" not in os.environ:  # threads that spin long at a barrier starve each other on a busy machine
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")

__all__ = ["build", "has_amx", "lib", "libggml", "library"]

_PACKAGE = "llama_cpp"


def _declarations() -> tuple[types.ModuleType, types.ModuleType]:
    """The modules with the functions of llama.cpp and of ggml.

    The package's own beginning loads chat formats, NumPy and a disk cache, which takes longer than llama.cpp itself.
    So it is not run: a bare package stands in while its two modules are loaded. Who imports the package later gets
    all of it, with these same modules.
    """
    spec = None if _PACKAGE in sys.modules else importlib.util.find_spec(_PACKAGE)
    if spec and spec.submodule_search_locations:
        bare = types.ModuleType(_PACKAGE)
        bare.__path__ = list(spec.submodule_search_locations)
        sys.modules[_PACKAGE] = bare
    try:
        return importlib.import_module(f"{_PACKAGE}.llama_cpp"), importlib.import_module(f"{_PACKAGE}._ggml")
    finally:
        if spec:
            del sys.modules[_PACKAGE]


if TYPE_CHECKING:
    import llama_cpp.llama_cpp as lib
    from llama_cpp._ggml import libggml
else:
    lib, _ggml = _declarations()
    libggml = _ggml.libggml


@functools.cache
def library() -> tuple[int, int, int]:
    """Which llama.cpp this is: size in bytes and dates (ns) of its file, as a build has no other name."""
    found = os.stat(lib._lib._name)  # noqa: PTH116
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns


def build() -> str:
    """What was built and runs here, as far as results depend on it: the library, and the processor's features."""
    return f"{library()} {lib.llama_print_system_info().decode()}"


@functools.cache
def has_amx() -> bool:
    """Whether this build multiplies matrices by AMX, which server processors of Intel's have.

    Its kernels end the process with SIGSEGV where the compiler has optimised their tile configuration away
    (GCC 12 does; https://github.com/ggml-org/llama.cpp/pull/26954).
    """
    return b"AMX_INT8 = 1" in lib.llama_print_system_info()
