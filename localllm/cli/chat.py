"""``localllm chat``: a conversation in the terminal."""

from functools import partial
from typing import TYPE_CHECKING

from localllm.cancel import Cancel
from localllm.cli import going_on, options
from localllm.cli.signals import cancelling, leave_on_signals
from localllm.errors import UsageError
from localllm.terminal.safe import readable
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
    continue_: options.Continue = False,
    cid: options.Cid = None,
    no_log: options.NoLog = False,
    ctx_size: options.CtxSize = None,
    kv: options.Kv = "f16",
    gpu_layers: options.GpuLayers = None,
    threads: options.Threads = None,
    draft: options.Draft = "auto",
    exact: options.Exact = False,
    no_cache: options.NoCache = False,
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
    settings = options.settings_from(ctx_size, kv, gpu_layers, threads, draft, exact, no_cache)

    from localllm.terminal.repl import Repl, history_path, is_terminal, keys_unseen, line_settings_kept

    if not is_terminal():
        raise UsageError("chat needs a terminal", 'in pipes and scripts use: localllm ask "…"')

    before = going_on.resumed(continue_, cid)
    model = going_on.model_for(before, model)

    from localllm.app import Located, locate, open_engine
    from localllm.config import data_dir
    from localllm.session.chat import Chat
    from localllm.terminal.history_view import recap
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

    current = find(model)
    engine = load(current)
    notices = recap(before) if before else []
    recorder = going_on.recorder(before, lambda: going_on.reference_to(current), notices.append)
    conversation = Chat(
        engine,
        lambda engine: choose(engine.sampling),
        readable(system) or (before.summary.system if before else ""),
        engine.believed(before.messages) if before else (),
        (lambda _: None) if no_log else recorder,
    )

    def switch(reference: str) -> None:
        nonlocal current
        wanted = find(reference)  # a wrong name or a bad file changes nothing
        conversation.switch(lambda: load(wanted), lambda: load(current))
        current = wanted

    try:
        leave_on_signals()
        view = View.of_terminal(reasoning=not hide_reasoning)
        with line_settings_kept():
            return Repl(conversation, view, switch, cancelling, history_path(data_dir()), notices).run()
    finally:
        recorder.close()
        conversation.engine.close()
