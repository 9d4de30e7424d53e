"""``python -m tests.golden``: makes the corpus of the version to be released, with its meaning and its formats."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from tests.golden import HERE, NEXT
from tests.golden.build import built
from tests.golden.corpus import objects, take_out
from tests.golden.formats import PRESENT, formats, text
from tests.golden.meaning import meaning, plain
from tests.support.paths import roomy_memory


def main() -> None:
    """Build the deployment, and take its objects out; some four minutes."""
    target = HERE / NEXT
    with (
        tempfile.TemporaryDirectory(prefix="tidemark-golden-", dir=roomy_memory()) as folder,
        built(Path(folder)) as made,
    ):
        take_out(made.deployment.store, target)
        told = plain(meaning(made.topics))
    (target / "meaning.json").write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n")
    for listing in (PRESENT, target / PRESENT.name):
        listing.write_text(text(formats()))
    sizes = [path.stat().st_size for _, _, path in objects(target)]
    sys.stdout.write(f"{target}: {len(sizes)} objects of {sum(sizes):,} bytes\n")


if __name__ == "__main__":
    main()
