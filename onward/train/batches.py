"""Batches that survive a redo and a replacement.

Over a map-style data set, which samples belong to step k is a function of (seed, k, rank) alone: nothing has to be
rewound. A step is made of the same micro-batches however many ranks there are: when some are absent the others are
dealt more of them, unevenly, and the gradient stays that of the global batch. Random numbers are then drawn from a
stream of each micro-batch, not of each rank.

Over any other iterable (a DataLoader), items drawn in the current step are kept until it commits and handed out again
in a redo; a replacement skips forward to where its rank was.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from onward.errors import UsageError
from onward.train.streams import NumpyStream, PythonStream, Stream, TorchStream

if TYPE_CHECKING:
    from onward.train.rank import Rank


class Batches(Protocol):
    """What `run.batches` returns."""

    @property
    def position(self) -> Any: ...

    def rewind(self, position: Any) -> None: ...

    def __iter__(self) -> Iterator[Any]: ...

    def __next__(self) -> Any: ...


def batches_over(rank: Rank, source: Any, **options: Any) -> Batches:
    if hasattr(source, "__getitem__") and hasattr(source, "__len__") and "global_batch" in options:
        return Sampled(rank, source, **options)
    if options:
        raise UsageError(
            "run.batches(source, global_batch=...) needs a data set with len() and []; over an iterable such as a "
            f"DataLoader it takes no options (got {', '.join(sorted(options))})"
        )
    if not isinstance(source, Iterable):
        raise UsageError("run.batches needs a data set with len() and [], or an iterable such as a DataLoader")
    return Replayed(source, lambda: rank.tx.step)


class Sampled:
    """This rank's share of each global batch, by step number."""

    def __init__(
        self,
        rank: Rank,
        dataset: Any,
        *,
        global_batch: int,
        micro_batch: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        world = rank.world_size
        problems = []
        if global_batch < 1 or global_batch % world:
            problems.append(f"global_batch={global_batch} must be a positive multiple of the {world} ranks")
        if len(dataset) < global_batch:
            problems.append(f"the data set has {len(dataset)} samples, fewer than one global batch of {global_batch}")
        if micro_batch is not None and (micro_batch < 1 or (global_batch // world) % micro_batch):
            problems.append(f"micro_batch={micro_batch} must divide this rank's {global_batch // world} samples")
        if problems:
            raise UsageError(problems)
        self._rank = rank
        self._dataset = dataset
        self._global = global_batch
        self._micro = micro_batch or global_batch // world
        self._seed = seed
        self._shuffle = shuffle
        self._collate = collate or torch.utils.data.default_collate
        self._order: tuple[int, torch.Tensor | range] = (-1, range(0))
        self._live: Iterator[Any] | None = None
        self._live_step = -1
        self.ids: list[int] = []  # sample ids of the batch drawn last

    def __len__(self) -> int:
        """Steps in an epoch; what does not fill a global batch is left out."""
        return len(self._dataset) // self._global

    @property
    def per_step(self) -> int:
        """Micro-batches of a rank in one step, when all ranks are there: what a loss is divided by."""
        return self._global // self._rank.world_size // self._micro

    def _dealt(self) -> range:
        """Which micro-batches of a global batch are this rank's, among those who take part."""
        total, members = self._global // self._micro, self._rank.members
        at, n = members.index(self._rank.index), len(members)
        return range(total * at // n, total * (at + 1) // n)

    def sample_ids(self, step: int) -> list[int]:
        """Which samples this rank trains on in `step`."""
        epoch, k = divmod(step, len(self))
        if self._order[0] != epoch:
            order: torch.Tensor | range = range(len(self._dataset))
            if self._shuffle:
                generator = torch.Generator().manual_seed(self._seed * 1_000_003 + epoch)
                order = torch.randperm(len(self._dataset), generator=generator)
            self._order = (epoch, order)
        dealt = self._dealt()
        first = k * self._global + dealt.start * self._micro
        return [int(i) for i in self._order[1][first : first + len(dealt) * self._micro]]

    def __iter__(self) -> Iterator[Any]:
        step, dealt = self._rank.tx.step, self._dealt()
        ids = self.sample_ids(step)
        for n, micro in enumerate(dealt):
            self.ids = ids[n * self._micro : (n + 1) * self._micro]
            batch = self._collate([self._dataset[i] for i in self.ids])
            if self._rank.elastic:
                self._at_micro_batch(step, micro, last=n == len(dealt) - 1)
            yield batch

    def _at_micro_batch(self, step: int, micro: int, last: bool) -> None:
        """Where ranks may be absent: random numbers belong to the micro-batch, and gradients are summed up before they
        are exchanged, once a step, since some ranks have more of them to sum up than others."""
        key = (self._seed * 1_000_003 + step) * 65_537 + micro
        torch.manual_seed(key)
        random.seed(key)
        for _, wrapper in self._rank.protected.wrappers():
            wrapper.require_backward_grad_sync = last

    def __next__(self) -> Any:
        """One micro-batch, for blocks that take them by hand."""
        step = self._rank.tx.step
        if self._live is None or self._live_step != step or not self._rank.tx.open:
            self._live, self._live_step = iter(self), step
        return next(self._live)

    @property
    def position(self) -> int:
        return 0

    def rewind(self, position: int) -> None:
        self._live = None


class Epoch(NamedTuple):
    """One pass over an iterable, as it began: it may be shuffled by the random streams."""

    first: int  # number of its first item
    streams: tuple[bytes, ...]


class Drawn(NamedTuple):
    """An item of an iterable, and how the random streams stood before and after it was drawn."""

    item: Any
    step: int
    epoch: Epoch
    before: tuple[bytes, ...]
    after: tuple[bytes, ...]


class Replayed:
    """Items of an iterable, in order, over and over; a redo gets the items it had drawn.

    Drawing one may draw random numbers (augmentation in this process). An item that is handed out again leaves the
    streams as it had left them the first time.
    """

    def __init__(self, source: Iterable[Any], step: Callable[[], int] = lambda: 0) -> None:
        self._source = source
        self._step = step
        self._iterator: Iterator[Any] | None = None
        self._drawn = 0  # items taken from the source
        self._kept: list[Drawn] = []  # those that a redo may ask for
        self._next = 0  # items handed out
        self._passes = 0
        self._epoch = Epoch(0, ())  # that of the item drawn last
        self._told = self._epoch  # one that is to begin like this
        self._streams: tuple[Stream, ...] = (PythonStream(), NumpyStream(), TorchStream())

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        drawn = self._kept_next()
        if drawn is not None and drawn.before != drawn.after:
            if drawn.before == self._read():
                self._write(drawn.after)
            else:  # in a rehearsal, with other random numbers
                self._begin_again(self._next)
                drawn = None
        if drawn is None:
            drawn = self._take()
            oldest = self._step() - 1  # a step that has been committed may be taken back
            self._kept = [*(k for k in self._kept if k.step >= oldest), drawn]
        self._next += 1
        return drawn.item

    def _kept_next(self) -> Drawn | None:
        at = self._next - (self._drawn - len(self._kept))
        return self._kept[at] if 0 <= at < len(self._kept) else None

    def _read(self) -> tuple[bytes, ...]:
        return tuple(stream.read() for stream in self._streams)

    def _write(self, states: tuple[bytes, ...]) -> None:
        for stream, state in zip(self._streams, states, strict=True):
            if stream.read() != state:
                stream.write(state)

    def _take(self) -> Drawn:
        """The next item of the source."""
        before = self._read()
        item = self._take_any()
        self._drawn += 1
        return Drawn(item, self._step(), self._epoch, before, self._read())

    def _take_any(self) -> Any:
        for _ in range(2):
            if self._iterator is None:
                if self._told.first == self._drawn and self._told.streams:
                    self._write(self._told.streams)
                self._epoch = Epoch(self._drawn, self._read())
                self._iterator = iter(self._source)
            try:
                return next(self._iterator)
            except StopIteration:
                self._iterator = None
                self._set_epoch(self._passes + 1)
        raise UsageError("run.batches: the iterable is empty")

    def _set_epoch(self, number: int) -> None:
        """As the usual loop over epochs does by hand, so that a distributed sampler shuffles anew."""
        self._passes = number
        set_epoch = getattr(getattr(self._source, "sampler", None), "set_epoch", None)
        if set_epoch is not None:
            set_epoch(number)

    @property
    def position(self) -> list[Any]:
        """The number of the next item, and how its epoch began."""
        drawn = self._kept_next()
        epoch = drawn.epoch if drawn is not None else self._epoch
        return [self._next, epoch.first, [*epoch.streams]]

    def rewind(self, position: list[Any]) -> None:
        """Hand out the item of `position` next. Where the random streams stand then is the caller's."""
        number, first, streams = position
        self._told = Epoch(first, tuple(streams))
        other = self._epoch.first == first and streams and self._epoch != self._told
        if number < self._drawn - len(self._kept) or (self._drawn and other):
            self._begin_again(number)
        while self._drawn < number:
            self._kept = [self._take()]
        self._next = number

    def _begin_again(self, number: int) -> None:
        """Draw all anew, up to that item."""
        now = self._read()
        self._iterator, self._drawn, self._kept = None, 0, []
        self._set_epoch(0)
        while self._drawn < number:
            self._take()
        self._write(now)
