"""The fold of a state table: the last record of each key in each partition, and of these the newest.

A partition orders its records by offset. Between the last records of a key in several partitions, the incarnation
decides, then the record's time, then the partition. If the settings name columns of an order, these decide before all
of that, a missing value being the lowest. So the result depends on the set of records alone, and not on how
they are divided, repeated or ordered: the fold of folds is the fold of all. That needs all last records of a key, also
those that delete it, and those that another partition's outranks: a state table keeps them in its reserve.

With an order, a record may be outranked by an older one: of its partition, or of an older incarnation. Where a source
begins its positions again, as after a restore, that is each later record. So the last record by offset is kept as
well, and such keys are counted.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidemark.decode.schema import array, numpy_values

HASH: Final = "_hash"
DELETED: Final = "_deleted"

KEY: Final = "kafka_key"
_INCARNATION, _PARTITION, _OFFSET, _TIME = "kafka_incarnation", "kafka_partition", "kafka_offset", "kafka_timestamp"

_NUMBERS: Final = {HASH, _INCARNATION, _PARTITION, _OFFSET}
"""The columns of numbers that are never null; those of an order may have any type."""

_Mask = NDArray[np.bool_]


class Ranking(NamedTuple):
    """The column ``key`` that tells keys apart, and the columns of the ``order``, which may be empty."""

    key: str = KEY
    order: tuple[str, ...] = ()


class Newest(NamedTuple):
    """The newest record of each key that is not deleted, the ``reserve``, and the number of keys that moved.

    Of ``outranked_keys``, a later record has a lower order.
    """

    rows: pa.Table
    reserve: pa.Table
    moved_keys: int
    outranked_keys: int = 0


def with_hash(rows: pa.Table, ranking: Ranking) -> pa.Table:
    """``rows`` with the hashes of their keys in a last column."""
    from tidemark.decode import rowhash  # which loads numba, and drivers need none

    keys = rows.column(ranking.key).combine_chunks()
    hashes = rowhash.key_hashes(keys.cast(pa.binary()))
    return rows.append_column(pa.field(HASH, pa.uint64(), nullable=False), array(pa.uint64(), hashes))


def last_records(rows: pa.Table, ranking: Ranking) -> pa.Table:
    """The last record of each key in each partition of ``rows``, ordered by hash and key.

    With an order, that is the one of the greatest, and also the one of the greatest offset.
    """
    rows, same_key = _sorted(rows, ranking.key, (_INCARNATION, _PARTITION, *ranking.order, _OFFSET))
    followed = _of_all(rows, same_key & _same(rows, _INCARNATION) & _same(rows, _PARTITION))
    last = ~followed
    if ranking.order and len(rows):
        starts = np.flatnonzero(np.append(True, last[:-1]))
        offsets = _values(rows, _OFFSET)
        greatest = np.repeat(np.maximum.reduceat(offsets, starts), np.diff(np.append(starts, len(rows))))
        last = last | (offsets == greatest)
    return chosen(rows, last)


def newest(rows: pa.Table, ranking: Ranking) -> Newest:
    """The newest of the last records of each key; ``rows`` may have any records, in any order."""
    deciding = (*ranking.order, _INCARNATION)
    rows, same_key = _sorted(last_records(rows, ranking), ranking.key, (*deciding, _TIME, _PARTITION))
    winner = ~_of_all(rows, same_key)
    deleted = numpy_values(rows.column(DELETED))
    # A record that is lower in the order, or of an older incarnation, is outranked for ever.
    winners = np.flatnonzero(winner)
    above = winners[np.searchsorted(winners, np.arange(len(rows)))]
    outranked = ~winner
    for name in deciding:
        values = _values(rows, name)
        outranked &= values == values[above]
    moved = len(np.unique(above[outranked]))
    later = _later(rows, above) if ranking.order else np.zeros(len(rows), np.bool_)
    reserve = (winner & deleted) | outranked | later
    return Newest(
        chosen(rows, winner & ~deleted),
        chosen(rows, reserve & ~(winner & ~deleted)),
        moved,
        len(np.unique(above[later])),
    )


def _later(rows: pa.Table, above: NDArray[np.int64]) -> _Mask:
    """For each row whether it is later than the newest of its key, which is at ``above``, although of a lower order."""
    incarnations, partitions, offsets = (_values(rows, name) for name in (_INCARNATION, _PARTITION, _OFFSET))
    same = (incarnations == incarnations[above]) & (partitions == partitions[above])
    later: _Mask = (incarnations > incarnations[above]) | (same & (offsets > offsets[above]))
    return later


def merged(rows: pa.Table, changes: pa.Table, ranking: Ranking) -> Newest:
    """The :func:`newest` of both; ``rows`` are those of a state, in order, and most are of keys without ``changes``.

    Of ``changes``, which are a reserve and runs, the rows may have any order.
    """
    if not len(rows):
        return newest(changes, ranking)
    hashes, changed = _values(rows, HASH), np.unique(_values(changes, HASH))
    touched = np.zeros(len(rows), np.bool_)
    if len(changed):
        touched = changed[np.minimum(np.searchsorted(changed, hashes), len(changed) - 1)] == hashes
    found = newest(pa.concat_tables([chosen(rows, touched), changes]), ranking)
    kept = np.flatnonzero(~touched)
    places = np.searchsorted(hashes[kept], _values(found.rows, HASH))
    order = np.insert(kept, places, len(rows) + np.arange(len(found.rows)))
    return found._replace(rows=pa.concat_tables([rows, found.rows]).take(array(pa.int64(), order)))


def _sorted(rows: pa.Table, key: str, names: tuple[str, ...]) -> tuple[pa.Table, _Mask]:
    """``rows`` by hash, key and the columns ``names``, and for each but the last whether the next has the same key."""
    order = _order(rows, names)
    found = rows if (np.diff(order) == 1).all() else rows.take(array(pa.int64(), order))
    same_hash, same_key = _same(found, HASH), _same_keys(found, key)
    if (same_hash & ~same_key).any():  # two keys of one hash: their rows may be mixed
        columns = [(name, "ascending", "at_start") for name in (HASH, key, *names)]
        found = rows.take(pc.sort_indices(rows, sort_keys=columns)).combine_chunks()  # type: ignore[arg-type]  # the stubs are older
        same_key = _same_keys(found, key)
    return found, same_key


def _order(rows: pa.Table, names: tuple[str, ...]) -> NDArray[np.int64]:
    """The order of ``rows`` by hash, then by ``names``.

    Runs of rows that are sorted already are merged, and only rows of one hash are compared by the other columns.
    """
    hashes = _values(rows, HASH)
    order = np.argsort(hashes, kind="stable")
    hashes = hashes[order]
    same = hashes[1:] == hashes[:-1]
    if same.any():
        alike = np.flatnonzero(np.append(same, False) | np.append(False, same))
        chosen = order[alike]
        few = rows.select(names).take(array(pa.int64(), chosen)).combine_chunks()
        columns = [_values(few, name) for name in reversed(names)]
        order[alike] = chosen[np.lexsort([*columns, hashes[alike]])]
    return order


def _same(rows: pa.Table, name: str) -> _Mask:
    values = _values(rows, name)
    same: _Mask = values[1:] == values[:-1]
    return same


def _same_keys(rows: pa.Table, key: str) -> _Mask:
    """For each row but the last whether the next has the same key."""
    same = _same(rows, HASH)
    at = np.flatnonzero(same)
    if len(at):
        keys = rows.column(key)
        equal = pc.equal(keys.take(array(pa.int64(), at)), keys.take(array(pa.int64(), at + 1)))
        same[at] = numpy_values(equal)
    return same


def _values(rows: pa.Table, name: str) -> NDArray[Any]:
    """Numbers in the order of a column's values; a missing value comes before all others."""
    column = rows.column(name)
    if name == _TIME:
        present = numpy_values(column.is_valid())
        return np.where(present, numpy_values(column.cast(pa.int64())), np.iinfo(np.int64).min)
    if name not in _NUMBERS:
        keys = [(name, "ascending", "at_start")]
        return numpy_values(pc.rank(column, keys, tiebreaker="dense"))  # type: ignore[arg-type]  # the stubs are older
    return numpy_values(column)


def _of_all(rows: pa.Table, mask: _Mask) -> _Mask:
    """The ``mask`` of all ``rows`` but the last, and False for that."""
    return np.append(mask, False)[: len(rows)]


def chosen(rows: pa.Table, mask: NDArray[np.bool_]) -> pa.Table:
    """The ``rows`` for which ``mask`` is True; no copy if these are all."""
    return rows if mask.all() else rows.take(array(pa.int64(), np.flatnonzero(mask)))
