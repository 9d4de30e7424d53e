"""The agent with packs: ranges, heads, what a new leader inherits, and what becomes of a deleted topic's tail."""

from __future__ import annotations

from tests.live_end.agent import HeadObject, SealingAgent, View, valid_end
from tests.live_end.broker import Led
from tests.live_end.model import (
    Batch,
    Call,
    Changed,
    Entry,
    Log,
    Range,
    Reference,
    Steps,
    Watermark,
    is_live,
    scan,
)
from tests.live_end.store import Stored, head_key, watermark_key
from tidemark.kafka_log import Lineage


class Agent(SealingAgent):
    """Seals and packs."""

    # -- packing -------------------------------------------------------------------------------------------------------

    def _pack(self, view: View, high: int) -> Steps[None]:
        """Pack what is new below the high watermark, then put the head that names it."""
        start = max(view.tail_end, view.sealed_end)
        log = yield from self._bytes(view, start, high)
        if not log:
            return
        if not self.eager:
            log = log[: self._rng.randint(1, len(log))]
        opened = yield from self._open_at(view, start)
        if self.late and not view.listed and self._rules("listed before the pack"):
            view.listed = True
            yield from self._publish(view)
        open_end, aborts = scan(log, opened)
        if not self._rules("verdicts by the bytes"):
            cluster, broker, end = self._cluster, self.broker, log[-1].next
            aborts = yield Call("txnindex", lambda: cluster.aborts(view.topic, broker, start, end))
        one = Range(view.topic, start, log[-1].next, view.epoch, log, open_end, aborts, view.last)
        key = self._pack_name()
        entry = Entry(view.topic, view.epoch, view.lineage, one.next, Reference(key, 0))
        if not self._rules("head after the pack"):
            yield from self._put_entry(entry)
        if self._rules("random names"):
            yield self._store.create(key, (one,))
        else:
            yield self._store.overwrite(key, (one,))
        view.ends[one.next] = open_end
        if self._rules("head after the pack"):
            yield from self._put_entry(entry)
        view.tail_end, view.last = one.next, entry.last

    def _pack_name(self) -> str:
        if self._rules("random names"):
            return f"_tails/{self.broker}/{self._rng.getrandbits(64):016x}.pack"
        self._named += 1
        return f"_tails/{self.broker}/{self._named}.pack"

    # -- the head ------------------------------------------------------------------------------------------------------

    def _read_head(self) -> Steps[HeadObject]:
        """This broker's head; read once, then known."""
        if self._head is None:
            found: Stored | None = yield self._store.get(head_key(self.broker))
            if not self._rules("head kept over a restart"):
                found = found._replace(value=()) if found else None
            self._head = HeadObject(found.value, found.etag) if found else HeadObject((), None)
        return self._head

    def _put_entry(self, entry: Entry) -> Steps[None]:
        """Put the head with ``entry`` in place of the one of the same topic id and epoch."""
        head = yield from self._read_head()
        kept = tuple(one for one in head.entries if (one.topic, one.epoch) != (entry.topic, entry.epoch))
        yield from self._put_head(head, (*kept, entry))

    def _put_head(self, head: HeadObject, entries: tuple[Entry, ...]) -> Steps[None]:
        key = head_key(self.broker)
        if self._rules("head by If-Match"):
            head.etag = yield self._store.replace(key, entries, head.etag)
        else:
            head.etag = yield self._store.overwrite(key, entries)
        head.entries, head.settled = entries, True

    def _settle_head(self, view: View) -> Steps[None]:
        """Put the head again unless this process has put it, and take over what it says of the partition."""
        assert view.watermark is not None
        if not view.leads or all(broker != self.broker for _, broker in view.watermark.tails):
            return
        head = yield from self._read_head()
        if not head.settled:
            yield from self._put_head(head, head.entries)
        for entry in head.entries:
            if entry.topic != view.topic:
                continue
            if entry.epoch != view.epoch:
                view.inherited[entry.epoch, self.broker] = entry
            elif entry.last != view.last:
                self._view = None  # a late PUT has arrived before the head was put again
                raise Changed

    # -- a new leader --------------------------------------------------------------------------------------------------

    def _inherit(self, view: View, found: Stored | None) -> Steps[None]:
        """Read the heads of those who packed before, and go on where their chains leave this lineage."""
        written: Watermark | None = found.value if found else None
        for epoch, broker in written.tails if written else ():
            if epoch == view.epoch:
                continue
            head: Stored | None = yield self._store.get(head_key(broker))
            entries = [one for one in (head.value if head else ()) if (one.topic, one.epoch) == (view.topic, epoch)]
            for entry in entries:
                view.inherited[epoch, broker] = entry
                view.tail_end = max(view.tail_end, valid_end(view, entry))

    def _own_tail(self, view: View) -> Steps[None]:
        """After a restart under the same epoch, go on where this broker's head ends."""
        head = yield from self._read_head()
        for entry in head.entries:
            if (entry.topic, entry.epoch) == (view.topic, view.epoch):
                view.tail_end, view.last = max(view.tail_end, entry.tail_end), entry.last

    def _look_for_tails(self, view: View, start: int) -> Steps[None]:
        own = {(view.epoch, self.broker): view.last}
        known = {key: entry.last for key, entry in view.inherited.items()} | own
        for broker in self._with_heads(view):
            head: Stored | None = yield self._store.get(head_key(broker))
            for entry in head.value if head else ():
                key = entry.epoch, broker
                if entry.topic != view.topic or valid_end(view, entry) <= start or known.get(key) == entry.last:
                    continue
                if key in own:
                    self._view = self._head = None  # a write whose reply was lost has arrived
                else:
                    view.inherited[key] = entry
                raise Changed

    def _read_heads_again(self, view: View) -> Steps[None]:
        """Take over what heads of former leaders say now: a deposed one may have gone on until it noticed."""
        assert view.watermark is not None
        for epoch, broker in view.watermark.tails:
            if broker == self.broker:
                continue
            head: Stored | None = yield self._store.get(head_key(broker))
            for entry in head.value if head else ():
                if (entry.topic, entry.epoch) == (view.topic, epoch):
                    view.inherited[epoch, broker] = entry

    def _with_heads(self, view: View) -> list[int]:
        """The brokers whose heads may have tails of the partition."""
        assert view.watermark is not None
        listed = {broker for _, broker in view.watermark.tails}
        if self._rules("replicas' heads before a gap"):
            listed |= self._cluster.replicas(view.topic)
        return sorted(listed)

    # -- bytes from packs ----------------------------------------------------------------------------------------------

    def _packed(self, view: View, start: int) -> Steps[Log]:
        """The batches from ``start`` on that known chains hold on this lineage, without a hole."""
        ranges = yield from self._known_ranges(view, start)
        log: list[tuple[int, Log]] = []
        at = start
        while True:
            near = [one for one in ranges if one.first <= at < one.next]
            found = [(at_end, batches) for one in near for at_end, batches in [_live_part(one, view, at)] if batches]
            if not found:
                return tuple(batch for _, batches in log for batch in batches)
            best = max(found)
            log.append(best)
            at = best[0]

    def _as_packed(self, view: View, start: int, log: Log, end: int) -> Steps[Log]:
        if self._cluster.compacted and self._rules("own head again before a seal"):
            yield from self._settle_head(view)
        if self._cluster.compacted and self._rules("heads again before a seal"):
            yield from self._read_heads_again(view)
        packed: dict[int, Batch] = {}
        for one in (yield from self._known_ranges(view, start)):
            for batch in one.log:
                inside = start <= batch.base and batch.next <= end and is_live(batch.base, batch.epoch, view.lineage)
                if inside and (batch.base not in packed or len(batch.rows) > len(packed[batch.base].rows)):
                    packed[batch.base] = batch
        whole = {batch.base: batch for batch in log} | packed
        return tuple(whole[base] for base in sorted(whole))

    def _known_ranges(self, view: View, start: int) -> Steps[list[Range]]:
        """The ranges of this leader's chain and of the inherited ones, back to ``start``."""
        chains = [entry.last for entry in view.inherited.values()] + ([view.last] if view.last else [])
        ranges: list[Range] = []
        for reference in chains:
            ranges += yield from self._chain(view.topic, reference, start)
        return ranges

    def _chain(self, topic: str, last: Reference, start: int) -> Steps[list[Range]]:
        """The ranges of a chain from its last one back to the one with ``start``."""
        found: list[Range] = []
        reference: Reference | None = last
        while reference is not None:
            pack: Stored | None = yield self._store.get(reference.pack)
            if pack is None:
                break
            one: Range = pack.value[reference.number]
            if one.topic == topic:
                found.append(one)
            reference = one.previous if one.first > start else None
        return found

    # -- entries that are no longer led --------------------------------------------------------------------------------

    def _tidy(self, led: Led | None) -> Steps[None]:
        """Drop an entry that ``offset.wm`` no longer lists; seal the tail of a topic that was deleted."""
        if self.eager:
            self._head = None  # a write whose reply was lost may have arrived since
        head = yield from self._read_head()
        for entry in head.entries:
            if led is not None and (entry.topic, entry.epoch) == led:
                continue
            found: Stored | None = yield self._store.get(watermark_key(entry.topic))
            listed = found is not None and (entry.epoch, self.broker) in found.value.tails
            if not listed or not self._rules("entries stay until they are sealed"):
                if self._rules("dead tails are sealed") and found is not None:
                    yield from self._seal_tail(entry, found, entry.lineage)
                yield from self._put_head(head, tuple(one for one in head.entries if one != entry))
                return
            assert found is not None
            deleted = yield self._gone(entry.topic)
            if deleted:
                yield from self._publish((yield from self._seal_tail(entry, found, found.value.lineage)))
                return

    def _gone(self, topic: str) -> Call:
        """Whether the cluster has deleted this topic id: no leader writes any more."""
        cluster = self._cluster
        return Call("is deleted", lambda: next(one.deleted for one in cluster.topics if one.name == topic))

    def _seal_tail(self, entry: Entry, found: Stored, lineage: Lineage) -> Steps[View]:
        """Seal from packs what they hold on ``lineage``, and no seal does yet."""
        written: Watermark = found.value
        view = View(entry.topic, written.epoch, lineage, False, written, found.etag)
        yield from self._look(view)
        yield from self._inherit(view, found)
        view.inherited[entry.epoch, self.broker] = entry
        log = yield from self._packed(view, view.sealed_end)
        if log:
            if self._rules("seal what was packed"):
                log = yield from self._as_packed(view, view.sealed_end, log, log[-1].next)
            opened = yield from self._open_at(view, view.sealed_end)
            yield from self._store_seal(view, view.sealed_end, log, opened, log[-1].next)
        return view


def _live_part(one: Range, view: View, at: int) -> tuple[int, Log]:
    """The end of what ``one`` has from ``at`` on, on this leader's lineage, and the batches."""
    kept: list[Batch] = []
    end = at
    for batch in one.log:
        if batch.base < at:
            continue
        if not is_live(batch.base, batch.epoch, view.lineage):
            return end, tuple(kept)
        kept.append(batch)
        end = batch.next
    return (one.next if kept else at), tuple(kept)
