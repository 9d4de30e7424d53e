"""Plans of compaction, folds, vacuum and retention, and the rules of what they may delete."""
