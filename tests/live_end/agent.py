"""The agent of one broker: it claims, surveys, seals and packs; every access is a step of its own."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from tests.live_end.broker import Cluster, Led
from tests.live_end.model import (
    UNKNOWN,
    Call,
    Changed,
    Conflict,
    Entry,
    Fenced,
    Head,
    Log,
    Manifest,
    Open,
    Reference,
    Rules,
    Steps,
    Truncation,
    UnknownOutcome,
    Watermark,
    is_live,
    lineage_of,
    live_batches,
    live_until,
    scan,
)
from tests.live_end.store import (
    Store,
    Stored,
    aborts_key,
    folder,
    log_key,
    manifest_key,
    stem_of,
    watermark_key,
)
from tidemark.kafka_log import Lineage


@dataclass
class View:
    """What the agent knows of a partition under one leadership: from the survey on, kept up to date by its writes."""

    topic: str
    epoch: int
    lineage: Lineage
    leads: bool = True
    """Otherwise it seals the tail of a deleted topic."""
    watermark: Watermark | None = None
    etag: str | None = None
    seals: dict[str, Manifest] = field(default_factory=dict)
    sealed_end: int = 0
    tail_end: int = 0
    last: Reference | None = None
    ends: dict[int, tuple[Open, ...]] = field(default_factory=dict)
    """What is open at the ends of the ranges that this agent has packed."""
    inherited: dict[tuple[int, int], Entry] = field(default_factory=dict)
    """The tails of former leaders, by (epoch, broker)."""
    listed: bool = False
    """Whether it packs, and ``offset.wm`` is to list it."""


def valid_end(view: View, entry: Entry) -> int:
    """How far the chain of ``entry`` is on this leader's lineage."""
    return live_until(entry.lineage, view.lineage, 0, entry.tail_end)


@dataclass
class HeadObject:
    """This broker's head, as it lies in the store."""

    entries: Head
    etag: str | None
    settled: bool = False
    """Whether this process has put it: no earlier PUT can take effect any more."""


class SealingAgent(ABC):
    """The agent without packs; :class:`~tests.live_end.packing.Agent` has the rest.

    ``eager`` agents seal and pack whatever they can; others as the seed says.
    """

    def __init__(
        self, broker: int, cluster: Cluster, store: Store, rules: Rules, rng: random.Random, *, packs: bool
    ) -> None:
        self.broker = broker
        self.eager = False
        self.most = UNKNOWN
        """The most batches of a seal."""
        self.late = False
        """Whether a leader lists itself in ``offset.wm`` before its first pack, and not with its claim."""
        self._cluster = cluster
        self._store = store
        self._rules = rules
        self._rng = rng
        self._packs = packs
        self._view: View | None = None
        self._seen: dict[str, int] = {}
        self._head: HeadObject | None = None
        self._named = 0

    def run(self) -> Steps[None]:
        """The process, until it is killed. It knows nothing at its start."""
        self._view, self._seen, self._head, self._named = None, {}, None, 0
        while True:
            try:
                yield from self._turn()
            except (Conflict, UnknownOutcome, Fenced, Changed) as error:
                if not isinstance(error, Changed):
                    self._view, self._head = None, None  # whatever it knew may be wrong: look again

    def _turn(self) -> Steps[None]:
        cluster, broker = self._cluster, self.broker
        led: Led | None = yield Call("who leads", lambda: cluster.who_leads(broker))
        if self._packs and (led is None or self.eager or self._rng.random() < 0.3):
            yield from self._tidy(led)
        if led is None or led.epoch < self._seen.get(led.topic, 0):
            return
        self._seen[led.topic] = led.epoch
        yield from self._lead(led)

    def _lead(self, led: Led) -> Steps[None]:
        """What a leader's agent does in one turn."""
        cluster, broker = self._cluster, self.broker
        topic, epoch = led
        lineage: Lineage | None = yield Call("lineage", lambda: cluster.lineage(topic, broker))
        if lineage is None or not lineage.entries:
            return
        if self._rules("own epoch in lineage") and lineage.entries[-1][0] != epoch:
            return
        high: int | None = yield Call("high watermark", lambda: cluster.high_watermark(topic, broker, epoch))
        if high is None and self._rng.random() < 0.6:
            high = yield Call("checkpoint", lambda: cluster.checkpoint(topic, broker))
        if high is None:
            return
        if not self._rules("below the high watermark"):
            high = 1 << 30
        if self._view is None or (self._view.topic, self._view.epoch) != led or self._view.lineage != lineage:
            self._view = View(topic, epoch, lineage)
            yield from self._survey(self._view)
        view = self._view
        if self._packs and (self.eager or self._rng.random() < 0.7):
            yield from self._pack(view, high)
        if self.eager or self._rng.random() < (0.4 if self._packs else 0.9):
            yield from self._seal(view, high)

    # -- the survey ----------------------------------------------------------------------------------------------------

    def _survey(self, view: View) -> Steps[None]:
        """Claim the partition, then find out what the store has on this leader's lineage."""
        found: Stored | None = yield self._store.get(watermark_key(view.topic))
        self._take(view, found)
        before = view.watermark
        if self._rules("claim") and (before is None or before.epoch < view.epoch):
            yield from self._write_watermark(view, (yield from self._claim(view)))
        yield from self._look(view)
        if self._packs:
            yield from self._inherit(view, Stored(view.watermark, "") if view.watermark else None)
            yield from self._own_tail(view)

    def _take(self, view: View, found: Stored | None) -> None:
        """Take over ``offset.wm``, or stop if a later leader wrote it."""
        view.watermark, view.etag = (found.value, found.etag) if found else (None, None)
        if view.watermark and view.watermark.epoch > view.epoch:
            raise Fenced

    def _claim(self, view: View) -> Steps[Watermark]:
        """The first object of a leadership: its epoch, its whole lineage, and where the stored log leaves it."""
        before = view.watermark
        if before is None:
            return Watermark(view.epoch, 0, 0, view.lineage, self._tails(view, ()))
        at = live_until(before.lineage, view.lineage, 0, before.next)
        line1 = before.line1
        if at <= line1 and self._rules("line 1 goes down"):
            listed = yield self._store.list(folder(view.topic))
            stems = [key.removeprefix(folder(view.topic)) for key, _ in listed if key.endswith(".manifest")]
            line1 = max((base for base in (int(one[:6]) for one in stems) if base < at), default=0)
        return Watermark(view.epoch, at, line1, view.lineage, self._tails(view, before.tails))

    def _tails(self, view: View, before: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
        mine = ((view.epoch, self.broker),) if self._packs and view.leads and (view.listed or not self.late) else ()
        return tuple(sorted({*before, *mine}))

    def _look(self, view: View, *, everything: bool = False) -> Steps[None]:
        """Read the manifests from line 1 on, or all."""
        line1 = view.watermark.line1 if view.watermark else 0
        if view.watermark:
            at = live_until(view.watermark.lineage, view.lineage, 0, view.watermark.next)
            line1 = line1 if at > line1 and not everything else 0
        listed: list[tuple[str, str]] = yield self._store.list(folder(view.topic), folder(view.topic) + stem_of(line1))
        view.seals = {}
        for key, _ in listed:
            if key.endswith(".manifest"):
                found: Stored = yield self._store.get(key)
                view.seals[found.value.stem] = found.value
        view.sealed_end = self._contiguous(view)

    def _contiguous(self, view: View) -> int:
        """The end of what is stored without a hole on this leader's lineage."""
        written = view.watermark
        end = live_until(written.lineage, view.lineage, 0, written.next) if written else 0
        while True:
            reach = max((self._reach(view, seal, end) for seal in view.seals.values()), default=end)
            if reach <= end:
                return end
            end = reach

    def _reach(self, view: View, seal: Manifest, at: int) -> int:
        if not seal.base <= at < seal.next:
            return at
        if not self._rules("survey by lineage"):
            return seal.next
        return live_until(seal.lineage, view.lineage, at, seal.next)

    # -- offset.wm -----------------------------------------------------------------------------------------------------

    def _write_watermark(self, view: View, new: Watermark) -> Steps[None]:
        before = view.watermark
        if before is not None and (new.epoch, new.next) < (before.epoch, before.next):
            raise Changed
        if not self._rules("whole lineage"):
            new = self._short(new, before)
        if new == before or not (new.next or before or self._rules("claim")):
            return
        key = watermark_key(view.topic)
        if self._rules("watermark by If-Match"):
            view.etag = yield self._store.replace(key, new, view.etag)
        else:
            view.etag = yield self._store.overwrite(key, new)
        view.watermark = new

    @staticmethod
    def _short(new: Watermark, before: Watermark | None) -> Watermark:
        """The mutant's: the lineage ends at the next offset, and a cut is told by an entry of its own."""
        cuts = before.truncations if before else ()
        if before is not None and new.epoch > before.epoch:
            at = live_until(before.lineage, new.lineage, 0, before.next)
            cuts = (*cuts, Truncation(at, new.epoch)) if at < before.next else cuts
        return replace(new, lineage=new.lineage.truncated(new.next), truncations=cuts)

    def _publish(self, view: View) -> Steps[None]:
        """Say in ``offset.wm`` how far the seals reach, and forget tails that lie below."""
        view.sealed_end = self._contiguous(view)
        before = view.watermark
        bases = (seal.base for seal in view.seals.values() if seal.base < view.sealed_end)
        line1 = max(bases, default=before.line1 if before else 0)
        tails = self._tails(view, (key for key in (before.tails if before else ()) if not self._is_done(view, key)))
        yield from self._write_watermark(view, Watermark(view.epoch, view.sealed_end, line1, view.lineage, tails))

    @staticmethod
    def _is_done(view: View, tail: tuple[int, int]) -> bool:
        """Whether all that a former leader can have packed on this lineage is sealed, whatever its head says so far."""
        end = min((start for epoch, start in view.lineage.entries if epoch > tail[0]), default=UNKNOWN)
        if not view.leads and tail in view.inherited:
            end = min(end, valid_end(view, view.inherited[tail]))
        return end <= view.sealed_end

    def _fence(self, view: View) -> Steps[None]:
        found: Stored | None = yield self._store.get(watermark_key(view.topic))
        if found is not None and found.value.epoch > view.epoch:
            raise Fenced

    # -- seals ---------------------------------------------------------------------------------------------------------

    def _seal(self, view: View, high: int) -> Steps[None]:
        """Seal one run of batches from the sealed end on, and publish."""
        start = view.sealed_end
        log = yield from self._bytes(view, start, high)
        end: int | None = None
        if log is None:
            log = (yield from self._packed(view, start)) if self._packs else ()
            if not log:
                yield from self._gap(view, start)
                return
        else:
            end = yield from self._end_of_segment(view, start, high)
            if end is not None:
                log = tuple(batch for batch in log if batch.next <= end)
            elif not log:
                yield from self._publish(view)  # a former process may have died before it did
                return
            elif not self.eager:
                log = log[: self._rng.randint(1, min(len(log), self.most))]
        last = log[-1].next if log else start
        end = last if end is None else end
        if self._packs and self._rules("seal what was packed"):
            compared = end if self._rules("packs count to the end of the run") else last
            log = yield from self._as_packed(view, start, log, compared)
        opened = yield from self._open_at(view, start)
        yield from self._store_seal(view, start, log, opened, end)
        yield from self._publish(view)

    def _end_of_segment(self, view: View, start: int, high: int) -> Steps[int | None]:
        """Where the rotated local segment that holds ``start`` ends; None if it is active, or above ``high``."""
        cluster, topic, broker = self._cluster, view.topic, self.broker
        if not cluster.compacted:
            return None  # its segments end with batches, and a run of batches may end with any of them
        rolls: tuple[int, ...] = yield Call("rolls", lambda: cluster.rolls(topic, broker))
        end = min((offset for offset in rolls if offset > start), default=UNKNOWN)
        return end if end <= high else None

    def _bytes(self, view: View, start: int, end: int) -> Steps[Log | None]:
        """Whole batches from the disk. The lineage of before the high watermark must still hold after the read."""
        cluster, topic, broker = self._cluster, view.topic, self.broker
        log: Log | None = yield Call("read", lambda: cluster.read(topic, broker, start, end))
        if self._rules("lineage again"):
            lineage = yield Call("lineage", lambda: cluster.lineage(topic, broker))
            if lineage != view.lineage:
                raise Changed
        if log and not live_batches(log, view.lineage):
            raise Changed
        return log

    def _open_at(self, view: View, start: int) -> Steps[tuple[Open, ...]]:
        """Transactions open at ``start``: from the seal that ends there, from the disk, or by scanning a seal."""
        for seal in view.seals.values():
            if seal.next == start and live_until(seal.lineage, view.lineage, seal.base, start) == start:
                return seal.open
        if start in view.ends:
            return view.ends[start]
        if not self._rules("open transactions at the start"):
            return ()
        cluster, topic, broker = self._cluster, view.topic, self.broker
        if view.leads:  # else the local log may be of another branch
            opened: tuple[Open, ...] | None = yield Call("open at", lambda: cluster.open_at(topic, broker, start))
            if opened is not None:
                return opened
        return (yield from self._open_inside(view, start))

    def _open_inside(self, view: View, at: int) -> Steps[tuple[Open, ...]]:
        """Scan the stored seal that holds the batch before ``at``, from the open transactions at its base on."""
        if at == 0:
            return ()
        holding = self._holding(view, at - 1)
        if not holding:
            yield from self._look(view, everything=True)
            holding = self._holding(view, at - 1)
        if not holding:
            raise Changed  # nobody knows: the topic was deleted after its bytes were read
        seal = min(holding, key=lambda one: one.base)
        opened = yield from self._open_inside(view, seal.base)
        found: Stored | None = yield self._store.get(log_key(view.topic, seal.stem))
        assert found is not None, f"{seal.stem} of {view.topic} has a manifest and no .log"
        return scan((batch for batch in found.value if batch.next <= at), opened)[0]

    def _holding(self, view: View, offset: int) -> list[Manifest]:
        """The seals that hold ``offset`` on the lineage of ``view``."""
        return [seal for seal in view.seals.values() if self._reach(view, seal, offset) > offset]

    def _store_seal(self, view: View, base: int, log: Log, opened: tuple[Open, ...], end: int) -> Steps[None]:
        """``.log``, ``.txnindex``, manifest, each created once. What is there already is the same, or is adopted.

        The run accounts for the offsets below ``end``; adopted bytes account for those up to their last batch.
        """
        topic, store = view.topic, self._store
        if not self._rules("manifest last"):
            open_end, aborts = scan(log, opened)
            early = Manifest(stem_of(base), base, end, bool(aborts), lineage_of(log), open_end)
            yield from self._create(manifest_key(topic, early.stem), early)
        stem, stored = yield from self._store_log(view, base, log)
        if stored is not log:
            log, end = stored, stored[-1].next if stored else base
        open_end, aborts = scan(log, opened)
        if aborts:
            yield from self._create(aborts_key(topic, stem), aborts)
        manifest = Manifest(stem, base, end, bool(aborts), self._whole(view, log, end), open_end)
        if self._rules("nothing is replaced"):
            try:
                yield store.create(manifest_key(topic, stem), manifest)
            except Conflict:
                manifest = (yield store.get(manifest_key(topic, stem))).value  # another agent's, of the same bytes
        else:
            there: Stored | None = yield store.get(manifest_key(topic, stem))
            yield store.replace(manifest_key(topic, stem), manifest, there.etag if there else None)
        view.seals[stem] = manifest

    def _store_log(self, view: View, base: int, log: Log) -> Steps[tuple[str, Log]]:
        """Store the bytes; the name under which they lie, and the bytes that lie there.

        Where the name is taken, and what lies there begins with a live batch, that counts as far as it is live, and the
        next seal goes on from there. Else it is of another branch. The name with the epoch of our first batch is then
        free, or taken by bytes that begin with our first batch.
        """
        topic, store = view.topic, self._store
        epoch = log[0].epoch if log else view.lineage.epoch_at(base)
        for stem in (stem_of(base), stem_of(base, epoch)):
            try:
                yield store.create(log_key(topic, stem), log)
            except Conflict:
                there: Stored = yield store.get(log_key(topic, stem))
            else:
                return stem, log
            if there.value == log:
                return stem, log
            if there.value and live_batches(there.value[:1], view.lineage) and self._holds(there.value, log):
                return stem, there.value if self._rules("adopt what begins alike") else log
            if not self._rules("nothing is replaced"):
                yield from self._fence(view)
                yield store.copy(log_key(topic, stem), f"_superseded/{topic}/{stem}.log/{there.etag}", there.etag)
                yield store.replace(log_key(topic, stem), log, there.etag)
                return stem, log
        raise Changed

    def _holds(self, stored: Log, log: Log) -> bool:
        """Whether stored bytes have all records of ``log``, which has what packs hold, up to where they end."""
        rows = {row for batch in stored for row in batch.rows}
        due = (row for batch in log if batch.next <= stored[-1].next for row in batch.rows)
        return not self._packs or rows.issuperset(due) or not self._rules("adopt what holds as much")

    def _create(self, key: str, value: object) -> Steps[None]:
        """Create an object that follows from another one: if it is there, it is the same."""
        try:
            yield self._store.create(key, value)
        except Conflict:
            return

    @staticmethod
    def _whole(view: View, log: Log, end: int) -> Lineage:
        """The lineage of ``log``: the leader's, and beyond its live part that of the dead batches."""
        live = [batch for batch in log if is_live(batch.base, batch.epoch, view.lineage)]
        known = view.lineage.truncated(live[-1].next if len(live) < len(log) else end)
        newest = (
            known.entries[-1][0] if known.entries else -1
        )  # a run that compaction emptied may lie below the first epoch
        dead = (entry for entry in lineage_of(log[len(live) :]).entries if entry[0] > newest)
        return Lineage((*known.entries, *dead))

    def _gap(self, view: View, start: int) -> Steps[None]:
        """The log on the disk begins after ``start``, and no pack is known: record what is missing, under the fence."""
        cluster, topic, broker = self._cluster, view.topic, self.broker
        log_start: int | None = yield Call("log start", lambda: cluster.log_start(topic, broker))
        if log_start is None or log_start <= start or view.watermark is None:
            raise Changed
        if self._packs:
            yield from self._look_for_tails(view, start)
            yield from self._look(view, everything=True)  # an entry goes when its tail is sealed
            if view.sealed_end > start:
                return
        key = watermark_key(topic)
        yield self._store.replace(key, replace(view.watermark, gaps=((start, log_start),)), view.etag)
        raise Changed

    # -- packs ---------------------------------------------------------------------------------------------------------

    @abstractmethod
    def _tidy(self, led: Led | None) -> Steps[None]:
        """Look after entries of the head whose partition is no longer led."""

    @abstractmethod
    def _pack(self, view: View, high: int) -> Steps[None]:
        """Pack what is new, and put the head."""

    @abstractmethod
    def _packed(self, view: View, start: int) -> Steps[Log]:
        """The batches from ``start`` on that packs hold on this lineage."""

    @abstractmethod
    def _as_packed(self, view: View, start: int, log: Log, end: int) -> Steps[Log]:
        """The same run up to ``end``, with the batches as they were packed where compaction has changed them since."""

    @abstractmethod
    def _look_for_tails(self, view: View, start: int) -> Steps[None]:
        """Read the heads of all replicas again. Raise Changed if one has more than is known here."""

    @abstractmethod
    def _inherit(self, view: View, found: Stored | None) -> Steps[None]:
        """Read what former leaders packed."""

    @abstractmethod
    def _own_tail(self, view: View) -> Steps[None]:
        """Go on where this broker's head ends."""
