"""The rules that mutants break, one line of the product each, and the tests that must see it."""

from __future__ import annotations

from typing import Final, NamedTuple

_AGENT: Final = "tests.uploader_agent.test_agent"
_ANSWERS: Final = "tests.uploader_agent.partitions.test_answers"
_CLASSES: Final = "tests.spark.convert.test_parts"
_COMPACTION: Final = "tests.tidemark.planning.test_compaction"
_DATES: Final = "tests.spark.run.test_dates"
_FINALITY: Final = "tests.tidemark.planning.test_date_finality"
_LEADERS: Final = "tests.uploader_agent.packs.test_leaders"
_LINEAGE: Final = "tests.tidemark.kafka_log.test_lineage"
_PACKER: Final = "tests.uploader_agent.packs.test_packer"
_PACKS: Final = "tests.tidemark.raw.test_packs"
_PARTS: Final = "tests.uploader_agent.packs.test_parts"
_PLANNING: Final = "tests.tidemark.raw.test_planned_ranges"
_PROOFS: Final = "tests.spark.retention.test_packs"
_PUBLISH: Final = "tests.spark.run.test_commit"
_RETENTION: Final = "tests.tidemark.planning.test_retention"
_SEALING: Final = "tests.uploader_agent.upload.test_sealing"
_STORE: Final = "tests.tidemark.store.test_store"
_TRANSACTIONS: Final = "tests.tidemark.kafka_log.test_transactions"
_WATERMARK: Final = "tests.uploader_agent.remote.test_watermark"


class Mutant(NamedTuple):
    """``replacement`` for the one place of ``text`` in ``file`` breaks ``rule``; some of ``tests`` must fail then."""

    rule: str
    file: str
    text: str
    replacement: str
    tests: tuple[str, ...]


CATALOG: Final = (
    # -- what may be sealed -------------------------------------------------------------------------------------------
    Mutant(
        "a rotated segment is sealed only below the high watermark",
        "uploader_agent/upload/eligibility.py",
        "segment.next_offset is not None and segment.next_offset <= high_watermark",
        "segment.next_offset is not None",
        (f"{_AGENT}::test_rotated_and_committed_segments_go_and_nothing_else",),
    ),
    Mutant(
        "a tail is sealed only if it is quiet",
        "uploader_agent/upload/eligibility.py",
        "segment.size and segment.modified <= quiet_before and",
        "segment.size and",
        (f"{_AGENT}::test_a_quiet_tail_is_sealed_and_what_follows_is_a_segment_of_its_own",),
    ),
    Mutant(
        "behind a .log without a manifest nothing is sealed",
        "uploader_agent/partitions/led_partition.py",
        "            if self.remote.has_bare_log(run.base_offset):\n                return\n",
        "",
        (f"{_SEALING}::test_bytes_that_a_dead_leader_left_without_a_manifest_are_adopted",),
    ),
    Mutant(
        "the bytes are those of the log from before the scan to the manifest",
        "uploader_agent/upload/segment_upload.py",
        "if log.has_shrunk() if self._work.is_tail else log.has_changed():",
        "if False:",
        (f"{_SEALING}::test_what_changes_while_it_is_read_is_not_sealed",),
    ),
    Mutant(
        "a deposed leader does not seal what a later leader wrote",
        "uploader_agent/partitions/partition_uploader.py",
        "if latest > self._led.leader_epoch and scanned.damage is None:",
        "if False:",
        (f"{_SEALING}::test_a_deposed_leader_does_not_seal_what_a_later_leader_wrote",),
    ),
    Mutant(
        "an active segment that is damaged is not sealed",
        "uploader_agent/upload/segment_upload.py",
        "if work.is_tail and scanned.damage:",
        "if False:",
        (f"{_AGENT}::test_an_active_segment_that_is_damaged_is_not_sealed",),
    ),
    Mutant(
        "a sound segment that stops short of the next one's base has lost its end",
        "uploader_agent/upload/validation.py",
        "if summary.next_offset == end or cleanup_policy",
        "if True or cleanup_policy",
        (f"{_AGENT}::test_what_was_compacted_once_is_not_corrupt",),
    ),
    Mutant(
        "a stored .log is adopted only under the manifest that describes it",
        "uploader_agent/upload/segment_upload.py",
        'if stored.manifest.objects[name.file("log")].etag != log.etag:',
        "if False:",
        (f"{_SEALING}::test_what_is_not_the_bytes_of_its_manifest_is_not_adopted",),
    ),
    # -- lineage ------------------------------------------------------------------------------------------------------
    Mutant(
        "an epoch ends where the next one starts",
        "include/tidemark/kafka_log/lineage.py",
        "return any(one == epoch for one, _ in self.entries) and (end is None or base_offset < end)",
        "return any(one == epoch for one, _ in self.entries)",
        (f"{_PACKER}::test_a_batch_of_an_epoch_that_has_ended_before_it_is_not_packed",),
    ),
    Mutant(
        "epochs of a dead branch are no history",
        "include/tidemark/kafka_log/lineage.py",
        "if entry[1] < start and entry[0] <= epoch]",
        "if entry[1] < start]",
        (f"{_LINEAGE}::test_history_goes_on_below",),
    ),
    Mutant(
        "two logs part where the first of them ends their last common epoch",
        "include/tidemark/kafka_log/lineage.py",
        "at = max(at, min(ends)) if",
        "at = max(at, max(ends)) if",
        (f"{_LINEAGE}::test_an_unclean_election_and_back",),
    ),
    Mutant(
        "nothing is claimed before the log shows the leader's epoch",
        "uploader_agent/partitions/partition_uploader.py",
        "if lineage.entries and lineage.entries[-1][0] < self._led.leader_epoch:",
        "if False:",
        (f"{_SEALING}::test_a_leader_claims_nothing_before_its_log_shows_its_epoch",),
    ),
    # -- offset.wm ----------------------------------------------------------------------------------------------------
    Mutant(
        "offset.wm of a later leader fences",
        "uploader_agent/remote/watermark.py",
        "stored.watermark.topic_id == topic_id and stored.watermark.leader_epoch > leader_epoch:",
        "False:",
        (f"{_AGENT}::test_a_later_leader_fences",),
    ),
    Mutant(
        "offset.wm never moves back under one leader epoch",
        "include/tidemark/formats/watermark.py",
        "return other is None or other.topic_id != self.topic_id or self.order >= other.order",
        "return True",
        (f"{_WATERMARK}::test_conditional_writes",),
    ),
    Mutant(
        "offset.wm is replaced only if it is the one that was read",
        "uploader_agent/remote/watermark.py",
        "keys.watermark, body, crc32c=crc32c(body), if_match=etag_before, if_none_match=etag_before is None",
        "keys.watermark, body, crc32c=crc32c(body)",
        (f"{_WATERMARK}::test_conditional_writes",),
    ),
    Mutant(
        "offset.wm stops at a gap that nobody has acknowledged",
        "uploader_agent/remote/watermark.py",
        "contiguous = (view.present | passed).contiguous_from(view.start)",
        "contiguous = max((part.end for part in view.present | passed), default=view.start)",
        (f"{_WATERMARK}::test_contiguous_end",),
    ),
    Mutant(
        "a leadership leaves offset.wm only when the end of its epoch is sealed",
        "uploader_agent/remote/watermark.py",
        "return bool(ends) and min(ends) <= sealed_end",
        "return bool(ends)",
        (f"{_PARTS}::test_offset_wm_lists_who_may_have_packed_until_the_end_of_the_epoch_is_sealed",),
    ),
    Mutant(
        "a gap keeps the reason and the time that it was found with",
        "uploader_agent/remote/gaps.py",
        "found += [_gap(one, gap.detected_at) for one in judged]",
        "found += [_gap(one, now) for one in judged]",
        (f"{_WATERMARK}::test_a_gap_s_reason_and_time_are_decided_once",),
    ),
    Mutant(
        "before the claim no gap is recorded, since the former leader may have packed it",
        "uploader_agent/partitions/partition_uploader.py",
        "return self.claimed or not self.tails",
        "return True",
        (f"{_LEADERS}::test_what_a_former_leader_packs_until_the_claim_is_no_gap",),
    ),
    # -- packs and heads ----------------------------------------------------------------------------------------------
    Mutant(
        "nothing above the high watermark is packed",
        "uploader_agent/packs/reading.py",
        "if header.next_offset > end:",
        "if False:",
        (f"{_PACKER}::test_nothing_above_the_high_watermark_is_packed",),
    ),
    Mutant(
        "a range does not begin at a hole",
        "uploader_agent/packs/reading.py",
        "hole = header.base_offset > wanted.start and header.magic == 2 and not wanted.compacted",
        "hole = False",
        (f"{_PACKER}::test_a_range_does_not_begin_at_a_hole",),
    ),
    Mutant(
        "transactions open before the first range come from the local log",
        "uploader_agent/packs/reading.py",
        "opened = open_before(files, _nothing_at(segment, wanted.start, place), place.segment, None)",
        "opened = ()",
        (f"{_PACKER}::test_what_is_open_at_the_start_of_the_first_range_is_known_from_the_local_log",),
    ),
    Mutant(
        "a range is discarded if the lineage changes while it is read",
        "uploader_agent/packs/reading.py",
        "if files.lineage() != lineage:",
        "if False:",
        (f"{_PACKER}::test_a_lineage_that_changes_during_the_read_discards_it",),
    ),
    Mutant(
        "each batch of a range is on the lineage",
        "uploader_agent/packs/reading.py",
        "if header.leader_epoch > wanted.leader_epoch or not lineage.is_live(header.base_offset, header.leader_epoch):",
        "if False:",
        (f"{_PACKER}::test_a_batch_of_an_epoch_that_has_ended_before_it_is_not_packed",),
    ),
    Mutant(
        "a leader packs only once offset.wm lists it",
        "uploader_agent/partitions/partition_uploader.py",
        "self.claimed and written is not None and self._own_pair in written.tails",
        "self.claimed",
        (f"{_PACKER}::test_with_as_many_tails_as_there_may_be_it_is_sealed_first",),
    ),
    Mutant(
        "an entry leaves the head only below the next offset of offset.wm",
        "uploader_agent/packing/packer.py",
        "tail_end <= partition.remote.next_offset",
        "tail_end <= partition.remote.end",
        (f"{_PACKER}::test_an_entry_stays_while_a_hole_is_below_the_seals",),
    ),
    Mutant(
        "an entry leaves the head only once offset.wm says what is sealed",
        "uploader_agent/packing/packer.py",
        "tail_end <= partition.remote.next_offset",
        "tail_end <= partition.remote.sealed_end",
        (f"{_PACKER}::test_an_entry_stays_until_offset_wm_says_what_is_sealed",),
    ),
    Mutant(
        "an entry of a former leadership stays until its epoch is sealed",
        "uploader_agent/packs/abandoned.py",
        "if (entry.epoch, self._broker) not in found.watermark.tails:",
        "if True:",
        (f"{_LEADERS}::test_an_entry_of_a_former_leadership_stays_until_its_epoch_is_sealed",),
    ),
    Mutant(
        "a tail counts as far as it is on the lineage",
        "include/tidemark/raw/packs.py",
        "return entry.tail_end if at is None else at",
        "return entry.tail_end",
        (
            f"{_PACKS}::test_a_tail_ends_where_it_leaves_the_lineage",
            f"{_LEADERS}::test_a_tail_counts_as_far_as_it_is_on_the_lineage",
        ),
    ),
    Mutant(
        "a range of a chain ends where the next one begins",
        "include/tidemark/raw/packs.py",
        "elif one.next != end:",
        "elif False:",
        (f"{_PACKS}::test_a_range_that_does_not_belong_to_the_chain_is_named",),
    ),
    Mutant(
        "a chain of another topic id is refused",
        "include/tidemark/raw/packs.py",
        "(one.topic, one.topic_id, one.partition) != (entry.topic, entry.topic_id, entry.partition)",
        "(one.topic, one.partition) != (entry.topic, entry.partition)",
        (f"{_PACKS}::test_a_range_that_does_not_belong_to_the_chain_is_named",),
    ),
    # -- seals of what is packed --------------------------------------------------------------------------------------
    Mutant(
        "a seal lists a range only if it has its bytes",
        "uploader_agent/upload/packed_parts.py",
        "if self._checksum(one, log) == one.crc32c)",
        "if True)",
        (f"{_PARTS}::test_a_seal_lists_the_ranges_that_lie_in_it_with_the_same_bytes",),
    ),
    Mutant(
        "what compaction has removed since it was packed is sealed from the packs",
        "uploader_agent/upload/segment_upload.py",
        "and (more := parts.differing(self._run.log))",
        "and (more := [])",
        (f"{_LEADERS}::test_what_compaction_has_removed_since_is_sealed_from_the_packs",),
    ),
    Mutant(
        "packs are looked into before offsets are recorded as lost",
        "uploader_agent/partitions/partition_uploader.py",
        "        self._seal_lost(entries, lineage)\n",
        "",
        (f"{_LEADERS}::test_bytes_that_the_log_no_longer_has_come_from_the_packs_and_not_into_a_gap",),
    ),
    Mutant(
        "a run from packs has only what is on the lineage",
        "uploader_agent/packs/packed_run.py",
        "return live_part(one, lineage).contiguous_from(at)",
        "return one.next",
        (f"{_LEADERS}::test_what_an_election_has_cut_off_is_not_sealed_from_packs",),
    ),
    Mutant(
        "it is never assumed that no transaction is open where a run from packs begins",
        "uploader_agent/packs/packed_run.py",
        "    if at == 0:\n        return ()\n    known = open_at(at)",
        "    return ()\n    known = open_at(at)",
        (f"{_LEADERS}::test_what_is_open_where_a_seal_from_packs_begins_is_known_from_the_seal_before",),
    ),
    # -- transactions -------------------------------------------------------------------------------------------------
    Mutant(
        "a marker closes its producer's transaction alone",
        "include/tidemark/kafka_log/transactions.py",
        "self._open.pop(header.producer_id, None)",
        "self._open.clear()",
        (f"{_TRANSACTIONS}::test_markers_close_what_data_opened",),
    ),
    Mutant(
        "the first open transaction holds back",
        "include/tidemark/raw/transactions.py",
        "first = min(one.first_offset for one in pending)",
        "first = max(one.first_offset for one in pending)",
        (f"{_PLANNING}::test_the_first_open_transaction_holds_back",),
    ),
    Mutant(
        "what a dead branch lists as open decides nothing",
        "include/tidemark/raw/segments.py",
        "return live_until(segment, lineage, offset) == segment.end",
        "return True",
        (f"{_PLANNING}::test_a_dead_branch_decides_no_transaction",),
    ),
    # -- planning -----------------------------------------------------------------------------------------------------
    Mutant(
        "a plan stops before a hole",
        "include/tidemark/planning/partition_plan.py",
        "limit = hole.start if hole else max(start, goal)",
        "limit = max(start, goal)",
        (f"{_PLANNING}::test_a_gap_that_is_known_keeps_the_time_of_its_detection",),
    ),
    Mutant(
        "a partition goes back to where its log left the landed branch",
        "include/tidemark/planning/partition_plan.py",
        "if left is not None and known.cut is None:",
        "if False:",
        (f"{_PLANNING}::test_an_unclean_election_below_the_ledger_holds",),
    ),
    Mutant(
        "what a task found missing holds until another copy comes",
        "include/tidemark/planning/partition_plan.py",
        "if (found := _found_before(known, pieces)) is not None:",
        "if (found := _found_before(known, pieces)) and False:",
        (f"{_PLANNING}::test_what_a_task_found_holds_until_another_copy_comes",),
    ),
    Mutant(
        "a segment counts as far as it is on the lineage",
        "include/tidemark/raw/segments.py",
        "return segment.end if at is None else at",
        "return segment.end",
        (f"{_PLANNING}::test_a_segment_speaks_only_as_far_as_its_lineage_agrees",),
    ),
    Mutant(
        "a missing batch stops the conversion unless compaction took it",
        "spark/tidemark_spark/convert/classify.py",
        "    elif len(holes):\n",
        "    elif False:\n",
        (f"{_CLASSES}::test_a_hole_stops_unless_the_segment_is_compacted",),
    ),
    Mutant(
        "a batch that the lineage does not have is not converted",
        "spark/tidemark_spark/convert/classify.py",
        'live |= self.epochs[np.searchsorted(self.starts, base, "right") - 1] == epoch',
        "live |= True",
        (f"{_CLASSES}::test_batches_off_the_lineage_do_not_count",),
    ),
    # -- dates --------------------------------------------------------------------------------------------------------
    Mutant(
        "a date waits for an entry that was observed after it was due",
        "include/tidemark/planning/date_finality.py",
        "if entry.observed_at < due:",
        "if False:",
        (f"{_FINALITY}::test_a_date_waits_for_a_partition_that_is_not_done",),
    ),
    Mutant(
        "a date is not final while an active segment may have records of it",
        "include/tidemark/planning/date_finality.py",
        "return first is None or first >= round(past.timestamp() * 1000)",
        "return True",
        (f"{_FINALITY}::test_a_date_waits_for_a_partition_that_is_not_done",),
    ),
    Mutant(
        "a date waits for a partition that no agent reports",
        "include/tidemark/planning/date_finality.py",
        "        if entry is None:\n            partitions += 1\n",
        "        if entry is None:\n            pass\n",
        (f"{_FINALITY}::test_a_partition_that_no_agent_tells_of_is_waited_for_until_the_date_is_overdue",),
    ),
    Mutant(
        "rows that come after a date was closed reopen it",
        "spark/tidemark_spark/run/commit.py",
        'if known.state != "open":',
        "if False:",
        (f"{_DATES}::test_late_rows_are_landed_counted_and_reopen_their_date_until_it_closes_again",),
    ),
    # -- publish ------------------------------------------------------------------------------------------------------
    Mutant(
        "a plan for offsets that have landed is stale",
        "spark/tidemark_spark/run/commit.py",
        "if state.next_offset != part.landed_next or part.deleted_before_upload or part.expired:",
        "if False:",
        (f"{_PUBLISH}::test_a_plan_for_offsets_that_have_landed_is_stale",),
    ),
    Mutant(
        "a run whose file is gone is not committed",
        "spark/tidemark_spark/run/commit.py",
        "            _check_files(table, change.files)\n",
        "",
        ("tests.spark.run.test_runs::test_a_run_whose_files_are_gone_does_not_commit",),
    ),
    Mutant(
        "a run that replaces what another has replaced is stale",
        "spark/tidemark_spark/run/commit.py",
        "    gone = sorted(set(plan.removes) - {one.path for one in live})\n",
        "    gone = []\n",
        ("tests.spark.compaction.test_beside_others::test_a_rebuild_that_it_overtakes_is_stale",),
    ),
    Mutant(
        "a table that somebody else has changed is not written to",
        "spark/tidemark_spark/run/commit.py",
        "        check_untampered(table, ledger, live)\n",
        "        pass\n",
        ("tests.spark.run.test_runs::test_a_table_changed_while_a_run_converts_is_left_alone",),
    ),
    # -- retention ----------------------------------------------------------------------------------------------------
    Mutant(
        "raw that the evidence does not account for stays",
        "include/tidemark/planning/retention.py",
        "if not self.classed.covers(start, end):",
        "if False:",
        (f"{_RETENTION}::test_why_a_segment_stays",),
    ),
    Mutant(
        "raw that has not landed stays",
        "include/tidemark/planning/retention.py",
        "if end > min(self.state.next_offset, self.watermark.next_offset):",
        "if False:",
        (f"{_RETENTION}::test_why_a_segment_stays",),
    ),
    Mutant(
        "raw stays while its partition has an open gap",
        "include/tidemark/planning/retention.py",
        "        if self.watermark.gaps:\n",
        "        if False:\n",
        ("tests.spark.retention.test_raw::test_a_partition_stays_as_a_whole",),
    ),
    Mutant(
        "a pack stays until a seal of other bytes is ruled out",
        "include/tidemark/planning/pack_proof.py",
        "part = one.first, one.next, one.crc32c\n",
        'part = one.first, one.next, ""\n',
        (f"{_PROOFS}::test_packs_go_when_seals_list_all_their_ranges",),
    ),
    Mutant(
        "a pack stays while a run may read it that was planned before the seal",
        "include/tidemark/planning/pack_proof.py",
        "return None if self._settled(name) else",
        "return None if True else",
        (f"{_PROOFS}::test_runs_that_may_read_a_pack_are_over_when_it_goes",),
    ),
    Mutant(
        "a pack goes only if all its batches are in seals",
        "include/tidemark/planning/pack_proof.py",
        "return min(wanted, default=None)",
        "return None",
        (f"{_PROOFS}::test_a_batch_with_other_bytes_is_another",),
    ),
    Mutant(
        "files of two partitions are never merged",
        "include/tidemark/planning/compaction.py",
        "key=lambda one: one[:4]):",
        "key=lambda one: one[:3]):",
        (f"{_COMPACTION}::test_files_of_other_dates_partitions_and_incarnations_are_never_merged",),
    ),
    # -- the store ----------------------------------------------------------------------------------------------------
    Mutant(
        "what is put once is never replaced by other content",
        "include/tidemark/store/base.py",
        "if there.body != body:",
        "if False:",
        (f"{_STORE}::test_put_once_is_safe_to_repeat[local]",),
    ),
    Mutant(
        "an object is created only where none is",
        "uploader_agent/remote/objects.py",
        "etag = store.put(key, ours.content.body(), size=ours.content.size, crc32c=ours.crc32c, if_none_match=True)",
        "etag = store.put(key, ours.content.body(), size=ours.content.size, crc32c=ours.crc32c)",
        (f"{_SEALING}::test_bytes_of_a_branch_that_an_election_cut_off_stay",),
    ),
    Mutant(
        "an answer that is older than the known state is dropped",
        "uploader_agent/partitions/led_partition.py",
        "if question <= self._answered:",
        "if False:",
        (f"{_ANSWERS}::test_late_and_repeated_answers_are_dropped",),
    ),
)
"""What some test must see."""
