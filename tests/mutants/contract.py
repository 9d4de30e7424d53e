"""Rules of the contract and of the jobs: lineages, chains, transactions, plans, dates, commits, retention, stores."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_AVRO: Final = "tests.tidemark.schemas.test_avro_changes"
_BY_DATE: Final = "tests.spark.rebuild.test_by_date"
_CLASSES: Final = "tests.spark.convert.test_parts"
_COMPACTION: Final = "tests.tidemark.planning.test_compaction"
_DATES: Final = "tests.spark.run.test_dates"
_ERASURE: Final = "tests.tidemark.formats.test_erasure"
_ERASING: Final = "tests.spark.erasing.test_versions"
_FILTERS: Final = "tests.spark.run.test_delta_filters"
_FINALITY: Final = "tests.tidemark.planning.test_date_finality"
_LEADERS: Final = "tests.uploader_agent.packs.test_leaders"
_LINEAGE: Final = "tests.tidemark.kafka_log.test_lineage"
_MASKS: Final = "tests.tidemark.remote.test_masks"
_MATCHER: Final = "tests.tidemark.erasure.test_matcher"
_PACKER: Final = "tests.uploader_agent.packs.test_packer"
_PACKS: Final = "tests.tidemark.raw.test_packs"
_PLANNING: Final = "tests.tidemark.raw.test_planned_ranges"
_PROOFS: Final = "tests.spark.retention.test_packs"
_PUBLISH: Final = "tests.spark.run.test_commit"
_REMOTE: Final = "tests.tidemark.remote.test_catalog"
_RESTORED: Final = "tests.spark.run.test_restored"
_RETENTION: Final = "tests.tidemark.planning.test_retention"
_STATE: Final = "tests.spark.state.test_state"
_STEPS: Final = "tests.spark.rebuild.test_steps"
_STORE: Final = "tests.tidemark.store.test_store"
_INDEX: Final = "tests.tidemark.table.test_evidence_index"
_AROUND: Final = "tests.spark.audit.test_date_evidence"
_TRANSACTIONS: Final = "tests.tidemark.kafka_log.test_transactions"
_VERSIONS: Final = "tests.tidemark.store.test_versions"
_WATERMARK: Final = "tests.uploader_agent.stored.test_watermark"

CONTRACT: Final = (
    # -- lineage -----------------------------------------------------------------------------------------------------
    Mutant(
        "an epoch ends where the next one starts",
        "include/tidemark/kafka_log/lineage.py",
        "return any(known == epoch for known, _ in self.entries) and (end is None or base_offset < end)",
        "return any(known == epoch for known, _ in self.entries)",
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
        "beyond a restore that parts two logs their epochs prove nothing",
        "include/tidemark/kafka_log/lineage.py",
        "elif (left := self.truncated(parted)._left_at(other.truncated(parted))) is not None:",
        "elif (left := self._left_at(other)) is not None:",
        (f"{_LINEAGE}::test_logs_of_random_elections_and_restores_part_where_their_records_do",),
    ),
    Mutant(
        "whatever was stored before a restore is of a dead branch",
        "include/tidemark/formats/raw/watermark.py",
        "return Lineage(self.lineage, self.restores)",
        "return Lineage(self.lineage)",
        (f"{_RESTORED}::test_a_restore_is_followed_as_an_unclean_election_is",),
    ),
    Mutant(
        "a mask is of the history that had the record",
        "include/tidemark/decode/offset_mask.py",
        "offsets if parted is None else offsets[offsets < parted]",
        "offsets",
        (f"{_RESTORED}::test_a_mask_is_of_one_history",),
    ),
    # -- offset.wm ---------------------------------------------------------------------------------------------------
    Mutant(
        "offset.wm never moves back under one leader epoch",
        "include/tidemark/formats/raw/watermark.py",
        "return other is None or other.topic_id != self.topic_id or self.order >= other.order",
        "return True",
        (f"{_WATERMARK}::test_conditional_writes",),
    ),
    # -- packs and heads ---------------------------------------------------------------------------------------------
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
        "elif range_.next != end:",
        "elif False:",
        (f"{_PACKS}::test_a_range_that_does_not_belong_to_the_chain_is_named",),
    ),
    Mutant(
        "a chain of another topic id is refused",
        "include/tidemark/raw/packs.py",
        "(range_.topic, range_.topic_id, range_.partition) != (entry.topic, entry.topic_id, entry.partition)",
        "(range_.topic, range_.partition) != (entry.topic, entry.partition)",
        (f"{_PACKS}::test_a_range_that_does_not_belong_to_the_chain_is_named",),
    ),
    # -- transactions ------------------------------------------------------------------------------------------------
    Mutant(
        "a marker closes its producer's transaction alone",
        "include/tidemark/kafka_log/transactions.py",
        "self._open.pop(header.producer_id, None)",
        "self._open.clear()",
        (f"{_TRANSACTIONS}::test_markers_close_what_data_opened",),
    ),
    Mutant(
        "the first open transaction holds back",
        "include/tidemark/raw/segments.py",
        "first = min(transaction.first_offset for transaction in pending)",
        "first = max(transaction.first_offset for transaction in pending)",
        (f"{_PLANNING}::test_the_first_open_transaction_holds_back",),
    ),
    Mutant(
        "what a dead branch lists as open decides nothing",
        "include/tidemark/raw/segments.py",
        "return live_until(segment, lineage, offset) == segment.end",
        "return True",
        (f"{_PLANNING}::test_a_dead_branch_decides_no_transaction",),
    ),
    # -- planning ----------------------------------------------------------------------------------------------------
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
        "a cut takes back what a marker above it had decided",
        "include/tidemark/planning/partition_plan.py",
        "divergence(state.history, state.verdicts_end)",
        "divergence(state.history, state.next_offset)",
        ("tests.spark.run.test_truncation::test_a_marker_above_what_has_landed_is_cut_off",),
    ),
    Mutant(
        "a hole above offset.wm is not lost",
        "include/tidemark/planning/partition_plan.py",
        "return Interval(hole.start, min(hole.end, sealed)) if hole and hole.start < sealed else None",
        "return hole",
        ("tests.spark.run.test_live_end::test_no_hole_above_the_watermark_is_lost",),
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
    # -- dates -------------------------------------------------------------------------------------------------------
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
        "spark/tidemark_spark/kinds/kind.py",
        'if known.state != "open":',
        "if False:",
        (f"{_DATES}::test_late_rows_are_landed_counted_and_reopen_their_date_until_it_closes_again",),
    ),
    # -- publish -----------------------------------------------------------------------------------------------------
    Mutant(
        "a plan for offsets that have landed is stale",
        "spark/tidemark_spark/kinds/ingest.py",
        "if state.next_offset != part.landed_next:",
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
        "what was kept of a topics file counts only while the schemas that it names are the same",
        "include/tidemark/topics.py",
        "    if any(FileVersion.of(named) != version for named, version in files.items()):\n",
        "    if False:\n",
        ("tests.tidemark.test_topics_once::test_another_process_sees_a_change",),
    ),
    Mutant(
        "what was kept of a topics file does not count where a variable overrides the topics' settings",
        "include/tidemark/topics.py",
        "len(text) >= _WORTH_KEEPING and sections <= _APART",
        "len(text) >= _WORTH_KEEPING",
        ("tests.tidemark.test_topics_once::test_a_variable_on_which_topics_depend_is_seen",),
    ),
    Mutant(
        "a ledger states the live files without those that its commit removes",
        "include/tidemark/table/delta_table.py",
        " - _sum_of_digests(removed)",
        "",
        ("tests.tidemark.table.test_live_files::test_random_files",),
    ),
    Mutant(
        "a run that replaces what another has replaced is stale",
        "spark/tidemark_spark/kinds/kind.py",
        "    gone = sorted(set(plan.removes) - {file.path for file in live.named(plan.removes)})\n",
        "    gone = []\n",
        ("tests.spark.compaction.test_beside_others::test_a_rebuild_that_it_overtakes_is_stale",),
    ),
    Mutant(
        "a table that somebody else has changed is not written to",
        "spark/tidemark_spark/kinds/kind.py",
        "        check_untampered(self.table, ledger, live)\n",
        "        pass\n",
        ("tests.spark.run.test_runs::test_a_table_changed_while_a_run_converts_is_left_alone",),
    ),
    Mutant(
        "a table that exists is told which columns have bounds",
        "spark/tidemark_spark/run/commit.py",
        "if name_bounds(table, delta) or add_columns(",
        "if add_columns(",
        (f"{_FILTERS}::test_the_next_commit_cures_a_table_that_exists",),
    ),
    Mutant(
        "rows without a time are counted as null in the log",
        "spark/tidemark_spark/run/delta_log.py",
        'file.untimed if name == "kafka_timestamp" else 0',
        "0",
        (f"{_FILTERS}::test_rows_without_a_time_are_told_from_those_with_one",),
    ),
    # -- rebuilds in steps --------------------------------------------------------------------------------------------
    Mutant(
        "no outcome of a step's tasks is forgotten",
        "spark/tidemark_spark/run/steps.py",
        "if not len(outcomes) == len(whole) == len(tasks):",
        "if False:",
        (f"{_STEPS}::test_a_step_whose_outcomes_are_others_is_not_stored",),
    ),
    Mutant(
        "a step of another plan is not trusted",
        "spark/tidemark_spark/run/steps.py",
        "        if stated != (attempt, *span, len(tasks), digest_of_tasks(tasks), sha256(evidence).hexdigest()):\n",
        "        if False:\n",
        (f"{_STEPS}::test_a_step_of_something_else_is_refused",),
    ),
    Mutant(
        "a step that was carried out with other bytes before is stale",
        "spark/tidemark_spark/run/steps.py",
        "            put_once(table.store, table.keys.step_evidence(plan.attempt, *span), evidence)\n",
        "            table.store.put(table.keys.step_evidence(plan.attempt, *span), evidence)\n",
        (f"{_STEPS}::test_a_step_that_was_carried_out_with_other_bytes_before_is_stale",),
    ),
    Mutant(
        "each task is carried out, also before a step that is stored",
        "spark/tidemark_spark/run/steps.py",
        "            at = end\n",
        "            at = max(end, *stored.values()) if stored else end\n",
        (f"{_STEPS}::test_a_job_goes_on_with_the_tasks_that_are_left",),
    ),
    Mutant(
        "a step counts only once its evidence is stored",
        "spark/tidemark_spark/run/steps.py",
        "            put_once(table.store, table.keys.step_evidence(plan.attempt, *span), evidence)\n"
        "            put_once(table.store, table.keys.step(plan.attempt, *span), step.to_bytes())\n",
        "            put_once(table.store, table.keys.step(plan.attempt, *span), step.to_bytes())\n"
        "            put_once(table.store, table.keys.step_evidence(plan.attempt, *span), evidence)\n",
        (f"{_STEPS}::test_a_step_counts_only_once_its_evidence_is_stored",),
    ),
    Mutant(
        "steps are not made with other code than the plan's",
        "spark/tidemark_spark/run/steps.py",
        "if self._plan.code != code_digest():",
        "if False:",
        (f"{_STEPS}::test_a_step_of_other_code_goes_on_nowhere",),
    ),
    Mutant(
        "a plan that can commit no more is not renewed",
        "spark/tidemark_spark/run/steps.py",
        "        Rebuild(table, stored).check_age()\n",
        "",
        (f"{_STEPS}::test_a_plan_that_can_commit_no_more_is_never_renewed",),
    ),
    Mutant(
        "the steps of a run that may still commit stay",
        "include/tidemark/planning/maintenance/vacuum.py",
        "        if over or attempt in known.landed:\n",
        "        if True:\n",
        (f"{_STEPS}::test_a_rebuild_of_five_days_lands_and_no_vacuum_takes_what_it_needs",),
    ),
    Mutant(
        "young steps without a plan are of a run that has just begun",
        "include/tidemark/planning/maintenance/vacuum.py",
        " if plan is not None else known.now - info.modified > RUN_OVER",
        " if plan is not None else True",
        (f"{_STEPS}::test_steps_of_which_no_plan_tells_go_when_they_are_old",),
    ),
    Mutant(
        "dates that exchange rows have one commit",
        "spark/tidemark_spark/rebuild/affected_dates.py",
        "            if len(touched) > 1:\n",
        "            if False:\n",
        (f"{_BY_DATE}::test_dates_that_exchange_rows_have_one_commit_together",),
    ),
    Mutant(
        "a date that is left is not taken out before it has landed",
        "spark/tidemark_spark/rebuild/by_date.py",
        '        if result.status != "stale":\n',
        "        if True:\n",
        (f"{_BY_DATE}::test_a_part_that_others_overtake_is_planned_again",),
    ),
    # -- retention ---------------------------------------------------------------------------------------------------
    Mutant(
        "raw that the evidence does not account for stays",
        "include/tidemark/planning/maintenance/retention.py",
        "if not self.classed.covers(start, end):",
        "if False:",
        (f"{_RETENTION}::test_why_a_segment_stays",),
    ),
    Mutant(
        "raw that has not landed stays",
        "include/tidemark/planning/maintenance/retention.py",
        "if end > min(self.state.next_offset, self.watermark.next_offset):",
        "if False:",
        (f"{_RETENTION}::test_why_a_segment_stays",),
    ),
    Mutant(
        "raw stays while its partition has an open gap",
        "include/tidemark/planning/maintenance/retention.py",
        "        if self.watermark.gaps:\n",
        "        if False:\n",
        ("tests.spark.retention.test_raw::test_a_partition_stays_as_a_whole",),
    ),
    Mutant(
        "a pack stays until a seal of other bytes is ruled out",
        "include/tidemark/raw/sealed_packs.py",
        "part = range_.first, range_.next, range_.crc32c\n",
        'part = range_.first, range_.next, ""\n',
        (f"{_PROOFS}::test_packs_go_when_seals_list_all_their_ranges",),
    ),
    Mutant(
        "a pack stays while a run may read it that was planned before the seal",
        "include/tidemark/planning/maintenance/pack_proof.py",
        "return None if self._settled(listing) else",
        "return None if True else",
        (f"{_PROOFS}::test_runs_that_may_read_a_pack_are_over_when_it_goes",),
    ),
    Mutant(
        "a pack goes only if all its batches are in seals",
        "include/tidemark/planning/maintenance/pack_proof.py",
        "return wanted[min(wanted)] if wanted else None",
        "return None",
        (f"{_PROOFS}::test_a_batch_with_other_bytes_is_another",),
    ),
    Mutant(
        "files of two partitions are never merged",
        "include/tidemark/planning/maintenance/compaction.py",
        "key=lambda file: file[:4]):",
        "key=lambda file: file[:3]):",
        (f"{_COMPACTION}::test_files_of_other_dates_partitions_and_incarnations_are_never_merged",),
    ),
    # -- masks -------------------------------------------------------------------------------------------------------
    Mutant(
        "a mask hides records of the epochs that it names",
        "include/tidemark/decode/offset_mask.py",
        "(epochs == epoch) & (known[at] == offsets)",
        "known[at] == offsets",
        (f"{_MASKS}::test_a_record_of_another_epoch_stays",),
    ),
    Mutant(
        "who reads Kafka as well never passes over what Kafka's own remote tier has",
        "include/tidemark/remote/partition.py",
        "    if kafka_too:",
        "    if False:",
        (f"{_REMOTE}::test_what_kafka_s_remote_tier_has_is_passed_over_only_without_kafka",),
    ),
    Mutant(
        "what was read ahead is void once the masks change",
        "include/tidemark/remote/partition.py",
        "return view.branch, view.masks",
        "return view.branch, ()",
        (f"{_MASKS}::test_what_is_erased_meanwhile_is_not_delivered_though_it_was_read_ahead",),
    ),
    Mutant(
        "while its masks cannot be read nothing of a partition is delivered",
        "include/tidemark/remote/partition.py",
        "self._view = replace(view, masks=None)",
        "pass",
        (f"{_MASKS}::test_what_was_read_ahead_is_held_while_the_index_cannot_be_read",),
    ),
    Mutant(
        "nobody approves a request of their own under another name",
        "include/tidemark/formats/raw/erasure.py",
        "if _principal(written_as) == _principal(self.request.written_as):",
        "if written_as == self.request.written_as:",
        (f"{_ERASURE}::test_one_person_does_not",),
    ),
    Mutant(
        "an approval is of the bytes that were shown",
        "include/tidemark/erasure/requests.py",
        "if approval.request_sha256 != stored.sha256:",
        "if False:",
        (f"{_ERASURE}::test_a_request_that_changes_after_its_approval_does_not_count",),
    ),
    Mutant(
        "the digest decides, and not the probe",
        "include/tidemark/erasure/matcher.py",
        "self._requests.get(self._secret.digest(self._unframed(value)), [])",
        "next(iter(self._requests.values()))",
        (f"{_MATCHER}::test_the_digest_decides_where_the_probe_is_that_of_another_value",),
    ),
    Mutant(
        "no former version of a deleted segment is left",
        "include/tidemark/store/versions.py",
        "if version.etag not in etags:",
        "if version.etag:",
        (
            f"{_VERSIONS}::test_the_deleted_versions_of_the_named_keys_go_and_no_others",
            f"{_ERASING}::test_no_version_holds_a_masked_record_after_a_pass",
        ),
    ),
    Mutant(
        "a former version never becomes the latest again",
        "include/tidemark/store/versions.py",
        "if marker.etag is None and not former:",
        "if marker.etag is None:",
        (f"{_VERSIONS}::test_a_former_version_that_nobody_named_stays_hidden_and_is_told",),
    ),
    Mutant(
        "what a lock keeps is in the report until it is gone",
        "spark/tidemark_spark/erasing/seals.py",
        "if held.isdisjoint(key for key, _ in record.versions(self.stored.keys)):",
        "if record:",
        (f"{_ERASING}::test_every_kind_of_lock_is_named_each_time",),
    ),
    Mutant(
        "a withdrawn request is not approved",
        "include/tidemark/erasure/requests.py",
        "if (withdrawal := withdrawal_of(self.cluster, stored.request.id)) is not None:",
        "if withdrawal := None:",
        ("tests.tidemark.cli.test_erase::test_a_withdrawn_request_is_closed",),
    ),
    Mutant(
        "a withdrawn request is not carried out",
        "spark/tidemark_spark/erasure_pass.py",
        "request.id in finished or asked.withdrawal or",
        "request.id in finished or",
        ("tests.spark.erasing.test_job::test_a_withdrawn_request_is_not_carried_out",),
    ),
    # -- state tables ------------------------------------------------------------------------------------------------
    Mutant(
        "a state remembers deletions",
        "spark/tidemark_spark/state/last_records.py",
        "reserve = (winner & deleted) | outranked | later",
        "reserve = outranked | later",
        (f"{_STATE}::test_a_deletion_counts_against_older_records_that_come_later",),
    ),
    Mutant(
        "a record with a value is no tombstone",
        "spark/tidemark_spark/state/record_columns.py",
        'rows.column("kafka_value" if "kafka_value" in rows.column_names else op)',
        "rows.column(op)",
        ("tests.spark.state.test_keys::test_only_a_record_without_a_value_is_a_tombstone",),
    ),
    Mutant(
        "records before a truncation that is followed do not count",
        "spark/tidemark_spark/state/second_round.py",
        "return chosen(records, ~before(records, job.truncated, files.columns.ranking))",
        "return records",
        ("tests.spark.state.test_truncations::test_a_truncation_of_a_topic_of_one_partition_is_followed",),
    ),
    Mutant(
        "records of a key have an order of their own, and not that of their arrival",
        "spark/tidemark_spark/state/last_records.py",
        "columns = [_values(few, name) for name in reversed(names)]",
        "columns = []",
        (f"{_STATE}::test_a_deletion_counts_against_older_records_that_come_later",),
    ),
    Mutant(
        "a state's vector is not ahead of its rows",
        "spark/tidemark_spark/state/run.py",
        "next_offset=known.next_offset,",
        "next_offset=known.next_offset + 1,",
        (f"{_STATE}::test_a_partitions_last_record_counts_although_its_time_is_older",),
    ),
    Mutant(
        "a key that is merged again has one row",
        "spark/tidemark_spark/state/last_records.py",
        "kept = np.flatnonzero(~touched)",
        "kept = np.arange(len(rows))",
        (f"{_STATE}::test_each_run_leaves_what_a_replay_leaves[1]",),
    ),
    Mutant(
        "of two runs at once, one commits",
        "spark/tidemark_spark/state/run.py",
        "if table.ledger(delta) != self.state:",
        "if False:",
        (f"{_STATE}::test_a_run_is_stale_if_the_table_or_the_state_has_moved_on[committed]",),
    ),
    Mutant(
        "a state is not made of rows that were removed meanwhile",
        "spark/tidemark_spark/state/run.py",
        "if not still_holds(table.of, committed_ledger(table.of), ledger):",
        "if False:",
        (f"{_STATE}::test_a_run_is_stale_if_the_table_or_the_state_has_moved_on[erased]",),
    ),
    Mutant(
        "a file that the table has is not taken for a replaced one",
        "spark/tidemark_spark/state/run.py",
        "for key in sorted(missing & live):",
        "for key in ():",
        ("tests.spark.state.test_removed::test_a_file_that_the_table_still_has_must_be_there",),
    ),
    # -- the consumer --------------------------------------------------------------------------------------------------
    Mutant(
        "a position that was Kafka's is compared again with the log's branch",
        "include/tidemark/consumer/tier_selection.py",
        'if place.branch == branch and place.tier == "remote":',
        "if place.branch == branch:",
        ("tests.consumer.test_tiers::test_a_truncation_above_the_end_of_raw_is_seen_once_raw_reaches_the_position",),
    ),
    Mutant(
        "a join that ended between two polls is taken up",
        "include/tidemark/consumer/consumer.py",
        "if isinstance(self._coordinator._join_task, Future):",
        "if False:",
        ("tests.consumer.test_races::test_a_join_that_ends_between_two_polls_is_not_lost[rebalance]",),
    ),
    # -- schemas -----------------------------------------------------------------------------------------------------
    Mutant(
        "a time is read in the unit of the schema that wrote it",
        "include/tidemark/parsers/avro/resolution.py",
        "factor=factor // 1000 if factor >= 1000 else -1000",
        "factor=1",
        (f"{_AVRO}::test_a_time_of_another_unit_is_the_same_time",),
    ),
    Mutant(
        "a default of bytes is a byte for each character",
        "include/tidemark/parsers/avro/resolution.py",
        'default.encode("latin-1")',
        "default.encode()",
        (f"{_AVRO}::test_a_default_is_what_the_specification_says",),
    ),
    Mutant(
        "a change within a record within the record is judged",
        "include/tidemark/schemas/avro_merge.py",
        'return self._record(old, new, f"{path}.")',
        "return old",
        (f"{_AVRO}::test_a_field_within_items_comes_goes_and_gets_longer",),
    ),
    # -- evidence ----------------------------------------------------------------------------------------------------
    Mutant(
        "an index counts only for the blocks that it was made of",
        "include/tidemark/table/evidence_reader.py",
        "if (len(index), index.end) != (metadata.num_row_groups, size - length):",
        "if False:",
        (f"{_INDEX}::test_an_index_that_another_program_kept_does_not_count",),
    ),
    Mutant(
        "attempts of one object land in the order of its rows",
        "include/tidemark/table/effective_evidence.py",
        "(self._places[attempt], start + number)",
        "(self._places[attempt], number)",
        (f"{_INDEX}::test_a_branch_is_left_by_the_order_of_landing_whichever_blocks_are_read",),
    ),
    Mutant(
        "the hull of a block has the ranges of bytes of its rows",
        "include/tidemark/table/evidence_index.py",
        'compute.coalesce(rows["first_min"], rows["first"])',
        'rows["first"]',
        (f"{_AROUND}::test_a_range_of_bytes_is_seen_as_a_whole_if_evidence_in_its_middle_is_lost",),
    ),
    Mutant(
        "an audit of a date sees who else claims the offsets of its files",
        "spark/tidemark_spark/audit/date_evidence.py",
        "reach = joined([*chosen, *of_files])",
        "reach = joined(chosen)",
        (f"{_AROUND}::test_offsets_within_a_file_belong_to_whoever_claims_them",),
    ),
    # -- the store ---------------------------------------------------------------------------------------------------
    Mutant(
        "what is put once is never replaced by other content",
        "include/tidemark/store/retrying.py",
        "if stored.body != body:",
        "if False:",
        (f"{_STORE}::test_put_once_is_safe_to_repeat[local]",),
    ),
)
