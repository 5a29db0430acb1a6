"""``localllm chat``: a conversation in the terminal."""

from typing import TYPE_CHECKING

from localllm.cancel import Cancel
from localllm.cli import options
from localllm.cli.signals import cancelling, leave_on_termination
from localllm.errors import LocalLLMError, UsageError
from localllm.values import Sampling

if TYPE_CHECKING:
    from localllm.engine.engine import Engine


def chat(
    model: options.Model = None,
    system: options.System = "",
    temp: options.Temperature = None,
    top_p: options.TopP = None,
    top_k: options.TopK = None,
    min_p: options.MinP = None,
    repeat_penalty: options.RepeatPenalty = None,
    seed: options.Seed = None,
    max_tokens: options.MaxTokens = None,
    stop: options.Stop = None,
    hide_reasoning: options.HideReasoning = False,
    ctx_size: options.CtxSize = None,
    kv: options.Kv = "f16",
    gpu_layers: options.GpuLayers = None,
    threads: options.Threads = None,
    draft: options.Draft = "auto",
    no_cache: options.NoCache = False,
) -> int:
    """Talk with a model. This is what `localllm` does without a command."""
    chosen = (temp, top_p, top_k, min_p, repeat_penalty, seed, max_tokens, stop)
    options.sampling_from(Sampling(), *chosen)
    settings = options.settings_from(ctx_size, kv, gpu_layers, threads, draft, no_cache)

    from localllm.terminal.repl import Repl, history_path, is_terminal

    if not is_terminal():
        raise UsageError("chat needs a terminal", 'in pipes and scripts use: localllm ask "…"')

    from localllm.app import Located, locate, open_engine
    from localllm.config import data_dir
    from localllm.session.chat import Chat
    from localllm.terminal.progress import download_progress
    from localllm.terminal.render import View

    def find(reference: str | None) -> Located:
        cancel = Cancel()
        with cancelling(cancel), download_progress() as on_download:
            return locate(reference, on_download, cancel)

    def load(located: Located) -> "Engine":
        cancel = Cancel()
        with cancelling(cancel):
            return open_engine(located, settings, cancel=cancel)

    leave_on_termination()
    current = find(model)
    engine = load(current)
    conversation = Chat(engine, options.sampling_from(engine.sampling, *chosen), system)

    def switch(reference: str) -> None:
        """Load another model in place of this one: there may not be room for both."""
        nonlocal current
        wanted = find(reference)  # a wrong name or a bad file changes nothing
        conversation.engine.close()
        try:
            engine, current = load(wanted), wanted
        except LocalLLMError:
            engine = load(current)
            raise
        finally:
            conversation.switch(engine, options.sampling_from(engine.sampling, *chosen))

    try:
        view = View.of_terminal(reasoning=not hide_reasoning)
        return Repl(conversation, view, switch, cancelling, history_path(data_dir())).run()
    finally:
        conversation.engine.close()
