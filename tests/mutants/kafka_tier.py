"""Rules of what is adopted from Kafka's remote tier: which copies count, what is checked, what is left to its owner."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_ADOPTION: Final = "tests.uploader_agent.repair.test_tier_adoption"
_COPIES: Final = "tests.tidemark.kafka_tier.test_copies"
_DAMAGE: Final = "tests.tidemark.kafka_tier.test_damage"
_HISTORY: Final = "tests.tidemark.kafka_tier.test_history"
_LANDED: Final = "tests.spark.test_kafka_tier"
_PROOF: Final = "include/tidemark/kafka_tier/copies.py"
_RUN: Final = "uploader_agent/repair/tier_adoption.py"

KAFKA_TIER: Final = (
    Mutant(
        "a copy of a history that an election cut off does not count",
        "include/tidemark/kafka_tier/copies.py",
        "if not (begins_right or begins_before) or end > ends.get(epoch, end):",
        "if not (begins_right or begins_before):",
        (f"{_HISTORY}::test_a_segment_of_another_history",),
    ),
    Mutant(
        "a copy with an epoch that its history lacks does not count",
        "include/tidemark/kafka_tier/copies.py",
        "if not known or any(epoch not in starts for epoch, _ in known):",
        "if not known:",
        (f"{_HISTORY}::test_random_elections",),
    ),
    Mutant(
        "the newest copy's history is that of its highest epoch",
        "include/tidemark/kafka_tier/copies.py",
        "return about.epochs[-1][0], about.end_offset",
        "return 0, -about.epochs[-1][0]",
        (f"{_COPIES}::test_copies_of_the_history_touch_and_reach_the_end_of_the_tier[epochs]",),
    ),
    Mutant(
        "a copied log ends where its manifest says",
        _PROOF,
        "if summary.next_offset != about.next_offset:",
        "if False:",
        (f"{_DAMAGE}::test_another_end_is_told_by_the_log",),
    ),
    Mutant(
        "a transaction index lists the aborts of its log",
        _PROOF,
        "if stated != (first, stable) and (known or not _may_be(stated, first, stable, base)):",
        "if False:",
        (f"{_DAMAGE}::test_any_flipped_byte_is_told_by_the_objects_key[plain-indexes]",),
    ),
    Mutant(
        "the offsets of a damaged copy are a gap",
        _RUN,
        "missing = Intervals(present.missing(start, max([start, *ends]))) - acknowledged",
        "missing = Intervals()",
        (f"{_ADOPTION}::test_a_damaged_object_is_a_gap_that_is_told_by_its_key[plain-flipped-log]",),
    ),
    Mutant(
        "only transactions that are open at a copy's own start are open before it",
        _RUN,
        "opened_at = self._open_at(own, copy.name.base, known if copy.name.base == at else None)",
        "opened_at = ()",
        (f"{_ADOPTION}::test_each_archive_is_adopted_and_has_the_consumers_records[both-False]",),
    ),
    Mutant(
        "a log that another system has deleted is a gap of the table",
        "spark/tidemark_spark/convert/conversion.py",
        "if isinstance(error, NotFound) and part.referred and self._waits:",
        "if False:",
        (f"{_LANDED}::test_a_log_that_kafka_deletes_before_it_lands_is_a_gap",),
    ),
    Mutant(
        "erasure names the logs that another system still has",
        "spark/tidemark_spark/erasing/seals.py",
        "        self._name_left(records)\n",
        "",
        (f"{_LANDED}::test_erasure_rewrites_into_its_own_prefix_and_names_what_kafka_still_has",),
    ),
    Mutant(
        "a rewritten segment has its own log",
        "spark/tidemark_spark/erasing/rewriting.py",
        "return self.manifest.referring(None).model_copy(",
        "return self.manifest.model_copy(",
        (f"{_LANDED}::test_erasure_rewrites_into_its_own_prefix_and_names_what_kafka_still_has",),
    ),
)
