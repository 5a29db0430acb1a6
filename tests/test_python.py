"""The Python interface, as its documentation shows it."""

import os
import subprocess
import sys
import textwrap

import pytest

import localllm


def test_every_public_name_can_be_imported():
    """``from localllm import Engine, Message, Sampling`` and all the others."""
    for name in localllm.__all__:
        assert getattr(localllm, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = localllm.nothing


@pytest.mark.model
def test_the_example_of_the_documentation_runs(smollm2):
    """It prints an answer and nothing else."""
    _, _, example = localllm.__doc__.partition("::\n\n")
    command = [sys.executable, "-c", textwrap.dedent(example)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100, env=os.environ)
    assert (result.returncode, result.stderr) == (0, "") and len(result.stdout) > 10


@pytest.mark.model
def test_an_engine_answers_a_list_of_messages(engine):
    """The loop of the README, with a conversation that goes on."""
    messages = [localllm.Message("system", "Be brief."), localllm.Message("user", "Name three colours.")]
    for _ in range(2):
        *_, end = engine.reply(messages, localllm.Sampling(temperature=0, max_tokens=20))
        assert isinstance(end, localllm.TurnEnd) and end.message.text
        messages += [end.message, localllm.Message("user", "And two more?")]
    assert end.stats.cached_tokens > 20
