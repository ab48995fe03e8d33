"""The bar of a bench that knows how many steps it has; on stderr, and lines instead of a bar in a log."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cli.console import err


@contextmanager
def counting_bar(total: int) -> Iterator[Callable[[str], None]]:
    """Gives what is to be called at the beginning of each step, with what it does.

    It moves with the steps and rarely else: drawing costs time that the measurement would lose.
    """
    if not err.is_terminal:
        yield lambda what: err.print(what, style="dim", markup=False, soft_wrap=True)
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=err, transient=True, refresh_per_second=1) as bar:
        task = bar.add_task("starting", total=total)
        begun = False

        def show(what: str) -> None:
            nonlocal begun
            bar.update(task, description=what, advance=1 if begun else 0)
            begun = True

        yield show
