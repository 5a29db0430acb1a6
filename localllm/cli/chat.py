"""``localllm chat``: a conversation in the terminal."""

import typer

from localllm.cli import going_on, options
from localllm.cli.conversing import Start, converse, find, load
from localllm.cli.first_run import choose_default
from localllm.errors import UsageError
from localllm.terminal.safe import readable

app = typer.Typer(rich_markup_mode=None)


@app.command(cls=options.SettingsCommand)
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
    continue_: options.Continue = False,
    cid: options.Cid = None,
    log: options.Log = True,
    when_full: options.WhenFull = "ask",
    ctx_size: options.CtxSize = None,
    kv: options.Kv = "f16",
    gpu_layers: options.GpuLayers = None,
    threads: options.Threads = None,
    draft: options.Draft = "auto",
    exact: options.Exact = False,
    cache: options.Cache = True,
) -> int:
    """Talk with a model. This is what `localllm` does without a command."""
    choose = options.sampling_from(temp, top_p, top_k, min_p, repeat_penalty, seed, max_tokens, stop)
    settings = options.settings_from(ctx_size, kv, gpu_layers, threads, draft, exact, cache)

    from localllm.terminal.line_settings import is_terminal, keys_unseen

    if not is_terminal():
        raise UsageError("chat needs a terminal", 'in pipes and scripts use: localllm ask "…"')
    before = going_on.resumed(continue_, cid)
    model = going_on.model_for(before, model if options.given("model") else None) or model
    if before and not options.given("system"):
        system = before.summary.system

    from localllm.terminal.history_view import recap
    from localllm.terminal.render import View

    choose_default(model)
    with keys_unseen():  # what is typed while the model loads is the first question
        located = find(model)
        engine = load(located, settings)
        notices = recap(before) if before else []
        recorder = going_on.recorder(before, notices.append) if log else None
        said = engine.believed(before.messages) if before else ()
        view = View.of_terminal(reasoning=not hide_reasoning, markdown=markdown)
        view.load_ahead()  # while the first question is typed
        system = readable(system)
        changed = going_on.changed(before, system, engine.info.reference)
        return converse(
            Start(located, engine, settings, choose, system, said, notices, recorder, view, when_full, changed)
        )
