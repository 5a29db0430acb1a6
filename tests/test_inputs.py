"""What ``ask`` makes of stdin and files: one text as it is, several with their names."""

import subprocess
import sys

import pytest

from localllm.cancel import Cancel
from localllm.errors import UsageError
from localllm.terminal.inputs import text_of

CODE = """
import sys
from localllm.cancel import Cancel
from localllm.terminal.inputs import attached_text
sys.stdout.buffer.write(attached_text(sys.argv[1:], Cancel(), print).encode())
"""


@pytest.fixture
def attached(tmp_path):
    """Writes files and reads them, by their names, in a process with this stdin."""

    def attached(*names, stdin="", **files):
        for name, text in files.items():
            (tmp_path / name.replace("_", ".")).write_text(text, newline="")
        command = [sys.executable, "-c", CODE, *names]
        return subprocess.run(
            command, cwd=tmp_path, input=stdin.encode(), capture_output=True, check=True
        ).stdout.decode()

    return attached


TEXT = "  a\n\tb \r\n\n==> x <==\n\n"


@pytest.mark.parametrize("stdin", ["", " \n\t"])
def test_one_file_is_given_as_it_is(attached, stdin):
    """To the last blank, so that it is found again in the prefix cache; a script's blank stdin does not count."""
    assert attached("a.txt", stdin=stdin, a_txt=TEXT) == TEXT


def test_stdin_alone_is_given_as_it_is(attached):
    """Piped, or named as a file."""
    assert attached(stdin=TEXT) == attached("-", stdin=TEXT) == TEXT


def test_several_texts_have_their_names_above_them(attached):
    """In the order of the command line, stdin first where it is not named; each text is unchanged."""
    files = {"a_txt": "one\n", "b_txt": "two"}
    assert attached("b.txt", "./a.txt", **files) == "==> b.txt <==\ntwo\n\n==> ./a.txt <==\none\n"
    assert attached("a.txt", stdin="piped\n", **files) == "==> stdin <==\npiped\n\n\n==> a.txt <==\none\n"
    assert attached("a.txt", "-", stdin="piped", **files) == "==> a.txt <==\none\n\n\n==> stdin <==\npiped"


def test_an_empty_file_among_several_is_told(attached):
    """So is its name; empty ones alone are nothing to ask about."""
    assert attached("a.txt", "b.txt", a_txt="", b_txt="two") == "==> a.txt <==\n\n\n==> b.txt <==\ntwo"
    assert attached("a.txt", "b.txt", a_txt="", b_txt=" \n") == ""


def test_a_name_cannot_pretend_to_be_text(attached, tmp_path):
    """It stays on its line, whatever it is."""
    (tmp_path / "x\n\x1b[2Jy").write_text("one")
    assert attached("x\n\x1b[2Jy", "b.txt", b_txt="two").startswith("==> x [2Jy <==\none\n")


@pytest.mark.parametrize(
    ("begin", "kind", "what_to_do"),
    [
        (b"%PDF-1.7\n", "a PDF", "pdftotext"),
        (b"%PDF-1.7\n\0", "a PDF", "pdftotext"),
        (b"PK\x03\x04\0", "a ZIP archive", "pandoc"),
        ("text".encode("utf-16"), "UTF-16", "iconv"),
        (b"\x89PNG\r\n\x1a\n\0", "a PNG image", "tesseract"),
        (b"GGUF\3\0", "a model", "-m"),
        (b"\1\2\0", "binary data", "another program"),
    ],
)
def test_what_is_no_text_is_told_by_its_kind_with_what_to_do(tmp_path, begin, kind, what_to_do):
    """By how it begins, whatever it is called."""
    (tmp_path / "file.txt").write_bytes(begin)
    with pytest.raises(UsageError) as refused:
        text_of(str(tmp_path / "file.txt"), Cancel(), print)
    assert "binary data" in refused.value.message and kind in refused.value.message
    assert what_to_do in refused.value.hint


@pytest.mark.parametrize("text", ["GGUF is a format", "BZh", "GIF89a means", "PK", "about %PDF-1.7"])
def test_a_text_that_begins_as_another_format_is_a_text(tmp_path, text):
    """Without a zero byte it is taken for what it says."""
    (tmp_path / "file.txt").write_text(text)
    assert text_of(str(tmp_path / "file.txt"), Cancel(), print) == text
