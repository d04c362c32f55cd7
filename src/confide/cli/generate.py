"""`confide generate`: try what a released model says."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from confide.cli.base import AdapterBase, Json, RunOrRelease, Stopped, app, print_json, verb
from confide.utils.errors import InputError

if TYPE_CHECKING:
    from confide.runs.generate import Options, Prompter, Voice
    from confide.runs.released import Alone, Released

_SIDES = ("base", "twin")


@app.command()
@verb
def generate(
    run: RunOrRelease,
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="[PROMPT]", help="what to go on from; default: asked for, or standard input"),
    ] = None,
    beside: Annotated[
        str | None,
        typer.Option(
            metavar="A,B", help="answer beside it: base, twin (the non-private one, if there is one)"
        ),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(help="to write, at most", min=1)] = 100,
    temperature: Annotated[
        float, typer.Option(help="0: always the likeliest token; above 1: wilder", min=0.0)
    ] = 0.8,
    top_p: Annotated[
        float, typer.Option(help="draw from the likeliest tokens with so much probability", min=0.0, max=1.0)
    ] = 0.95,
    seed: Annotated[
        int | None, typer.Option(help="of the draws, for the same text again; default: a new one", min=0)
    ] = None,
    chat: Annotated[
        bool | None,
        typer.Option("--chat/--no-chat", help="use the tokenizer's chat template; default: if it has one"),
    ] = None,
    system: Annotated[str | None, typer.Option(help="system message, for a chat template")] = None,
    base: AdapterBase = None,
    as_json: Json = False,
) -> None:
    """Try what a released model says.

    Example: confide generate runs/mail "Dear support," --beside base,twin

    The guarantee covers whatever the released model says, to any prompt (post-processing). It does not cover
    what the twin says: keep that to yourselves. Without PROMPT at a terminal, prompts are asked for one after
    another, and each stands alone; Ctrl-D leaves. RUN may be a copy of a release: nothing
    then checks that it is what a run released.
    """
    from confide.runs.generate import MOST_SEED, Options, new_seed

    sides = [name.strip() for name in beside.split(",")] if beside else []
    if unknown := [name for name in sides if name not in _SIDES]:
        raise InputError(f"--beside {unknown[0]}: there are {', '.join(_SIDES)}")
    if not temperature < 1e6:
        raise InputError(f"--temperature {temperature:g}: give a number such as 0.8")
    if not top_p > 0:
        raise InputError(
            "--top-p 0: give a share above 0, such as 0.95; for the likeliest token, --temperature 0"
        )
    if seed is not None and seed >= MOST_SEED:
        raise InputError(f"--seed {seed}: give a whole number below {MOST_SEED:,}")
    asks = prompt is None and sys.stdin.isatty()
    if asks and as_json:
        raise InputError("--json prints one document: give a prompt, or pipe it in")
    given = prompt if prompt is not None or asks else _piped()
    seed = new_seed() if seed is None else seed
    options = Options(max_new_tokens, temperature, top_p, seed, chat, system)
    try:
        _generate(run, base, given, sides, options, as_json)
    except KeyboardInterrupt:
        print()
        raise Stopped("stopped") from None


def _generate(
    run: Path, base: str | None, given: str | None, sides: list[str], options: "Options", as_json: bool
) -> None:
    from confide.runs.generate import Prompter, writer_of
    from confide.runs.released import Alone

    found = writer_of(run, base)
    if isinstance(found, Alone):
        _note("a release without its run: whether it is what the run released was not checked")
        if found.guarantee.notion == "none":
            _note("its guarantee says that nothing is protected")
    prompter = Prompter(found.tokenizer, options)
    if prompter.chat and options.chat is None:
        _note("prompts go through the tokenizer's chat template; --no-chat leaves it out")
    voices = _Voices(found, prompter, run, sides)
    if given is not None:
        said = voices.answer(given, aloud=not as_json)
        if as_json:
            print_json({"prompt": given, **_facts(prompter), "said": said})
        return
    voices.load()
    _note("a prompt, then Enter; each stands alone; Ctrl-D leaves")
    for line in _lines():
        try:
            voices.answer(line, aloud=True)
        except InputError as error:
            _note(str(error))


class _Voices:
    """The released model and those beside it, each loaded when it is first needed."""

    def __init__(self, found: "Released | Alone", prompter: "Prompter", run: Path, sides: list[str]):
        self.found, self.prompter, self.run = found, prompter, run
        self.twin = self._twin() if "twin" in sides else None
        wanted = ["release", *dict.fromkeys(sides)]
        self.names = [name for name in wanted if name != "twin" or self.twin is not None]
        self.titles = {name: self._title(name) for name in self.names}
        self.loaded: dict[str, Voice] = {}

    def _twin(self) -> "Released | None":
        from confide.runs.generate import writer

        try:
            return writer(self.run, twin=True)
        except InputError as error:
            _note(f"no twin beside it: {error}")
            return None

    def load(self) -> None:
        for name in self.names:
            self._voice(name)

    def _voice(self, name: str) -> "Voice":
        from confide.runs.generate import Voice

        if name not in self.loaded:
            if name == "base":
                model = self.found.base()
            elif name == "twin":
                assert self.twin is not None
                model = self.twin.model()
            else:
                model = self.found.model()
            self.loaded[name] = Voice(self.titles[name], model, self.prompter)
        return self.loaded[name]

    def _title(self, name: str) -> str:
        from confide.utils.rounding import at_most

        if name == "base":
            return f"the base model, {self.found.base_name}"
        if name == "twin":
            return "the twin (not private: keep what it says to yourselves)"
        guarantee = self.found.guarantee
        if guarantee.notion == "none":
            return "the released model (nothing is protected)"
        return f"the released model ({guarantee.notion}, epsilon {at_most(guarantee.epsilon, 3)})"

    def answer(self, prompt: str, aloud: bool) -> dict[str, Any]:
        """Let each model continue a prompt."""
        from dataclasses import asdict

        said = {}
        for name in self.names:
            voice = self._voice(name)
            voice.room(self.prompter(prompt))  # before its heading
            if aloud and len(self.names) > 1:
                print(f"{'' if name == self.names[0] else chr(10)}--- {voice.name}", flush=True)
            answer = voice(prompt, _write if aloud else lambda text: None)
            if aloud:
                _write("\n")
            if answer.stopped == "longest row":
                _note(f"{voice.name} can hold no more: a row of it is {voice.longest:,} tokens at most")
            said[name] = asdict(answer)
        return said


def _facts(prompter: "Prompter") -> dict[str, Any]:
    options = prompter.options
    return {
        "chat": prompter.chat,
        "system": options.system,
        "max_new_tokens": options.max_new_tokens,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "seed": options.seed,
    }


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _note(text: str) -> None:
    from confide.utils.console import Console

    Console().say(text)


def _piped() -> str:
    """Read the prompt from standard input."""
    try:
        text = sys.stdin.read()
    except UnicodeDecodeError:
        raise InputError("standard input is not UTF-8 text") from None
    if not text.strip():
        raise InputError('no prompt: standard input is empty; give one, as in confide generate RUN "Dear"')
    return text.removesuffix("\n").removesuffix("\r")


def _lines() -> Iterator[str]:
    """Ask for one prompt after another, until Ctrl-D."""
    while True:
        try:
            line = input("> ")
        except EOFError:
            print()
            return
        if line.strip():
            yield line
