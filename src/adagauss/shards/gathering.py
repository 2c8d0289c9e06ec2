"""Shards into one learner: here one after another, or many at once through an executor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from adagauss.core.class_edits import check_features
from adagauss.core.learn import Learner
from adagauss.errors import DataError, WorkerError
from adagauss.experiments.session import session
from adagauss.gathered import exact_classifier, nothing_gathered
from adagauss.shards.example import ShardError
from adagauss.shards.finding import Shard, find_shards
from adagauss.shards.stock import FEATURES, NOTE, PART, Finished, Stock, digests, finished_in, locked
from adagauss.shards.work import Done, Orders, work
from adagauss.utils.progress import Advance, Reporter

ATTEMPTS = 2
"""How often a shard is begun whose worker dies."""
MOST_LOST = 8
"""Shards that may fail through no fault of their own before the others are not tried any more."""
MOST = 256
"""Shards that an executor has at a time, if nothing else is said: their sums wait on disk."""

Listener = Callable[[Shard, Done], None]


@dataclass
class Gathering:
    """What was gathered."""

    shards: int = 0
    images: int = 0
    known: int = 0
    """Shards that were finished before, or hold the images of another one."""
    skipped_images: int = 0
    damaged: list[str] = field(default_factory=list)
    """Sentences about shards that were left out."""
    stock: Stock | None = None

    def clear(self) -> None:
        """Remove what the model holds now; to be called when it is saved."""
        if self.stock is not None:
            self.stock.clear()


def gather(
    learner: Learner,
    paths: Iterable[Path | str],
    folder: Path,
    *,
    executor: Executor | None = None,
    most: int | None = None,
    skip_bad: bool = False,
    workers: int = 2,
    device: str = "auto",
    reporter: Reporter | None = None,
    then: Listener | None = None,
) -> Gathering:
    """Teach a learner all images of some shards, as `Learner.learn` would with all of them at once, in flat memory.

    Args:
        learner: of an exact method, after its first task (or its `blank`); it changes in the end, whole.
        paths: shards, or folders of shards; see `find_shards`. Those that are in the learner already are passed over.
        folder: where finished shards are kept until the learner is saved; the same call goes on from there. All
            workers must see it. Call `Gathering.clear` after saving.
        executor: who sums the shards; None does it here, one after another.
        most: how many the executor gets at a time.
        skip_bad: leave out images that cannot be decoded, and damaged shards, instead of raising an error.
        workers: threads that decode, where there is no executor.
        device: where the extractor runs.
        reporter: shows progress.
        then: called after each shard.
    """
    exact_classifier(learner.method)  # before anything is written
    reporter = reporter or Reporter()
    shards = find_shards(paths)
    in_model = finished_in(learner.about)
    with locked(folder):
        orders = Orders(_features(learner, folder), folder.absolute(), device, skip_bad, workers)
        nothing = nothing_gathered(learner.method, learner.state, learner.runtime)
        found = Gathering(stock=Stock.opened(folder, nothing, in_model, learner.classes))
        assert found.stock is not None
        if earlier := len(found.stock.finished.keys() - {shard.place for shard in shards}):
            reporter.message(f"{folder} holds shards of an earlier command ({earlier}): they will be in the model, too")
        crew = _Crew(found, found.stock, in_model, skip_bad, then)
        waiting = crew.unfinished(shards)
        with reporter.progress("shards", len(waiting)) as advance:
            if executor is None:
                for number, shard in enumerate(waiting):
                    crew.end(shard, work(shard, number, orders, reporter), advance)
            else:
                with session(folder) as place:
                    ways = replace(orders, workers=1, threads=1, session=place)
                    crew.share(executor, waiting, ways, most or MOST, advance)
        crew.complete()
        found.stock.save()
        if found.stock.total.images:
            learner.gather(found.stock.total)
            learner.about = {**learner.about, NOTE: {**in_model, **found.stock.finished}}
    return found


def _features(learner: Learner, folder: Path) -> Path:
    """A file with the features alone: workers need neither classes nor sums."""
    path = folder / FEATURES
    if path.exists():
        try:
            check_features(learner.network.extractor, Learner.load(path).network.extractor)
        except DataError:
            raise DataError(
                f"{folder} holds shards that were gathered with other features than those of this model: gather them "
                "with the model that they were begun for, or delete the folder"
            ) from None
    else:
        learner.empty_like().save(path)
    return path.absolute()


@dataclass
class _Crew:
    """What becomes of shards, whoever sums them."""

    found: Gathering
    stock: Stock
    in_model: Finished
    skip_bad: bool
    then: Listener | None
    lost: list[str] = field(default_factory=list)
    """Sentences about shards that could not be summed and are not to blame: a full disk, a worker that died."""

    def unfinished(self, shards: list[Shard]) -> list[Shard]:
        """Those that are not finished; one whose files have changed since is refused, or it would count twice."""
        finished, left = {**self.in_model, **self.stock.finished}, []
        for shard in shards:
            note = finished.get(shard.place, "").partition(" ")[0]
            if not note:
                left.append(shard)
            elif note == shard.stamp():
                self.found.known += 1
            else:
                self._damaged(
                    f"{shard.name} has changed since its images were learned, which would count twice: give the new "
                    "images as a shard of their own"
                )
        return left

    def end(self, shard: Shard, done: Done, advance: Advance) -> None:
        """Add a finished shard, or say why it is none."""
        if done.path is None:
            if done.damaged:
                self._damaged(done.failure)
            else:
                self._lost(done.failure)
        else:
            try:
                self._add(done, done.path)
            except ShardError as error:
                self._damaged(f"{shard.name}: {error}")
        if self.then is not None:
            self.then(shard, done)
        advance(f"{self.found.images:,} images")

    def _add(self, done: Done, path: Path) -> None:
        if path.stem.removeprefix(PART) in digests(self.in_model):
            path.unlink(missing_ok=True)
            self.found.known += 1
        elif not self.stock.take(path):
            self.found.known += 1
        else:
            self.found.shards += 1
            self.found.images += done.images
            self.found.skipped_images += done.skipped

    def share(self, executor: Executor, shards: list[Shard], orders: Orders, most: int, advance: Advance) -> None:
        """Let an executor sum the shards; one whose worker dies is begun again once."""
        waiting = [(shard, 1) for shard in reversed(shards)]
        pending: dict[Future[Done], tuple[Shard, int]] = {}
        number = 0
        with _cancelled(pending):
            while waiting or pending:
                while waiting and len(pending) < most:
                    shard, begun = waiting.pop()
                    pending[_submitted(executor, shard, number, orders)] = shard, begun
                    number += 1
                ended, _ = wait(pending, return_when=FIRST_COMPLETED)
                for future in ended:
                    shard, begun = pending.pop(future)
                    try:
                        done = future.result()
                    except Exception as error:  # our own errors are values: this is the engine's
                        if begun < ATTEMPTS:
                            waiting.append((shard, begun + 1))
                            continue
                        done = Done(
                            failure=f"{shard.name}: its worker ended {begun} times ({type(error).__name__}): it was "
                            "killed, or the memory is full; give fewer --jobs"
                        )
                    if done.abandoned:  # this process was stopped for so long that its workers gave up
                        waiting.append((shard, begun))
                        continue
                    self.end(shard, done, advance)

    def complete(self) -> None:
        """Raise if shards were lost: all others are kept on disk, and the model stays what it was."""
        if self.lost:
            self.stock.save()
            more = f" ({len(self.lost)} shards failed like this)" if len(self.lost) > 1 else ""
            raise WorkerError(
                f"{self.lost[0]}{more}; the other shards are kept, and the same command goes on from there"
            )

    def _lost(self, sentence: str) -> None:
        self.lost.append(sentence)
        if len(self.lost) >= MOST_LOST:
            self.complete()

    def _damaged(self, sentence: str) -> None:
        if not self.skip_bad:
            self.stock.save()
            raise DataError(sentence)
        self.found.damaged.append(sentence)


def _submitted(executor: Executor, shard: Shard, number: int, orders: Orders) -> Future[Done]:
    """A shard in the hands of an executor; engines that are gone raise errors of their own, which the future holds."""
    try:
        return executor.submit(work, shard, number, orders, expected=shard.stamp())
    except Exception as error:
        failed: Future[Done] = Future()
        failed.set_exception(error)
        return failed


@contextmanager
def _cancelled(pending: dict[Future[Done], tuple[Shard, int]]) -> Iterator[None]:
    try:
        yield
    finally:
        for future in pending:
            future.cancel()
