"""One reporter: bars on a terminal, lines in a pipe, and nothing in a library."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from adagauss.utils.progress import BETWEEN_LINES, BarReporter, LineReporter, Reporter, reporter_for


class Clock:
    """A time of one's own."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def out() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def lines(out: io.StringIO, clock: Clock) -> LineReporter:
    return LineReporter(Console(file=out, width=40), clock)


def test_a_console_gets_bars_on_a_terminal_and_lines_elsewhere(out: io.StringIO) -> None:
    assert isinstance(reporter_for(Console(file=out, force_terminal=True)), BarReporter)
    assert isinstance(reporter_for(Console(file=out, force_terminal=False)), LineReporter)


def test_a_notebook_gets_lines(out: io.StringIO) -> None:
    assert isinstance(reporter_for(Console(file=out, force_jupyter=True)), LineReporter)


def test_bars_can_be_shown_again(out: io.StringIO) -> None:
    reporter = BarReporter(Console(file=out, force_terminal=True, width=120))
    for title in ("first", "second"):
        with reporter.progress(title, 1) as advance:
            advance()
            reporter._bars.refresh()
    assert "first" in out.getvalue()
    assert "second" in out.getvalue()


def test_short_work_is_not_reported(lines: LineReporter, clock: Clock, out: io.StringIO) -> None:
    with lines.progress("short", 3) as advance:
        for _ in range(3):
            clock.now += 0.5
            advance("going on")
    assert out.getvalue() == ""


def test_long_work_gets_a_line_every_few_seconds_and_one_at_its_end(
    lines: LineReporter, clock: Clock, out: io.StringIO
) -> None:
    with lines.progress("long", 24) as advance:
        for step in range(24):
            clock.now += 0.5
            advance(f"note {step + 1}")
    assert out.getvalue().splitlines() == ["long: 4/24 note 4", "long: 14/24 note 14", "long: 24/24 note 24"]


def test_a_line_tells_of_all_that_is_under_way(lines: LineReporter, clock: Clock, out: io.StringIO) -> None:
    with lines.progress("run", 2) as run_on:
        run_on("accuracy 90 %")
        with lines.progress("epochs", 3) as epoch_on:
            clock.now += BETWEEN_LINES
            epoch_on("loss 0.5", step=0.25)
    (line,) = out.getvalue().splitlines()
    assert line == "run: 1/2 accuracy 90 % | epochs: 0/3 loss 0.5"


def test_inner_work_that_ends_does_not_speak_out_of_turn(lines: LineReporter, clock: Clock, out: io.StringIO) -> None:
    with lines.progress("run", 2):
        clock.now += BETWEEN_LINES
        for name in ("first", "second"):
            with lines.progress(name, 1) as advance:
                advance()
    assert out.getvalue().splitlines() == ["run: 0/2 | first: 1/1"]


def test_parts_of_steps_add_up(lines: LineReporter, clock: Clock, out: io.StringIO) -> None:
    with lines.progress("epochs", 2) as advance:
        clock.now += BETWEEN_LINES
        for batch in range(20):
            clock.now += 1.0
            advance(f"batch {batch}", step=0.1)
    assert out.getvalue().splitlines()[-1] == "epochs: 2/2 batch 19"
    assert "epochs: 1/2 batch 10" in out.getvalue().splitlines()


def test_an_empty_note_leaves_the_one_before(lines: LineReporter, clock: Clock, out: io.StringIO) -> None:
    with lines.progress("epochs", 1) as advance:
        advance("loss 1.0", step=0.5)
        clock.now += BETWEEN_LINES
        advance(step=0.5)
    assert out.getvalue() == "epochs: 1/1 loss 1.0\n"


def test_bars_move_within_a_step_and_vanish(out: io.StringIO) -> None:
    reporter = BarReporter(Console(file=out, force_terminal=True, width=120))
    with reporter.progress("run", 4) as run_on, reporter.progress("[epochs]", 2) as epoch_on:
        epoch_on("loss 0.5", step=0.5)
        run_on("accuracy")
        shown = {bar.description: bar for bar in reporter._bars.tasks}
        assert shown["[epochs]"].completed == 0.5
        assert shown["[epochs]"].percentage == 25
        assert (shown["run"].completed, shown["run"].fields["note"]) == (1, "accuracy")
        reporter._bars.refresh()
    assert "[epochs]" in out.getvalue()
    assert reporter._bars.tasks == []


def test_a_library_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = Reporter()
    with reporter.progress("work", 1) as advance:
        advance("done")
        advance(step=0.1)
    reporter.message("hello")
    assert capsys.readouterr() == ("", "")
