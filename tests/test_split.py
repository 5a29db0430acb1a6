"""The names of models that are split over several files."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localllm.models.gguf import read_header
from localllm.models.split import MAX_PARTS, first_part, is_part, parts, unsplit

PLAIN = [
    "model.gguf",
    "model-Q4_K_M.gguf",
    "model-00001-of-00003",
    "model-00001-of-00003.gguf.part",
    "model-00001-of-00003.GGUF",  # llama.cpp looks for siblings in lower case only
    "model-0001-of-0003.gguf",
    "model-000001-of-000003.gguf",
    "model-00000-of-00003.gguf",  # they are counted from 1
    "model-00004-of-00003.gguf",
    "model-00001-of-00000.gguf",
    "model-00001-of-99999.gguf",  # no honest name, and one that must not cost 100,000 look-ups
    "model-٠٠٠٠١-of-٠٠٠٠٣.gguf",
    "-00001-of-00003.gguf",
    "00001-of-00003.gguf",
    "",
]


@pytest.mark.parametrize("name", PLAIN)
def test_names_that_are_no_parts(name):
    """A name that only resembles a part stands for itself."""
    assert not is_part(name)
    assert first_part(name) == unsplit(name) == name
    path = Path("folder", "file").with_name(name) if name else Path("folder")
    assert parts(path) == (path,)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_the_parts_of_a_split_model(number):
    """From any part: all of them in order, the first, and the name of the whole; folders are kept."""
    path = f"some/folder/R1-UD-Q4_K_XL-{number:05d}-of-00003.gguf"
    names = [f"some/folder/R1-UD-Q4_K_XL-{i:05d}-of-00003.gguf" for i in (1, 2, 3)]
    assert parts(Path(path)) == tuple(map(Path, names))
    assert first_part(path) == names[0]
    assert unsplit(path) == "some/folder/R1-UD-Q4_K_XL.gguf"


def test_a_model_of_one_part():
    """What gguf-split writes for a small model is its own first part."""
    assert parts(Path("m-00001-of-00001.gguf")) == (Path("m-00001-of-00001.gguf"),)


def test_only_the_last_numbers_count():
    """A part whose own name looks like a part is split at its end."""
    name = "m-00001-of-00002-00002-of-00003.gguf"
    assert unsplit(name) == "m-00001-of-00002.gguf"
    assert first_part(name) == "m-00001-of-00002-00001-of-00003.gguf"


@given(st.text(st.characters(exclude_characters="/\0"), min_size=1, max_size=30), st.integers(1, MAX_PARTS), st.data())
def test_every_part_leads_to_the_same_parts(prefix, count, data):
    """Whatever the name before the numbers, each part names all its siblings and itself among them."""
    number = data.draw(st.integers(1, count))
    path = Path("folder") / f"{prefix}-{number:05d}-of-{count:05d}.gguf"
    siblings = parts(path)
    assert len(set(siblings)) == count
    assert siblings[number - 1] == path
    assert all(parts(sibling) == siblings for sibling in data.draw(st.permutations(siblings))[:3])
    assert str(siblings[0]) == first_part(str(path))


# --- a real model in three parts ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def split_model(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The default model, split by the gguf package."""
    import gguf

    folder = tmp_path_factory.mktemp("split")
    reader = gguf.GGUFReader(smollm2)
    writer = gguf.GGUFWriter(folder / "smol.gguf", "llama", split_max_tensors=100)
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            sub_type = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(folder.iterdir())


@pytest.mark.model
def test_a_split_model_is_the_model(split_model: list[Path], smollm2: Path) -> None:
    """Its header says the same as that of the whole file, whichever part is named, and so does its answer."""
    assert [path.name for path in split_model] == [f"smol-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    whole = read_header(smollm2)
    shape = read_header(split_model[0])
    assert replace(shape, file_bytes=0) == replace(whole, file_bytes=0)
    assert shape.file_bytes == sum(path.stat().st_size for path in split_model)
    answers = {_ask(path).stdout for path in (smollm2, split_model[0], split_model[2])}
    assert len(answers) == 1
    assert answers.pop().strip()


@pytest.mark.model
def test_a_split_model_with_a_part_missing_or_misnamed(split_model: list[Path], tmp_path: Path) -> None:
    """One line that names the part, and the exit code for a file that cannot be used."""
    lone = tmp_path / split_model[0].name
    lone.symlink_to(split_model[0])
    missing = _ask(lone)
    assert (missing.returncode, missing.stdout) == (4, "")
    assert "smol-00002-of-00003.gguf cannot be read: No such file" in missing.stderr
    renamed = tmp_path / "renamed.gguf"
    renamed.symlink_to(split_model[0])
    finished = _ask(renamed)
    assert finished.returncode == 4
    assert "says that it is one of 3 parts, which its name does not" in finished.stderr
    (tmp_path / split_model[1].name).symlink_to(split_model[2])
    (tmp_path / split_model[2].name).symlink_to(split_model[1])
    swapped = _ask(lone)
    assert swapped.returncode == 4
    assert "is not part 2 of 3, as its name says" in swapped.stderr


def _ask(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "localllm", "ask", "-m", str(path), "--temp", "0", "--max-tokens", "8", "Hello"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)
