"""What a kept demo leaves to try the rest with: each line that it prints does what it should."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from demo.processes import HOME, living_in, recorded
from demo.trying import erasing, lines, write_env_file
from tests.support.paths import ROOT


def test_the_file_gives_a_shell_what_it_has_and_nobody_else_reads_it(tmp_path: Path) -> None:
    write_env_file(path := tmp_path / "env.sh", {"AWS_SECRET_ACCESS_KEY": 'it\'s $HOME; "quoted"'})
    assert path.stat().st_mode & 0o077 == 0
    script = f'. {path}; printf "%s\\n" "$AWS_SECRET_ACCESS_KEY"; command -v tidemark; python -c "import demo"'
    assert shell(script).splitlines() == ['it\'s $HOME; "quoted"', str(ROOT / ".tidemark/env/dev/bin/tidemark")]


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("option", [[], ["--fetch"]], ids=["disks", "fetch"])
def test_each_line_that_a_kept_demo_prints_works(
    starts_s3: None, starts_kafka: None, starts_spark: None, starts_airflow: None, option: list[str]
) -> None:
    if any(one.find() for one in recorded()):
        pytest.skip("a demo is running in this checkout")
    try:
        command = [sys.executable, "-m", "demo", "--keep", *option]
        demo = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
        assert demo.returncode == 0, demo.stdout + demo.stderr
        assert "page was at" not in demo.stdout
        assert ("agents running, which fetch" in demo.stdout) == (option == ["--fetch"])
        printed = [line.strip() for line in demo.stdout.partition("To try the rest, in this shell:\n")[2].splitlines()]
        erases = erasing(HOME / "env.sh", HOME / "env-approver.sh")
        assert [line for line in printed if line in {*lines(HOME / "env.sh"), *erases}] == [
            *lines(HOME / "env.sh"),
            *erases,
        ]
        source, *others = lines(HOME / "env.sh")
        answers = [shell(f"{source}\n{line}") for line in others]
        for answer, expected in zip(answers, ["clicks", "orders", "sensors", "s3://lake/", "count", ""], strict=True):
            assert expected in answer
        assert "FOUND AND ERASED\n  orders: erased by" in shell("\n".join(erases))
        left = "SELECT count(*) AS n FROM orders WHERE customer = $$customer-7$$"
        assert shell(f"{source}\npython -m demo.query '{left}'").split() == ["n", "-", "0"]
    finally:
        subprocess.run([sys.executable, "-m", "demo", "down"], check=True, cwd=ROOT)
    assert not any(one.find() for one in recorded())
    assert living_in(HOME) == []


def shell(script: str) -> str:
    """What a script prints that is run in the checkout, and ends with 0."""
    command = ["/bin/bash", "-euo", "pipefail", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, f"{script}: {done.stdout}{done.stderr}"
    return done.stdout
