"""The error tree: everything that can go wrong for a reason outside this program.

LocalLLMError                 exit  code
├── UsageError                2     usage              a flag, a value or an empty prompt
├── PromptTooLong             3     prompt_too_long    refused before prefill
├── Unavailable               4     unavailable        what the answer needs is not there
│   ├── ModelNotFound         4     model_not_found    no such name or file
│   ├── ModelFileError        4     bad_model_file     a file that is not a usable GGUF
│   ├── CatalogError          4     bad_catalog        models.yaml cannot be used as it is
│   ├── DownloadError         4     download_failed    network, hub, index or disk
│   └── OutOfMemory           4     out_of_memory      the model or its context does not fit
├── Cancelled                 130   interrupted        stopped before there was an answer (124 timeout)
├── TranscriptError           1     bad_history        the stored conversations cannot be read or written
├── TemplateError             1     bad_template       the model's chat template fails or misbehaves
└── DecodeError               1     decode_failed      llama.cpp reported a failure

They are caught where a person is told of them: by ``cli.main``, and by a chat that goes on. Any other exception is a
bug of ours and shows a traceback.
An answer that ends early (interrupted, timeout, context full) is not an error: see ``TurnEnd.reason`` and
``EXIT_CODES``, which gives the exit code of every way an answer can end. One that was to have a form, and is cut by
``--max-tokens``, is no answer of that form: it exits as where the context was full.
"""

from typing import Final

EXIT_CODES: Final = {"stop": 0, "length": 0, "context": 5, "timeout": 124, "interrupted": 130}
ENDINGS: Final = {  # what each way an answer can end means, for a person
    "stop": "The model finished its answer, or a --stop text was met.",
    "length": "--max-tokens ended the answer, which may be cut.",
    "context": "The context was full before the answer was finished.",
    "timeout": "--timeout passed; what was written until then is the answer.",
    "interrupted": "Ctrl-C, or a signal that asks to end; what was written until then is the answer.",
}
CUT_FORM: Final = "--max-tokens cut an answer that was to satisfy --schema or --choice."  # exits as a full context does


class LocalLLMError(Exception):
    """Anything else, such as an output that is closed or full.

    The base of the tree. ``message`` says in one line what is wrong, ``hint`` what to do about it (may be empty).
    """

    exit_code: int = 1
    code: str = "failed"

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(LocalLLMError):
    """The command line asks for something that does not exist or makes no sense."""

    exit_code = 2
    code = "usage"


class PromptTooLong(LocalLLMError):
    """The prompt does not fit into the context; nothing was computed."""

    exit_code = 3
    code = "prompt_too_long"


class Unavailable(LocalLLMError):
    """Something that the answer needs is not there."""

    exit_code = 4
    code = "unavailable"


class ModelNotFound(Unavailable):
    """No catalog entry and no file has this name."""

    code = "model_not_found"


class ModelFileError(Unavailable):
    """The file is there but is not a GGUF that can be used."""

    code = "bad_model_file"


class CatalogError(Unavailable):
    """A catalog file breaks its rules; the message names line and reason."""

    code = "bad_catalog"


class DownloadError(Unavailable):
    """A model could not be fetched, or what arrived is not what was promised."""

    code = "download_failed"


class OutOfMemory(Unavailable):
    """The model, or a context of this size, cannot be allocated."""

    code = "out_of_memory"


class Cancelled(LocalLLMError):
    """Stopped while loading or fetching, so that there is no partial answer to keep.

    ``reason`` is "interrupted" or "timeout"; it is the error's code too.
    """

    def __init__(self, reason: str) -> None:
        super().__init__("stopped: the time limit was reached" if reason == "timeout" else "interrupted")
        self.code = reason
        self.exit_code = EXIT_CODES[reason]


class TranscriptError(LocalLLMError):
    """The file with the conversations cannot be read or written."""

    code = "bad_history"


class TemplateError(LocalLLMError):
    """The model's own chat template fails, loops or produces too much."""

    code = "bad_template"


class DecodeError(LocalLLMError):
    """llama.cpp refused a batch or failed while computing it."""

    code = "decode_failed"
