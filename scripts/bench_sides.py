"""The sides that bench_peers.py compares, each in a process of its own.

    python bench_sides.py SIDE MODEL N_CTX THREADS

Loads the model, writes a line, and then answers each line of stdin with a line, all of them JSON objects. A request
holds the token ids of a prompt and how many tokens to decode greedily; the answer says when the pieces of text came.
With ids for SIDE, it writes the token ids of a prompt of N_CTX tokens and ends.

Each side knows one way to run llama.cpp, imports its library itself and has its own environment: what localllm sets
before it loads llama.cpp (GOMP_SPINCOUNT) must not reach the others.
"""

import ctypes
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

SLICE_TOKENS = 512
LETTERS = "a b c d "  # a token each; every model that was tried goes on with them for hundreds of tokens

Pieces = Callable[[Sequence[int], int], Iterator[str]]


@dataclass
class Side:
    """What can be asked of a side: the pieces of text that follow a prompt. The times are the bare loop's alone."""

    pieces: Pieces
    load_s: float | None = None
    init_s: float | None = None


def localllm(model: str, n_ctx: int, threads: int) -> Side:
    """The product, through its Python interface, as it is by default; but nothing is guessed, as peers do not either.

    It has as many threads as its peers, but chooses among them while it runs.
    """
    from localllm import Prompt, Reasoning, Sampling, Settings, Text, open_engine

    engine = open_engine(model, Settings(ctx_size=n_ctx, draft="off", cache=False))
    if engine.info.threads != threads:
        raise SystemExit(f"localllm uses {engine.info.threads} threads by default, not {threads}")

    def pieces(ids: Sequence[int], tokens: int) -> Iterator[str]:
        for event in engine.reply(Prompt(tuple(ids)), Sampling(temperature=0, max_tokens=tokens)):
            if isinstance(event, Text | Reasoning):
                yield event.text

    return Side(pieces)


def llama_cpp_python(model: str, n_ctx: int, threads: int, **settings: int) -> Side:
    """The binding's own class, as its users stream from it; silent, since its log would hide our errors."""
    from llama_cpp import Llama

    llama = Llama(model, n_ctx=n_ctx, n_threads=threads, n_threads_batch=threads, verbose=False, **settings)

    def pieces(ids: Sequence[int], tokens: int) -> Iterator[str]:
        for chunk in llama.create_completion(list(ids), max_tokens=tokens, temperature=0, stream=True):
            yield chunk["choices"][0]["text"]

    return Side(pieces)


def bare(path: str, n_ctx: int, threads: int) -> Side:
    """The least that Python can do on the low-level API, with the settings that localllm makes too."""
    import llama_cpp.llama_cpp as lib
    import numpy as np

    lib.llama_log_set(_SILENT, ctypes.c_void_p(0))
    lib.llama_backend_init()
    begin_s = time.perf_counter()
    model = lib.llama_model_load_from_file(path.encode(), lib.llama_model_default_params())
    loaded_s = time.perf_counter()
    params = lib.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = n_ctx, SLICE_TOKENS, SLICE_TOKENS
    params.n_threads = params.n_threads_batch = threads
    params.flash_attn_type, params.swa_full, params.no_perf = 1, False, True
    context = lib.llama_init_from_model(model, params)
    ready_s = time.perf_counter()
    vocab = lib.llama_model_get_vocab(model)
    n_vocab = lib.llama_vocab_n_tokens(vocab)
    text = ctypes.create_string_buffer(256)

    def decode(ids: Sequence[int]) -> None:
        batch = (lib.llama_token * len(ids))(*ids)  # llama.cpp reads it where it is
        if lib.llama_decode(context, lib.llama_batch_get_one(batch, len(ids))):
            raise SystemExit("llama_decode failed")

    def pieces(ids: Sequence[int], tokens: int) -> Iterator[str]:
        lib.llama_memory_clear(lib.llama_get_memory(context), True)
        for start in range(0, len(ids), SLICE_TOKENS):
            decode(ids[start : start + SLICE_TOKENS])
        for _ in range(tokens):
            token = int(np.ctypeslib.as_array(lib.llama_get_logits_ith(context, -1), (n_vocab,)).argmax())
            length = lib.llama_token_to_piece(vocab, token, text, len(text), 0, False)
            yield text.raw[:length].decode("utf-8", "replace")
            decode((token,))

    return Side(pieces, loaded_s - begin_s, ready_s - loaded_s)


_SILENT = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)

SIDES: dict[str, Callable[[str, int, int], Side]] = {
    "localllm": localllm,
    "best": partial(llama_cpp_python, n_gpu_layers=-1, flash_attn=True, swa_full=False, no_perf=True),
    "default": llama_cpp_python,
    "bare": bare,
}


def token_ids(model: str, tokens: int) -> list[int]:
    """A prompt after which all sides write the same for long, so that none of them stops early."""
    from localllm import Settings, open_engine

    with open_engine(model, Settings(ctx_size=512, cache=False)) as engine:
        return list(engine.encode_raw(LETTERS * (tokens // 4 + 1)).ids[:tokens])


def timed(pieces: Iterator[str]) -> dict[str, float | int | str]:
    """Times of the first piece, from now on, and of all that follow it."""
    begin_s = time.perf_counter()
    came = [(time.perf_counter(), piece) for piece in pieces if piece]
    return {
        "first_s": came[0][0] - begin_s,
        "decode_s": came[-1][0] - came[0][0],
        "pieces": len(came),
        "text": "".join(piece for _, piece in came),
    }


def main() -> None:
    """Be one side until stdin ends."""
    name, model, *numbers = sys.argv[1:]
    if name == "ids":
        print(json.dumps(token_ids(model, int(numbers[0]))))
        return
    side = SIDES[name](model, *map(int, numbers))
    print(json.dumps({"load_s": side.load_s, "init_s": side.init_s}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(timed(side.pieces(request["ids"], request["tokens"]))), flush=True)


if __name__ == "__main__":
    main()
