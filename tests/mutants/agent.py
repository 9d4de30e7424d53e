"""Rules of the agent: what may be sealed, packed, listed in heads and in ``offset.wm``."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_AGENT: Final = "tests.uploader_agent.test_agent"
_ANSWERS: Final = "tests.uploader_agent.partitions.test_answers"
_DIRS: Final = "tests.uploader_agent.broker.test_broker_dirs"
_DISKS: Final = "tests.uploader_agent.test_disk_faults"
_FAILING: Final = "tests.uploader_agent.hold.test_failing_disk"
_HISTORY: Final = "tests.uploader_agent.partitions.test_other_history"
_LATE: Final = "tests.uploader_agent.packs.test_late_heads"
_LEADERSHIP: Final = "tests.uploader_agent.partitions.test_leadership"
_CUT: Final = "tests.uploader_agent.packs.test_cut_within"
_DAMAGED: Final = "tests.uploader_agent.packs.test_damaged_heads"
_LEADERS: Final = "tests.uploader_agent.packs.test_leaders"
_NAME: Final = "tests.uploader_agent.stored.test_cluster_name"
_PACKER: Final = "tests.uploader_agent.packs.test_packer"
_PARTS: Final = "tests.uploader_agent.packs.test_parts"
_REMOTE_TIER: Final = "tests.uploader_agent.repair.test_remote_tier"
_SEALING: Final = "tests.uploader_agent.upload.test_sealing"
_TIER_FILLER: Final = "tests.uploader_agent.test_remote_tier"
_STORED: Final = "tests.uploader_agent.stored.test_stored_log"
_WATERMARK: Final = "tests.uploader_agent.stored.test_watermark"

AGENT: Final = (
    # -- what may be sealed ------------------------------------------------------------------------------------------
    Mutant(
        "a rotated segment is sealed only below the high watermark",
        "uploader_agent/upload/local_run.py",
        "segment.next_offset is not None and segment.next_offset <= high_watermark",
        "segment.next_offset is not None",
        (f"{_AGENT}::test_rotated_and_committed_segments_go_and_nothing_else",),
    ),
    Mutant(
        "a tail is sealed only if it is quiet",
        "uploader_agent/upload/local_run.py",
        "segment.size and segment.modified <= quiet_before and",
        "segment.size and",
        (f"{_AGENT}::test_a_quiet_tail_is_sealed_and_what_follows_is_a_segment_of_its_own",),
    ),
    Mutant(
        "a log with another batch than the last stored one is another history",
        "uploader_agent/partitions/partition_uploader.py",
        "return short or any(last is not None and local_difference(files, last) is not None for last in lasts)",
        "return short",
        (f"{_HISTORY}::test_a_restored_disk_stops_the_partition_and_says_where_it_parts",),
    ),
    Mutant(
        "a log that ends below what is stored is another history",
        "uploader_agent/partitions/partition_uploader.py",
        "short = self._context.source.has_whole_log and bounds[1] < end",
        "short = False",
        (f"{_HISTORY}::test_a_restored_disk_stops_the_partition_and_says_where_it_parts",),
    ),
    Mutant(
        "a trusted index is checked against the disk",
        "uploader_agent/partitions/led_partition.py",
        "            self.uploader.doubt()\n            self.packed.trust",
        "            self.packed.trust",
        (f"{_HISTORY}::test_a_restored_disk_stops_the_partition_and_says_where_it_parts",),
    ),
    Mutant(
        "packs of another history are compared before the log is sealed over them",
        "uploader_agent/upload/local_run.py",
        "return [part for part in inside if not self._is_equal(part, log)]",
        "return []",
        (f"{_HISTORY}::test_a_packed_range_that_another_log_seals_is_told",),
    ),
    Mutant(
        "segments of another history are held",
        "uploader_agent/partitions/led_partition.py",
        "final = final.clip(0, parting.at)  # above, the store has another history",
        "pass",
        (f"{_HISTORY}::test_segments_of_the_other_history_are_held",),
    ),
    Mutant(
        "a log that leaves the stored one within a batch is compared with it",
        "uploader_agent/partitions/partition_uploader.py",
        "self.parting is not None or log.is_split or",
        "self.parting is not None or",
        (f"{_HISTORY}::test_an_epoch_that_was_given_again_and_has_ended_is_told",),
    ),
    Mutant(
        "a log that leaves a tail is compared with it",
        "uploader_agent/packing/packer.py",
        "if cut is None or",
        "if True or cut is None or",
        (f"{_HISTORY}::test_an_epoch_that_was_given_again_and_has_ended_is_told_of_packs_too",),
    ),
    Mutant(
        "a log that leaves a segment before it leaves the stored log is compared with it",
        "uploader_agent/stored/stored_log.py",
        "if any(_is_left_early",
        "if False and any(_is_left_early",
        (f"{_HISTORY}::test_an_epoch_that_was_given_again_from_an_earlier_offset_on_is_told",),
    ),
    Mutant(
        "what offset.wm has on a log's lineage is compared with it, of whichever epoch",
        "uploader_agent/partitions/partition_uploader.py",
        "end=log.end, shared=log.shared, since",
        "end=log.end, since",
        (f"{_HISTORY}::test_an_epoch_that_was_given_again_from_an_earlier_offset_on_is_told",),
    ),
    Mutant(
        "what a tail has on a log's lineage is compared with it, of whichever epoch",
        "uploader_agent/packs/tail.py",
        "[*shared, *tails]",
        "[*shared]",
        (f"{_HISTORY}::test_an_epoch_that_was_given_again_from_an_earlier_offset_on_is_told_of_packs_too",),
    ),
    Mutant(
        "an epoch between two of offset.wm is of a branch that was cut off",
        "uploader_agent/stored/stored_log.py",
        "if at < start and epoch <= first_epoch and (epoch > newest or epoch in known.epochs)",
        "if at < start",
        (f"{_STORED}::test_a_branch_that_an_unclean_election_has_cut_off_does_not_count",),
    ),
    Mutant(
        "offset.wm tells the epochs of a log without a manifest up to its last one",
        "uploader_agent/stored/lineage.py",
        "start = max([self.stored_end, *(start for _, start in self.stored.entries[-1:])])",
        "start = self.stored_end",
        (f"{_STORED}::test_a_log_without_a_manifest_is_of_the_branch_that_its_batches_are_of",),
    ),
    Mutant(
        "behind a .log without a manifest nothing is sealed",
        "uploader_agent/partitions/jobs.py",
        "        if stored.has_bare_log(run.base_offset):\n            return\n",
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
        "uploader_agent/upload/local_run.py",
        "if summary.next_offset == end or cleanup.may_compact:",
        "if True:",
        (f"{_AGENT}::test_what_was_compacted_once_is_not_corrupt",),
    ),
    Mutant(
        "a stored .log is adopted only under the manifest that describes it",
        "uploader_agent/upload/segment_upload.py",
        "if stored.manifest.log is None or stored.manifest.log.etag != log.etag:",
        "if False:",
        (f"{_SEALING}::test_what_is_not_the_bytes_of_its_manifest_is_not_adopted",),
    ),
    # -- disks that fail ---------------------------------------------------------------------------------------------
    Mutant(
        "a segment that cannot be listed is not taken for one that is gone",
        "uploader_agent/disk/log_dirs.py",
        "                logs[parsed[0]] = entry.stat(follow_symlinks=False)\n",
        "                try:\n                    logs[parsed[0]] = entry.stat(follow_symlinks=False)\n"
        "                except OSError:\n                    continue\n",
        (f"{_DISKS}::test_a_segment_that_cannot_be_listed_is_not_a_gap",),
    ),
    Mutant(
        "a log directory that cannot be read at the start stays known",
        "uploader_agent/broker/properties.py",
        "        log_dirs=log_dirs,\n",
        "        log_dirs=tuple(path for path in log_dirs if (path / META).exists()),\n",
        ("tests.uploader_agent.broker.test_properties::test_a_failed_disk_stays_known",),
    ),
    Mutant(
        "an empty place where a disk was mounted is not taken for a log directory",
        "uploader_agent/broker/properties.py",
        "            self._check_identity(log_dir)\n",
        "            self._identity\n",
        (f"{_DIRS}::test_what_has_no_meta_properties_of_the_broker_is_not_read",),
    ),
    Mutant(
        "a log directory that the file no longer names is followed while it answers",
        "uploader_agent/broker/properties.py",
        "        followed = (*left, *named)\n",
        "        followed = named\n",
        (f"{_DIRS}::test_what_the_file_no_longer_names_is_followed_while_it_answers",),
    ),
    Mutant(
        "a leader without a directory is told",
        "uploader_agent/partitions/leadership.py",
        "if leader.broker == self._context.broker and tp not in self.replicas and self._accepts_topic(tp.topic)",
        "if False",
        (f"{_LEADERSHIP}::test_who_leads_without_a_directory_is_told_by_an_answer_about_everything",),
    ),
    Mutant(
        "what cannot be read of the disks makes the agent unhealthy",
        "uploader_agent/observability/health.py",
        "if unread := self._disk_trouble():",
        "if (unread := self._disk_trouble()) and False:",
        (f"{_DISKS}::test_a_partition_counts_only_after_some_time",),
    ),
    Mutant(
        "a log that cannot be read was not seen to stay as it was",
        "uploader_agent/partitions/led_partition.py",
        "return observation.asked_at if self.disk.error else observation.held_at(confirmed_at, self.disk.tail)",
        "return observation.held_at(confirmed_at, self.disk.tail)",
        (f"{_DISKS}::test_a_log_that_cannot_be_read_was_not_seen_to_stay_as_it_was",),
    ),
    Mutant(
        "held links that cannot be read are not removed",
        "uploader_agent/hold/held_segments.py",
        "except (FileNotFoundError, FormatError) as error:",
        "except (OSError, FormatError) as error:",
        (f"{_FAILING}::test_links_that_cannot_be_read_at_the_start_stay_and_are_read_later",),
    ),
    Mutant(
        "deleted files that could not be read are looked at again",
        "uploader_agent/hold/hold.py",
        "            bases = set()  # the next look opens them again\n",
        "",
        (f"{_FAILING}::test_a_look_that_fails_leaves_nothing_undone",),
    ),
    # -- lineage -----------------------------------------------------------------------------------------------------
    Mutant(
        "nothing is claimed before the log shows the leader's epoch",
        "uploader_agent/partitions/partition_uploader.py",
        "if newest != own:",
        "if False:",
        (f"{_SEALING}::test_a_leader_claims_nothing_before_its_log_shows_its_epoch",),
    ),
    # -- offset.wm ---------------------------------------------------------------------------------------------------
    Mutant(
        "offset.wm of a later leader fences",
        "uploader_agent/stored/watermark.py",
        "stored.watermark.topic_id == topic_id and stored.watermark.leader_epoch > leader_epoch:",
        "False:",
        (f"{_AGENT}::test_a_later_leader_fences",),
    ),
    Mutant(
        "offset.wm is replaced only if it is the one that was read",
        "uploader_agent/stored/watermark.py",
        "keys.watermark, body, crc32c=crc32c(body), if_match=etag_before, if_none_match=etag_before is None",
        "keys.watermark, body, crc32c=crc32c(body)",
        (f"{_WATERMARK}::test_conditional_writes",),
    ),
    Mutant(
        "line 1 of offset.wm names a segment below the next offset",
        "uploader_agent/stored/watermark.py",
        "(base for base in bases if base < next_offset)",
        "(base for base in bases)",
        (f"{_WATERMARK}::test_line_1_is_the_last_segment_below_the_hole",),
    ),
    Mutant(
        "offset.wm stops at a gap that nobody has acknowledged",
        "uploader_agent/stored/watermark.py",
        "contiguous = (present | Intervals.of(acknowledged_gaps)).contiguous_from(start)",
        "contiguous = max((part.end for part in present), default=start)",
        (f"{_WATERMARK}::test_contiguous_end",),
    ),
    Mutant(
        "a leadership leaves offset.wm only when the end of its epoch is sealed",
        "uploader_agent/stored/watermark.py",
        "return bool(ends) and min(ends) <= sealed_end",
        "return bool(ends)",
        (f"{_PARTS}::test_offset_wm_lists_who_may_have_packed_until_the_end_of_the_epoch_is_sealed",),
    ),
    Mutant(
        "a gap keeps the reason and the time that it was found with",
        "uploader_agent/repair/gaps.py",
        "gaps += [_gap(piece, gap.detected_at) for piece in judged]",
        "gaps += [_gap(piece, now) for piece in judged]",
        (f"{_WATERMARK}::test_a_gap_s_reason_and_time_are_decided_once",),
    ),
    Mutant(
        "what a disk lost before Kafka had moved it to its remote tier is lost",
        "uploader_agent/repair/gaps.py",
        "start if end is None else min(start, end)",
        "start",
        (f"{_REMOTE_TIER}::test_a_new_hole",),
    ),
    Mutant(
        "what retention deletes from Kafka's remote tier is lost then",
        "uploader_agent/repair/gaps.py",
        "(evidence.deleted if gap.in_remote_tier else Intervals())",
        "Intervals()",
        (f"{_REMOTE_TIER}::test_what_is_there_stays_there_until_the_log_start_has_passed_it",),
    ),
    Mutant(
        "a partition begins in the store where its log does, if the remote tier has that",
        "uploader_agent/partitions/partition_uploader.py",
        "self._remote.begin_at(min(log.start, start))",
        "self._remote.begin_at(log.start)",
        (f"{_TIER_FILLER}::test_a_partition_begins_where_its_log_does",),
    ),
    Mutant(
        "the first offset.wm waits for the log's start",
        "uploader_agent/partitions/partition_uploader.py",
        "return offsets is None or offsets.log_start_offset is None",
        "return False",
        (f"{_TIER_FILLER}::test_nothing_is_written_before_the_broker_has_said_where_the_log_begins",),
    ),
    Mutant(
        "what is fetched from the remote tier ends where the gap does",
        "uploader_agent/remote_tier.py",
        "spool.follow(spool.lineage, gap.end)",
        "pass",
        (f"{_TIER_FILLER}::test_random_logs",),
    ),
    Mutant(
        "a segment from the remote tier begins with the transactions that are open there",
        "uploader_agent/remote_tier.py",
        "StoredEnd(gap.start, opened=transactions_open_at(partition, gap.start, lineage) or ())",
        "StoredEnd(gap.start)",
        (f"{_TIER_FILLER}::test_a_partition_begins_where_its_log_does",),
    ),
    Mutant(
        "before the claim no gap is recorded, since the former leader may have packed it",
        "uploader_agent/partitions/partition_uploader.py",
        "return self.claimed or not self.tails",
        "return True",
        (f"{_LEADERS}::test_what_a_former_leader_packs_until_the_claim_is_no_gap",),
    ),
    # -- packs and heads ---------------------------------------------------------------------------------------------
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
        "hole = header.base_offset > start and header.magic == 2 and not wanted.compacted",
        "hole = False",
        (f"{_PACKER}::test_a_range_does_not_begin_at_a_hole",),
    ),
    Mutant(
        "transactions open before the first range come from the local log",
        "uploader_agent/packs/reading.py",
        "opened = open_before(files, _nothing_at(segment, wanted.beginning.start, place), place.segment, None)",
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
        "no range has batches below the first epoch that the log knows",
        "uploader_agent/packs/reading.py",
        "if header.leader_epoch >= 0 and lineage.epoch_at(header.base_offset) is None:",
        "if False:",
        (f"{_PACKER}::test_batches_below_the_first_epoch_are_sealed_and_those_behind_are_packed",),
    ),
    Mutant(
        "each batch of a range is on the lineage",
        "uploader_agent/packs/reading.py",
        "if header.leader_epoch > wanted.leader_epoch or not lineage.is_live(header.base_offset, header.leader_epoch):",
        "if False:",
        (f"{_PACKER}::test_a_batch_of_an_epoch_that_has_ended_before_it_is_not_packed",),
    ),
    Mutant(
        "a leader claims before it seals or packs",
        "uploader_agent/partitions/jobs.py",
        "    if not standing.is_claimed:\n        return Plan([SURVEY])\n",
        "",
        (f"{_LEADERS}::test_a_leader_that_cannot_claim_knows_that_nothing_is_packed",),
    ),
    Mutant(
        "a head is replaced only if it is the one that was read",
        "uploader_agent/packs/broker_head.py",
        "crc32c=crc32c(body), if_match=self._etag, if_none_match=self._etag is None)",
        "crc32c=crc32c(body))",
        (f"{_PACKER}::test_a_head_that_another_process_wrote_is_read_again",),
    ),
    Mutant(
        "a leader packs only once offset.wm lists it",
        "uploader_agent/partitions/partition_uploader.py",
        "self._is_claim(written) and written is not None and self._own_pair in written.tails",
        "self._is_claim(written)",
        (f"{_PACKER}::test_with_as_many_tails_as_there_may_be_it_is_sealed_first",),
    ),
    Mutant(
        "a tick names nothing of a partition that is left meanwhile",
        "uploader_agent/packing/packer.py",
        "if self._is_led(tick.partition) and tick.partition.uploader.is_trusted]",
        "if tick.partition.uploader.is_trusted]",
        (f"{_LEADERS}::test_a_tick_names_nothing_of_a_partition_that_is_left_meanwhile",),
    ),
    Mutant(
        "an entry leaves the head only below the next offset of offset.wm",
        "uploader_agent/packing/packer.py",
        "tail_end <= partition.remote.log.next_offset",
        "tail_end <= partition.remote.log.end",
        (f"{_PACKER}::test_an_entry_stays_while_a_hole_is_below_the_seals",),
    ),
    Mutant(
        "an entry leaves the head only once offset.wm says what is sealed",
        "uploader_agent/packing/packer.py",
        "tail_end <= partition.remote.log.next_offset",
        "tail_end <= partition.remote.log.sealed_end",
        (f"{_PACKER}::test_an_entry_stays_until_offset_wm_says_what_is_sealed",),
    ),
    Mutant(
        "an entry of a former leadership stays until its epoch is sealed",
        "uploader_agent/packs/recovery.py",
        "if replaced or (entry.epoch, self._broker) not in stored.watermark.tails:",
        "if True:",
        (f"{_LEADERS}::test_an_entry_of_a_former_leadership_stays_until_its_epoch_is_sealed",),
    ),
    Mutant(
        "what only a recovered head names of a deleted topic is told by offset.wm",
        "uploader_agent/packs/recovery.py",
        "or tail.publish(self._runtime)",
        "or True",
        (f"{_DAMAGED}::test_what_only_a_recovered_head_names_of_a_deleted_topic_is_told_by_offset_wm",),
    ),
    # -- seals of what is packed -------------------------------------------------------------------------------------
    Mutant(
        "a seal lists a range only if it has its bytes",
        "uploader_agent/upload/local_run.py",
        "return tuple(part for part in self._near if self._is_equal(part, log))",
        "return tuple(self._near)",
        (f"{_PARTS}::test_a_seal_lists_the_ranges_that_lie_in_it_with_the_same_bytes",),
    ),
    Mutant(
        "what compaction has removed since it was packed is sealed from the packs",
        "uploader_agent/upload/segment_upload.py",
        "if self._sealer.compare_packs and not scanned.damage:",
        "if False:",
        (f"{_LEADERS}::test_what_compaction_has_removed_since_is_sealed_from_the_packs",),
    ),
    Mutant(
        "heads of former leaders are read again before a compacted log is sealed",
        "uploader_agent/partitions/partition_uploader.py",
        "if tail.joined is None or cleanup.may_compact else",
        "if tail.joined is None else",
        (f"{_LATE}::test_what_a_deposed_leader_packs_after_its_head_was_read_is_sealed",),
    ),
    Mutant(
        "a stored .log that lacks what packs hold is not adopted",
        "uploader_agent/upload/segment_upload.py",
        "if self._lacks_packed(log, manifest.next_offset):",
        "if False:",
        (f"{_LEADERS}::test_a_stored_log_that_lacks_what_packs_hold_is_not_adopted",),
    ),
    Mutant(
        "a compacted log is sealed once no earlier PUT of the own head can take effect",
        "uploader_agent/packing/thread.py",
        "if head.settled:",
        "if True:",
        (f"{_LATE}::test_it_fails_once_a_new_process_seals_a_compacted_log",),
    ),
    Mutant(
        "a job of thousands of partitions is found without a look at all of them",
        "uploader_agent/scheduling/workers.py",
        "if not lane.served:",
        "if False:",
        ("tests.uploader_agent.scheduling.test_upload_queue::test_a_job_of_thousands_of_partitions_is_found_at_once",),
    ),
    Mutant(
        "a damaged head is made again with what a PUT of an unknown outcome has named",
        "uploader_agent/packs/broker_head.py",
        "        known = self._complete\n",
        "        known = self.version > 0\n",
        (
            f"{_LATE}::test_what_it_names_is_sealed_if_it_is_damaged_once_it_has_arrived",
            f"{_LATE}::test_what_a_put_without_a_reply_names_is_sealed_if_it_is_damaged_before_it_is_read_back",
        ),
    ),
    Mutant(
        "packs hold more also where compaction has removed the end of a run",
        "uploader_agent/upload/local_run.py",
        "if part.first < end and not self._is_equal(part, log)]",
        "if part.next <= max(self._ends, default=0) and not self._is_equal(part, log)]",
        (f"{_PARTS}::test_a_run_whose_end_compaction_has_emptied_differs",),
    ),
    Mutant(
        "a run from packs ends before a hole",
        "uploader_agent/packs/packed_run.py",
        "reach = live.contiguous_from(start)",
        "reach = end",
        (f"{_LEADERS}::test_a_run_from_packs_ends_before_a_hole",),
    ),
    Mutant(
        "a run from packs ends with the batch within which the log was cut",
        "uploader_agent/packs/packed_run.py",
        "if live_end < header.next_offset:",
        "if False:",
        (f"{_CUT}::test_a_run_from_packs_ends_with_the_batch_that_was_cut",),
    ),
    Mutant(
        "the lineage of a seal from packs ends where the log was cut within its last batch",
        "uploader_agent/packs/packed_run.py",
        "stop, lineage = kept[-1].header.next_offset, lineage.truncated(stop)",
        "stop = kept[-1].header.next_offset",
        (f"{_CUT}::test_a_run_from_packs_ends_with_the_batch_that_was_cut",),
    ),
    Mutant(
        "what lies beside a gap counts up to where the log leaves it",
        "uploader_agent/repair/replica_upload.py",
        "(segment.lineage, segment.readable_end)",
        "(segment.lineage, segment.next_offset)",
        (f"{_CUT}::test_a_replica_fills_a_gap_behind_the_batch_that_was_cut",),
    ),
    Mutant(
        "packs are looked into before offsets are recorded as lost",
        "uploader_agent/partitions/partition_uploader.py",
        "        self._seal_lost(entries, lineage)\n",
        "",
        (f"{_LEADERS}::test_bytes_that_the_log_no_longer_has_come_from_the_packs_and_not_into_a_gap",),
    ),
    Mutant(
        "the heads of all replicas are read before a gap, whatever offset.wm lists",
        "uploader_agent/partitions/partition_uploader.py",
        "{self._context.broker, *self._local.log.replicas, *self._tail_brokers}",
        "{self._context.broker, *self._tail_brokers}",
        (f"{_LEADERS}::test_a_log_that_returns_to_a_branch_finds_what_was_packed_there",),
    ),
    Mutant(
        "it is never assumed that no transaction is open where a run from packs begins",
        "uploader_agent/packs/packed_run.py",
        "    if at == 0:\n        return ()\n    known = open_at(at)",
        "    return ()\n    known = open_at(at)",
        (f"{_LEADERS}::test_what_is_open_where_a_seal_from_packs_begins_is_known_from_the_seal_before",),
    ),
    # -- the store ---------------------------------------------------------------------------------------------------
    Mutant(
        "an object is created only where none is",
        "uploader_agent/stored/objects.py",
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
    # -- whose name it is --------------------------------------------------------------------------------------------
    Mutant(
        "one cluster writes under a name",
        "uploader_agent/stored/cluster_name.py",
        "        if error is not None:\n            raise error\n        self._read_again_at",
        "        self._read_again_at",
        (f"{_NAME}::test_the_first_cluster_owns_the_name_and_another_one_is_refused",),
    ),
    Mutant(
        "nothing is written under the id that the broker had before",
        "uploader_agent/stored/cluster_name.py",
        "        if found and not any(identity.is_of(self._first) for identity in found):",
        "        if False:",
        (f"{_NAME}::test_the_disk_says_which_cluster_it_is_of",),
    ),
    Mutant(
        "a batch within which the log was cut is of the other branch, although retention has taken its beginning",
        "uploader_agent/stored/lineage.py",
        "for at in (header.base_offset, header.last_offset))",
        "for at in (header.base_offset,))",
        (
            "tests.uploader_agent.stored.test_stored_log::test_a_log_without_a_manifest_ends_below_the_batch_in_which_its_branch_was_cut",
        ),
    ),
    Mutant(
        "a spool counts a segment once, although a batch takes the name of the mark of a gap",
        "uploader_agent/intake/spool.py",
        "if self._bases[-2:-1] == [base]:",
        "if self._bases[-2:-1] == [base - 1]:",
        ("tests.uploader_agent.intake.test_spool::test_a_first_batch_may_lie_over_all_that_is_gone",),
    ),
    Mutant(
        "what comes while a spool is full ends its segment, too",
        "uploader_agent/intake/replica.py",
        "        if full:\n            # Each time",
        "        if full and not self._full:\n            # Each time",
        ("tests.uploader_agent.intake.test_replica::test_what_comes_while_the_spool_is_full_ends_its_segment_too",),
    ),
)
