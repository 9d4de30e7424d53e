"""Batches of aborted transactions, which a reader at ``read_committed`` leaves out.

Source: Kafka's ``CompletedFetch`` (the consumer's side of KIP-98).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from tidemark.decode.batch_headers import Headers
from tidemark.kafka_log.batch import CONTROL, TRANSACTIONAL
from tidemark.kafka_log.transactions import AbortedTransaction


def aborted_mask(headers: Headers, aborted: Iterable[AbortedTransaction]) -> NDArray[np.bool_]:
    """True for each data batch of a transaction in ``aborted``, which may be in any order.

    ``aborted`` comes from the ``.txnindex`` of the segment and of those after it
    (:func:`tidemark.kafka_log.parse_txn_index`). A producer's transactions do not overlap, so a batch can belong only
    to the last one that starts at or before it.
    """
    data = headers["attributes"] & (TRANSACTIONAL | CONTROL) == TRANSACTIONAL
    mask = np.zeros(len(headers), np.bool_)
    unique = {(transaction.producer_id, transaction.first_offset, transaction.last_offset) for transaction in aborted}
    producer_ids, firsts, lasts = np.array(sorted(unique), np.int64).reshape(-1, 3).T
    producers, starts = np.unique(producer_ids, return_index=True)
    bounds = np.append(starts, len(producer_ids))
    candidates = np.flatnonzero(data & np.isin(headers["producer_id"], producers))
    order = candidates[np.argsort(headers["producer_id"][candidates], kind="stable")]
    sorted_ids = headers["producer_id"][order]
    for number, producer in enumerate(producers):
        batches = order[np.searchsorted(sorted_ids, producer) : np.searchsorted(sorted_ids, producer, "right")]
        own = slice(bounds[number], bounds[number + 1])
        offsets = headers["base_offset"][batches]
        places = np.searchsorted(firsts[own], offsets, "right") - 1
        mask[batches] = (places >= 0) & (offsets <= lasts[own][places])
    return mask
