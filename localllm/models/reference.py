"""What people write for a model of the Hugging Face hub, and which file of its repository they mean.

Pure: knows the spellings and the names that publishers give to files, and nothing of disk or network.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from localllm.errors import ModelNotFound
from localllm.models.catalog import quantisation
from localllm.models.split import first_part, is_part, unsplit

# The default and what stands in for it: about 4 bits per weight, then the next larger, then the next smaller.
_PREFERENCE = (
    *("Q4_K_M", "Q4_K_S", "Q4_K", "UD-Q4_K_XL", "Q4_K_XL", "IQ4_XS", "IQ4_NL", "Q4_1", "Q4_0", "MXFP4"),
    *("Q5_K_M", "Q5_K_S", "Q5_1", "Q5_0", "Q6_K", "Q8_0", "Q3_K_L", "Q3_K_M", "Q3_K_S", "Q2_K", "BF16", "F16", "F32"),
)
# What lies beside a model but is none: image encoders, importance matrices, and heads that only draft. A capital
# -MTP- may be part of a whole model's name.
_NO_MODEL = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")

_NAME = r"[A-Za-z0-9][\w.-]{0,95}"
_FILE = r"(?:[\w-][\w.+-]*/){0,3}[\w-][\w.+-]*\.gguf"
_HOST = r"(?:www\.)?(?:hf\.co|huggingface\.co)/"
_REFERENCE = re.compile(
    rf"(?P<host>(?:https?://)?{_HOST})?(?!{_HOST})(?P<repository>{_NAME}/{_NAME})"
    rf"(?::(?P<wanted>[\w-]{{1,40}}|{_FILE})"
    rf"|/(?:(?:blob|resolve)/main/)?(?!(?:blob|resolve)/)(?P<file>{_FILE})(?:\?download=true)?|/)?",
    re.ASCII | re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class HubReference:
    """A repository ("user/repo") and what of it is wanted: a quantisation, a file name, or "" for the default.

    ``explicit`` is True where the hub was named, so that no local path can be meant.
    """

    repository: str
    wanted: str = ""
    explicit: bool = True


def hub_reference(text: str) -> HubReference | None:
    """``user/repo[:QUANT]``, ``hf.co/user/repo[:QUANT]`` or the address of a file; None for anything else."""
    match = _REFERENCE.fullmatch(text)
    if match is None or not (match["host"] or match["wanted"] or not text.lower().endswith(".gguf")):
        return None  # a/b.gguf and a/b/c.gguf are paths
    return HubReference(match["repository"], match["wanted"] or match["file"] or "", bool(match["host"]))


def shortest_name(repository: str, file: str, files: Sequence[str]) -> str | None:
    """How to refer to one of a repository's files: by its quantisation, else by its name; None where neither does."""
    for wanted in filter(None, (quantisation(file), file)):
        reference = hub_reference(f"{repository}:{wanted}")
        with suppress(ModelNotFound):
            if reference and choose(files, reference) == file:
                return f"{repository}:{wanted}"
    return None


def choose(files: Sequence[str], reference: HubReference) -> str:
    """The one of a repository's files that is meant; of a split model the first part.

    Without a quantisation that is Q4_K_M, or else what is nearest to it. Raises ModelNotFound, saying what there is,
    where nothing fits or several files fit equally.
    """
    models = [file for file in files if is_model(file) and first_part(file) == file]
    if not models:
        raise ModelNotFound(f"{reference.repository} holds no GGUF model", "look for a repository that ends in -GGUF")
    wanted = reference.wanted
    if wanted:
        fitting = [file for file in models if _fits(file, wanted)]
    else:
        ranked = {name: [file for file in models if _fits(file, name)] for name in _PREFERENCE}
        fitting = next((found for found in ranked.values() if found), models)
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        what = f"several models{f' for {wanted}' if wanted else ''}: {_some(fitting)}"
        raise ModelNotFound(f"{reference.repository} holds {what}", f"name one: {reference.repository}:FILE.gguf")
    there = sorted({quantisation(file) or file for file in models})
    raise ModelNotFound(f"{reference.repository} has no {wanted}", f"it has: {_some(there)}")


def is_model(file: str) -> bool:
    """Whether a file is a model, by its name alone; of a split model each part is."""
    name = file.rpartition("/")[2]
    return name.endswith(".gguf") and not name.startswith(".") and not any(word in name for word in _NO_MODEL)


def _fits(file: str, wanted: str) -> bool:
    """A file's path, its name (of a split model also without the numbers), or its quantisation, in any case."""
    wanted = first_part(wanted) if is_part(wanted) else wanted
    names = {file, file.rpartition("/")[2], unsplit(file.rpartition("/")[2]), quantisation(file)}
    return wanted.lower() in {name.lower() for name in names}


def _some(names: Sequence[str]) -> str:
    shown = 12
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more
