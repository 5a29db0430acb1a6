"""``--draft``: which model guesses, what is refused and why, and what the user is told; with models that really run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_models

from localllm import Sampling, Settings, TurnEnd, open_engine
from localllm.drafting import Loadable, draft_options
from localllm.engine.llama import LoadOptions
from localllm.models.gguf import read_header
from localllm.models.store import LocalModel

PROGRAM = [sys.executable, "-m", "localllm"]
ASKED = ("ask", "--raw", "--temp", "0", "--max-tokens", "40", "--json", "a b c d e f g a b c d e f g a b c")


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    """A target, a smaller model of its vocabulary, one of another vocabulary, and one with recurrent memory."""
    folder = tmp_path_factory.mktemp("models")
    tiny_models.make("llama", folder / "target.gguf", block_count=4)
    tiny_models.make("llama", folder / "small.gguf", seed=1)
    tiny_models.make("mamba", folder / "recurrent.gguf")
    tiny_models.make("lfm2", folder / "hybrid.gguf")
    words = {"tokenizer.ggml.tokens": [*tiny_models.TOKENS[:-1], "another"]}
    tiny_models.make("llama", folder / "foreign.gguf", **words)
    return folder


@pytest.fixture
def run(home: Path, models: Path):
    """Runs localllm in an empty home, with a catalog that names ``small`` as the draft of ``target``."""
    config = home / ".config" / "localllm"
    config.mkdir(parents=True)
    entry = "{name}:\n  description: A test\n  licence: mit\n{draft}  sources: [{{path: {path}}}]\n"
    entries = [
        entry.format(name="small", draft="", path=models / "small.gguf"),
        entry.format(name="target", draft="  draft: small\n", path=models / "target.gguf"),
        entry.format(name="absent", draft="", path=models / "gone.gguf"),
        entry.format(name="alone", draft="  draft: absent\n", path=models / "target.gguf"),
        entry.format(name="wrong", draft="  draft: foreign\n", path=models / "target.gguf"),
        entry.format(name="foreign", draft="", path=models / "foreign.gguf"),
    ]
    (config / "models.yaml").write_text("".join(entries))

    def start(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*PROGRAM, *arguments], input="", capture_output=True, text=True, timeout=100)

    return start


def _drafting(finished: subprocess.CompletedProcess[str]) -> str:
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)["stats"]["drafting"]


@pytest.mark.parametrize(
    ("model", "flags", "said"),
    [
        ("target", (), "from the text and small"),
        ("target", ("--draft", "auto"), "from the text and small"),
        ("target", ("--draft", "ngram"), "from the text"),
        ("target", ("--draft", "off"), "off"),
        ("alone", (), "from the text"),
        ("small", ("-md", "target"), "from the text and target"),
        ("target", ("--exact",), "from the text and small"),
    ],
)
def test_what_guesses(run, model, flags, said):
    """The catalog's draft where it is on this disk, what was asked for, or nothing."""
    assert _drafting(run(*ASKED, "-m", model, *flags)) == said


@pytest.mark.parametrize("kind", ["recurrent", "hybrid"])
def test_with_recurrent_memory_nothing_is_guessed(run, models, kind):
    """As a target it says so and answers; as a draft it is refused."""
    path = str(models / f"{kind}.gguf")
    assert _drafting(run(*ASKED, "-m", path)).startswith("off: this model's memory cannot")
    refused = run(*ASKED, "-m", "target", "--draft", path)
    assert refused.returncode == 2
    assert "cannot draft for target: its memory cannot take a wrong guess back" in refused.stdout + refused.stderr


def test_a_draft_of_another_vocabulary_is_refused_by_name_and_left_alone_in_auto(run):
    """The reason in one line, exit code 2; the catalog's is passed over, and -u says why once it was wanted."""
    refused = run("ask", "hi", "-m", "target", "--draft", "foreign")
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    assert f"its token {len(tiny_models.TOKENS) - 1} is another" in refused.stderr
    assert _drafting(run(*ASKED, "-m", "wrong")).startswith("from the text and foreign")


def test_an_unknown_draft_is_told_before_anything_is_loaded(run):
    refused = run("ask", "hi", "-m", "target", "--draft", "smal")
    assert refused.returncode == 4 and refused.stderr.startswith("localllm: --draft: ")
    assert "small" in refused.stderr


def test_a_draft_without_room_is_refused(models, monkeypatch):
    """By the sizes in both headers, before it is loaded."""
    from localllm.ceiling import measure
    from localllm.errors import UsageError

    monkeypatch.setattr(measure, "available_memory_bytes", lambda: 100 * 2**20)
    with pytest.raises(UsageError, match=r"small.gguf cannot draft for target.gguf: it needs 0.0 GB, and 0.0 GB"):
        open_engine(str(models / "target.gguf"), Settings(ctx_size=256, draft=str(models / "small.gguf")))


@pytest.mark.parametrize(("layers", "expected"), [(0, 0), (3, 0), (5, 3)])
def test_a_draft_goes_where_its_target_is(models, layers, expected):
    """On the GPU only beside a target that is there as a whole; with no more context than it was trained for."""
    target = _loadable(models / "target.gguf", LoadOptions(n_ctx=4096, gpu_layers=layers))
    options = draft_options(target, read_header(models / "small.gguf"))
    assert (options.gpu_layers, options.n_ctx) == (expected, 2048)


def _loadable(path: Path, options: LoadOptions) -> Loadable:
    return Loadable(LocalModel(path.name, (path,), "here"), read_header(path), options)


@pytest.mark.parametrize("draft", ["off", "ngram", "small"])
def test_exact_answers_are_equal_whatever_guesses(models, draft):
    """Two models that agree by chance only, at a high temperature: every guess is wrong, or nearly."""
    sampling = Sampling(temperature=1.5, seed=3, max_tokens=100)
    answers = []
    for wanted in ("off", str(models / "small.gguf") if draft == "small" else draft):
        settings = Settings(ctx_size=512, threads=2, draft=wanted, exact=True)
        with open_engine(str(models / "target.gguf"), settings) as engine:
            (*_, end) = engine.reply(engine.encode_raw("the river in spring " * 8), sampling)
            assert isinstance(end, TurnEnd)
            answers.append(end.message)
    assert answers[0] == answers[1]


def test_costs_are_kept_where_the_documentation_says(run, home):
    """A file below the cache directory that holds numbers and nothing else; without it nothing is lost."""
    run(*ASKED, "-m", "target", "--draft", "ngram", "--max-tokens", "200")
    (file,) = (home / ".cache" / "localllm" / "speculation").iterdir()
    assert all(isinstance(value, float) for value in json.loads(file.read_text()).values())
    file.write_text("garbage")
    assert _drafting(run(*ASKED, "-m", "target", "--draft", "ngram")) == "from the text"


@pytest.mark.parametrize(("answer", "fetched"), [("y\n", True), ("\n", False)])
def test_pull_offers_the_draft(run, terminal_pull, answer, fetched):
    """In a terminal it asks; elsewhere it says how."""
    piped = run("pull", "alone")
    assert piped.returncode == 0 and "localllm pull absent" in piped.stderr
    assert ("absent" in terminal_pull(answer)[1]) is fetched


@pytest.fixture
def terminal_pull(run):
    """Pulls with a pseudo-terminal for stdin and stderr; returns what was said before and after the answer."""
    import pty

    def pull(answer: str) -> tuple[str, str]:
        ours, theirs = pty.openpty()
        command = [*PROGRAM, "pull", "alone"]
        with subprocess.Popen(command, stdin=theirs, stdout=subprocess.DEVNULL, stderr=theirs) as process:
            os.close(theirs)
            before = b""
            while b"[y/N] " not in before:
                before += os.read(ours, 1000)
            os.write(ours, answer.encode())
            process.wait(30)
            after = b""
            try:
                while chunk := os.read(ours, 1000):
                    after += chunk
            except OSError:  # the other end is closed
                pass
        os.close(ours)
        return before.decode(), after.decode()

    return pull
