"""``localllm chat``: a conversation in the terminal."""

from typing import Annotated

import typer

from localllm.cancel import Cancel
from localllm.cli import going_on, options
from localllm.cli.conversing import Start, converse, find, load
from localllm.cli.first_run import choose_default
from localllm.cli.template import Param, Template, filled_template
from localllm.errors import UsageError
from localllm.terminal.safe import readable

app = typer.Typer(rich_markup_mode=None)


@app.command(cls=options.SettingsCommand)
def chat(
    model: options.Model = None,
    system: options.System = "",
    template: Template = None,
    param: Param = None,
    file: Annotated[
        list[str] | None,
        typer.Option("--file", "-f", metavar="PATH", help="Put this file before the first message. Repeatable."),
    ] = None,
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
    color: options.Color = "auto",
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
    filled = filled_template(template, param or ())
    choose = options.sampling_from(
        temp, top_p, top_k, min_p, repeat_penalty, seed, max_tokens, stop, template=filled.sampling
    )
    settings = options.settings_from(ctx_size, kv, gpu_layers, threads, draft, exact, cache, log)

    from localllm.terminal.line_settings import is_terminal, keys_unseen, typed_before

    if not is_terminal():
        raise UsageError("chat needs a terminal", 'in pipes and scripts use: localllm ask "…"')
    before = going_on.resumed(continue_, cid)
    model = going_on.model_for(before, model if options.given("model") else None) or filled.model or model
    if not options.given("system"):
        system = before.summary.system if before else filled.system or system

    from localllm.terminal.attachments import read
    from localllm.terminal.history_view import recap
    from localllm.terminal.render import View

    files = [read(name, Cancel()) for name in file or ()]
    choose_default(model)
    with keys_unseen():  # what is typed while the model loads is the first question
        typed = typed_before()
        located = find(model)
        engine = load(located, settings)
        notices = recap(before) if before else []
        recorder = going_on.recorder(before, notices.append) if log else None
        said = engine.believed(before.messages) if before else ()
        view = View.of_terminal(reasoning=not hide_reasoning, markdown=markdown, color=color)
        view.load_ahead()  # while the first question is typed
        system = readable(system)
        changed = going_on.changed(before, system, engine.info.reference)
        return converse(
            Start(
                *(located, engine, settings, choose, system, said, notices, recorder, view),
                when_full=when_full,
                changed=changed,
                typed=typed,
                files=files,
                template=filled if template else None,
            )
        )
