"""One reporter: bars on a terminal, lines in a pipe, and nothing in a library."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from adagauss.utils.progress import MIN_SECONDS, BarReporter, LineReporter, Reporter, reporter_for


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
    assert isinstance(reporter_for(console=Console(file=out, force_terminal=True)), BarReporter)
    assert isinstance(reporter_for(console=Console(file=out, force_terminal=False)), LineReporter)


def test_a_notebook_gets_lines(out: io.StringIO) -> None:
    assert isinstance(reporter_for(console=Console(file=out, force_jupyter=True)), LineReporter)


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


def test_long_work_gets_a_line_for_each_tenth(lines: LineReporter, clock: Clock, out: io.StringIO) -> None:
    with lines.progress("long", 200) as advance:
        for step in range(200):
            clock.now += 1.0
            advance(f"note {step + 1}")
    assert out.getvalue().splitlines() == [f"long: {step}/200 note {step}" for step in range(20, 201, 20)]


def test_inner_work_is_part_of_a_step_of_the_outer_one(lines: LineReporter, clock: Clock, out: io.StringIO) -> None:
    with lines.progress("run", 2) as run_on:
        clock.now += MIN_SECONDS
        for task in range(2):
            with lines.progress("epochs", 5) as epoch_on:
                for _ in range(10):
                    epoch_on("loss 0.5", step=0.5)
            run_on(f"accuracy {90 - task} %")
    shown = out.getvalue().splitlines()
    assert shown[:2] == ["run: 0/2 | epochs: 1/5 loss 0.5", "run: 0/2 | epochs: 2/5 loss 0.5"]
    assert shown[4:6] == ["run: 1/2 accuracy 90 %", "run: 1/2 accuracy 90 % | epochs: 1/5 loss 0.5"]
    assert shown[9:] == ["run: 2/2 accuracy 89 %"]


def test_an_empty_note_leaves_the_one_before(lines: LineReporter, clock: Clock, out: io.StringIO) -> None:
    with lines.progress("epochs", 1) as advance:
        advance("loss 1.0", step=0.5)
        clock.now += MIN_SECONDS
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
