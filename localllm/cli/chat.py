"""``localllm chat``: a conversation in the terminal."""

from functools import partial
from typing import TYPE_CHECKING

from localllm.cancel import Cancel
from localllm.cli import options
from localllm.cli.first_run import choose_default
from localllm.cli.signals import cancelling, leave_on_signals
from localllm.errors import UsageError
from localllm.terminal.safe import readable
from localllm.values import Sampling

if TYPE_CHECKING:
    from localllm.engine.engine import Engine
    from localllm.here import Bound


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
    markdown: options.Markdown = True,
    ctx_size: options.CtxSize = None,
    kv: options.Kv = "f16",
    gpu_layers: options.GpuLayers = None,
    threads: options.Threads = None,
    draft: options.Draft = "auto",
    exact: options.Exact = False,
    cache: options.Cache = True,
) -> int:
    """Talk with a model. This is what `localllm` does without a command."""
    choose = partial(
        options.sampling_from,
        temperature=temp,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        repeat_penalty=repeat_penalty,
        seed=seed,
        max_tokens=max_tokens,
        stop=stop,
    )
    choose(Sampling())
    settings = options.settings_from(ctx_size, kv, gpu_layers, threads, draft, exact, cache)

    from localllm.terminal.repl import Repl, history_path, is_terminal, keys_unseen, line_settings_kept

    if not is_terminal():
        raise UsageError("chat needs a terminal", 'in pipes and scripts use: localllm ask "…"')

    from localllm.app import Located, locate, model_names, open_engine
    from localllm.config import data_dir
    from localllm.session.chat import Chat
    from localllm.terminal.progress import download_progress
    from localllm.terminal.render import View

    def find(reference: str | None) -> Located:
        cancel = Cancel()
        with cancelling(cancel), keys_unseen(), download_progress() as on_download:
            located = locate(reference, on_download, cancel)
        cancel.check()
        return located

    def load(located: Located) -> "Engine":
        cancel = Cancel()
        with cancelling(cancel), keys_unseen():
            engine = open_engine(located, settings, cancel=cancel)
        if cancel():  # it came when all was loaded
            engine.close()
        cancel.check()
        return engine

    choose_default(model)
    current = find(model)
    conversation = Chat(load(current), lambda engine: choose(engine.sampling), readable(system))

    def switch(reference: str) -> None:
        nonlocal current
        wanted = find(reference)  # a wrong name or a bad file changes nothing
        conversation.switch(lambda: load(wanted), lambda: load(current))
        current = wanted

    def measured() -> "Bound":
        from localllm.here import bound

        return bound(current.model, conversation.engine.info)

    try:
        leave_on_signals()
        view = View.of_terminal(reasoning=not hide_reasoning, markdown=markdown)
        view.load_ahead()  # while the first question is typed
        with line_settings_kept():
            history = history_path(data_dir())
            return Repl(conversation, view, switch, measured, cancelling, history, model_names).run()
    finally:
        conversation.engine.close()
