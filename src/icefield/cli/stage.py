"""What the audience of the tour sees: steps with check marks, small tables and a farewell; or JSON lines."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.status import Status
from rich.text import Text

from icefield.cli import output

_PARTS = {"server": "the server", "spark": "Spark", "sql": "the PostgreSQL door"}


class Step:
    """What a running step can tell: ``now`` while it runs, ``then`` behind its check mark."""

    def __init__(self, text: str, status: Status | None) -> None:
        self._text = text
        self._status = status
        self.then: str | None = None

    def now(self, text: str) -> None:
        if self._status is not None:
            self._status.update(output.plain(f"{self._text} … {text}"))


class Stage:
    """What the audience sees: a step with its check mark and seconds, and what each side sees in between."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._begun = time.monotonic()

    def act(self, title: str) -> None:
        if not self._as_json:
            output.console.print(Text(f"\n{title}", style="bold"))

    @contextmanager
    def step(self, text: str) -> Iterator[Step]:
        begun = time.monotonic()
        if self._as_json:
            step = Step(text, None)
            yield step
            told = {} if step.then is None else {"then": step.then}
            output.print_json({"step": text, "seconds": round(time.monotonic() - begun, 2), **told})
            return
        with output.console.status(output.plain(f"{text} …")) as status:
            step = Step(text, status)
            yield step
        line = Text.assemble(("  ✓ ", "green"), output.plain(text))
        if step.then is not None:
            line.append(f"  {step.then}", style="cyan")
        output.console.print(line.append(f"  {time.monotonic() - begun:.1f} s", style="dim"))

    def show(self, view: RenderableType, **facts: Any) -> None:
        if self._as_json:
            output.print_json({"seen": facts})
        else:
            output.console.print(Padding(view, (0, 0, 0, 4)))

    def event(self, event: dict[str, Any], step: Step) -> None:
        """What ``icefield up`` tells while it starts."""
        if self._as_json:
            output.print_json(event)
        elif event["event"] == "ready":
            line = Text.assemble(("  ✓ ", "green"), f"{_PARTS[event['part']]} is ready")
            output.console.print(line.append(f"  {event['seconds']:.1f} s", style="dim"))
        elif event["event"] == "progress":
            step.now(str(event["text"]))

    def end(self, view: RenderableType, **facts: Any) -> None:
        seconds = time.monotonic() - self._begun
        if self._as_json:
            output.print_json({"done": True, "seconds": round(seconds, 1), **facts})
        else:
            title = f"that was Icefield, in {seconds:.0f} s"
            panel = Panel(view, title=title, title_align="left", border_style="cyan", padding=(1, 2), expand=False)
            output.console.print(Group(Text(), panel))


class Said(io.TextIOBase):
    """What the SDK says on standard error while it starts, on its way to the line of the step."""

    def __init__(self, step: Step) -> None:
        self._step = step

    def write(self, text: str) -> int:
        if text.strip():
            self._step.now(text.strip().removeprefix("icefield: "))
        return len(text)
